"""Rollouts on disk: every field, the right types, the same bytes for the same call."""

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from slipstream.core.codec import rollout_to_bytes
from slipstream.core.records import Batch, Fate, Outcome, OutcomeKind, Rollout
from slipstream.core.rng import generator
from slipstream.telemetry.recorded import read_batch
from slipstream.telemetry.rollouts import read_rollouts, write_batch, write_rollouts
from tests.telemetry.synthetic import Shape, finish, make_text


def some_rollouts(count: int, step: int = 0) -> list[Rollout]:
    rng = generator(3, "rollouts", step)
    texts = [make_text(0, number, 1.0, 0.5, rng) for number in range(count)]
    return [finish(text, number, step, [0.0, 1.1], Shape(), rng) for number, text in enumerate(texts)]


def test_every_field_comes_back(tmp_path: Path) -> None:
    rollouts = some_rollouts(5)
    rollouts[1] = dataclasses.replace(
        rollouts[1], outcome=Outcome(kind=OutcomeKind.TIMEOUT, reward=None, calls=3, failed_calls=1, side_turns=2)
    )
    write_rollouts(tmp_path, 7, rollouts, Fate.TRAINED, [0.5, 0.0, -0.5, 0.25, -0.25])
    rows = read_rollouts(tmp_path).to_pylist()
    for row, rollout in zip(rows, rollouts, strict=True):
        outcome = rollout.outcome
        assert row.pop("outcome") == outcome.kind
        others = [field.name for field in dataclasses.fields(Outcome) if field.name != "kind"]
        assert [row.pop(name) for name in others] == [getattr(outcome, name) for name in others]
        assert (row.pop("step"), row.pop("fate")) == (7, "trained")
        row.pop("advantage")
        assert row == {
            field.name: value.tolist() if hasattr(value, "tolist") else value
            for field in dataclasses.fields(Rollout)
            if field.name != "outcome" and (value := getattr(rollout, field.name)) is not None
        }


def test_a_batch_is_read_back_whole(tmp_path: Path) -> None:
    """Every field of every rollout, so that a replay computes on what was trained on."""
    rollouts = some_rollouts(3)
    rollouts[1] = dataclasses.replace(rollouts[1], outcome=dataclasses.replace(rollouts[1].outcome, calls=2, failed_calls=1))
    silent = dataclasses.replace(rollouts[2], outcome=Outcome(kind=OutcomeKind.TIMEOUT, reward=None))
    sent = Batch(step=4, rollouts=tuple(rollouts[:2]), dropped=(rollouts[2],), aside=(rollouts[0], silent))
    write_batch(tmp_path, sent, [0.5, -0.5])
    batch, advantages = read_batch(tmp_path, 4)
    assert (batch.step, advantages.tolist()) == (4, [0.5, -0.5])
    for part in ("rollouts", "dropped", "aside"):
        found, expected = ([rollout_to_bytes(rollout) for rollout in getattr(one, part)] for one in (batch, sent))
        assert found == expected
    assert read_rollouts(tmp_path, ["fate"])["fate"].to_pylist() == ["trained", "trained", "dropped", "requeued", "unjudged"]


def test_columns_have_the_types_of_the_record(tmp_path: Path) -> None:
    write_rollouts(tmp_path, 0, some_rollouts(2), Fate.DROPPED, [0.0, 0.0])
    schema = read_rollouts(tmp_path).schema
    assert schema.field("completion_ids").type == pa.list_(pa.int32())
    assert schema.field("logprobs").type == pa.list_(pa.float32())
    assert schema.field("loss_mask").type == pa.list_(pa.bool_())
    assert schema.field("seed").type == pa.uint64()


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_rollouts(tmp_path, 3, some_rollouts(4), Fate.TRAINED, [1.0, 0.0, 0.0, -1.0])
    first = path.read_bytes()
    assert write_rollouts(tmp_path, 3, some_rollouts(4), Fate.TRAINED, [1.0, 0.0, 0.0, -1.0]) == path
    assert path.read_bytes() == first
    assert [item.name for item in tmp_path.iterdir()] == ["000003.parquet"]


def test_what_a_step_dropped_stands_behind_what_it_trained_on(tmp_path: Path) -> None:
    trained, dropped = some_rollouts(2), some_rollouts(3, step=1)
    write_batch(tmp_path, Batch(step=1, rollouts=tuple(trained), dropped=tuple(dropped), refilled_groups=1), [0.5, -0.5])
    columns = read_rollouts(tmp_path, ["fate", "advantage", "seed"]).to_pydict()
    assert columns["fate"] == ["trained"] * 2 + ["dropped"] * 3
    assert columns["advantage"] == [0.5, -0.5, 0.0, 0.0, 0.0]
    assert columns["seed"] == [rollout.seed for rollout in (*trained, *dropped)]


def test_steps_are_read_in_order(tmp_path: Path) -> None:
    for step in (1_000_000, 2, 10):
        write_rollouts(tmp_path, step, some_rollouts(2, step % 10), Fate.TRAINED, [0.0, 0.0])
    table = read_rollouts(tmp_path, ["step", "completion_text"])
    assert table.column_names == ["step", "completion_text"]
    assert table["step"].to_pylist() == [2, 2, 10, 10, 1_000_000, 1_000_000]


def test_no_rollouts_read_as_an_empty_table(tmp_path: Path) -> None:
    assert read_rollouts(tmp_path / "absent", ["reward"]).num_rows == 0
    write_rollouts(tmp_path, 0, [], Fate.TRAINED, [])
    assert read_rollouts(tmp_path).num_rows == 0


def test_advantages_must_match(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 rollouts and 1 advantages"):
        write_rollouts(tmp_path, 0, some_rollouts(2), Fate.TRAINED, [0.0])
