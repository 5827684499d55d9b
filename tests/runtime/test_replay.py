"""A recorded run comes out again to the bit, whatever its timing was; and whatever was changed in the record is named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from slipstream.cli.main import app
from slipstream.runtime.export import read_run_config
from slipstream.runtime.redraw import Redraw, turns
from slipstream.runtime.replay import Difference, Repeated, Replay, _Drawn
from slipstream.telemetry.recorded import read_batch
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.weights.store import MemoryStore
from tests.runtime.runs import rows

Undisturbed = Callable[[str], Path]


def replayed(run: Path, steps: tuple[int, int] | None = None) -> list[Repeated]:
    directory = RunDirectory(run)
    return list(Replay(directory, read_run_config(directory), steps).run())


@pytest.fixture(scope="module")
def run(undisturbed: Undisturbed) -> Path:
    """In flight: some of its samples have several versions."""
    return undisturbed("inflight2")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def test_an_asynchronous_run_comes_out_again_to_the_bit(run: Path) -> None:
    found = replayed(run)
    recorded = [read_batch(run / "rollouts", step)[0].rollouts for step in range(12)]
    assert any(len(set(rollout.versions.tolist())) > 1 for step in recorded for rollout in step)
    assert [one.step for one in found] == list(range(1, 13))
    assert [(one.tokens, one.turns, one.skipped) for one in found] == [
        (sum(len(rollout.completion_ids) for rollout in step), len(step), 0) for step in recorded
    ]
    assert all((one.equal_logprobs, one.gap) == (one.tokens, 0.0) for one in found)
    assert {one.step for one in found if one.weights} >= {9, 12}


def test_steps_are_replayed_from_the_checkpoint_before_them(run: Path) -> None:
    """What was drawn by versions from before it is passed over, and counted."""
    found = replayed(run, (11, 12))
    assert [(one.step, one.weights) for one in found] == [(11, False), (12, True)]
    older = [sum(rollout.age_version < 9 for rollout in read_batch(run / "rollouts", step)[0].rollouts) for step in (10, 11)]
    assert [one.skipped for one in found] == older
    assert sum(one.tokens for one in found) > 0


def test_a_sample_that_another_sampler_went_on_with_comes_out_too(run: Path) -> None:
    """Its later tokens rest on one prefill of the earlier ones by the newer weights. Made here: the record holds what that gives."""
    directory = RunDirectory(run)
    replay = Replay(directory, read_run_config(directory), (8, 8))
    for _ in replay.run():
        pass
    rollout = max(read_batch(run / "rollouts", 7)[0].rollouts, key=lambda one: len(one.completion_ids))
    tokens = len(rollout.completion_ids)
    rollout = replace(rollout, versions=np.array([6, 6, *[7] * (tokens - 2)], np.int32))
    store = MemoryStore(keep=2)  # the tiny recipe seldom learns: another version need not have other weights
    old = replay._store.get(6)
    store.publish(old)
    store.publish(replace(old, version=7, params=jax.tree.map(lambda leaf: leaf * 1.01, old.params)))
    redraw = Redraw(replay._engine, store, 1.0, (), lambda sampler, version: "keep")
    kept = next(iter(redraw.draw(turns(rollout), 8)))[1]
    over = next(redraw.taken_over(next(turns(rollout))))
    assert (len(kept.completion_ids), len(over.completion_ids)) == (tokens, tokens)
    assert np.array_equal(kept.logprobs[:2], over.logprobs[:2])
    assert not np.array_equal(kept.logprobs[2:], over.logprobs[2:])
    drawn, recorded = _Drawn(), replace(rollout, completion_ids=over.completion_ids, logprobs=over.logprobs)
    replay._add_taken_over(drawn, 8, next(turns(recorded)), kept, redraw)
    assert (drawn.taken_over, drawn.gap, drawn.tokens) == (1, 0.0, tokens)
    with pytest.raises(Difference, match="token 0"):
        replay._add_taken_over(drawn, 8, next(turns(replace(recorded, completion_ids=recorded.completion_ids ^ 1))), kept, redraw)


def altered(column: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """The first rollout of step 2 with another value in a column."""

    def alter(run: Path) -> None:
        path = run / "rollouts" / "000001.parquet"
        table = pq.read_table(path)
        values = table.column(column).to_pylist()
        values[0] = change(values[0])
        pq.write_table(
            table.set_column(table.schema.get_field_index(column), column, pa.array(values, table.schema.field(column).type)), path
        )

    return alter


def other_loss(run: Path) -> None:
    lines = [json.dumps(row | ({"loss": row["loss"] + 1e-9} if row["step"] == 2 else {})) for row in rows(run / "metrics.jsonl")]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


FAULTS = [
    (altered("completion_ids", lambda ids: [ids[0] ^ 1, *ids[1:]]), r"step 2, ticket \d+, sample 0: token 0 is \d+, recorded \d+"),
    (altered("logprobs", lambda found: [found[0] + 0.01, *found[1:]]), r"step 2, ticket \d+, sample 0: the log-prob of token 0 is"),
    (altered("seed", lambda seed: seed ^ 1), r"step 2, ticket \d+, sample 0: token \d+ is"),
    (
        altered("advantage", lambda advantage: float(np.nextafter(np.float32(advantage), np.float32(9)))),
        "step 2: the advantage of rollout 0",
    ),
    (altered("reward", lambda reward: 0.5), "step 2: reward_mean is"),
    (other_loss, "step 2: loss is"),
]


SLOW = [pytest.param(*fault, marks=pytest.mark.slow) for fault in FAULTS[3:]]


@pytest.mark.parametrize(("fault", "words"), [*FAULTS[:3], *SLOW])
def test_the_first_difference_is_named(copy: Path, fault: Callable[[Path], None], words: str) -> None:
    fault(copy)
    with pytest.raises(Difference, match=words):
        replayed(copy, (1, 2))


@pytest.mark.slow
def test_weights_that_are_not_those_of_the_checkpoint_are_named(copy: Path, undisturbed: Undisturbed) -> None:
    """The checkpoint of another run stands in."""
    shutil.rmtree(copy / "checkpoints" / "000012")
    shutil.copytree(undisturbed("sync") / "checkpoints" / "000012", copy / "checkpoints" / "000012")
    with pytest.raises(Difference, match=r"step 12: weights \.\w+.* are not those of checkpoint 000012"):
        replayed(copy, (12, 12))


def test_the_command_tells_what_was_compared_and_refuses_steps_that_are_not_there(run: Path) -> None:
    told = CliRunner().invoke(app, ["replay", str(run), "--steps", "2:3", "--json"])
    found = json.loads(told.stdout)
    assert (told.exit_code, found["first"], found["last"], found["gap"]) == (0, 2, 3, 0.0)
    assert found["equal_logprobs"] == found["tokens"] > 0
    for steps, words in (("3", "--steps 3: give first and last step"), ("0:3", "the run has steps 1 to 12"), ("5:13", "steps 1 to 12")):
        refused = CliRunner().invoke(app, ["replay", str(run), "--steps", steps])
        assert words in str(refused.exception)


def test_a_batch_is_read_as_it_was_written(run: Path) -> None:
    batch, advantages = read_batch(run / "rollouts", 0)
    assert (batch.step, len(batch.rollouts), advantages.dtype) == (0, 16, np.float32)
    assert batch.rollouts[0].versions.dtype == np.int32
    assert batch.rollouts[0].loss_mask.all()
    with pytest.raises(Exception, match=r"000099.parquet cannot be read"):
        read_batch(run / "rollouts", 99)
