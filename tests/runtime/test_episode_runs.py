"""Episodes of several turns through the whole embedded run: learning to use a tool, repeating to the bit, stopping and going on."""

import re
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from slipstream.core.clock import SystemClock
from slipstream.envs.environment import Limits
from slipstream.envs.host import EnvironmentHost
from slipstream.loop.episodes import Episode, Episodes
from slipstream.text.tokenizer import character_tokenizer
from tests.engine.small import engine, request
from tests.envs.talkers import AsyncTalker, PlainTalker, TalkTask
from tests.runtime.runs import MODES, finish, rows, run, sets, signal_after, start
from tests.runtime.test_repeatable import assert_same_run

pytestmark = pytest.mark.slow

SMALL = str(Path(__file__).with_name("episodes.toml"))


@pytest.fixture(scope="module")
def lagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed lagged run."""
    directory = tmp_path_factory.mktemp("lagged") / "run"
    run(directory, SMALL, *sets(MODES["lagged1"]))
    return directory


def test_a_run_of_episodes_trains_on_what_the_model_chose(lagged: Path) -> None:
    metrics = rows(lagged / "metrics.jsonl")
    assert max(row["turns_mean"] for row in metrics) > 1.1
    assert all(sum(row["outcomes"].values()) == row["samples"] for row in metrics)
    columns = ["completion_ids", "loss_mask", "logprobs", "versions", "completion_text", "step"]
    rollouts = [row for path in sorted((lagged / "rollouts").iterdir()) for row in pq.read_table(path, columns=columns).to_pylist()]
    spoken = 0
    for rollout in rollouts:
        mask, ids = np.array(rollout["loss_mask"]), np.array(rollout["completion_ids"])
        assert mask[0]
        assert set(rollout["versions"]) == {max(0, rollout["step"] - 1)}
        assert not np.array(rollout["logprobs"])[~mask].any()
        said = "".join("0123456789x=#[];?"[token - 1] for token in ids[~mask])
        spoken += bool(said)
        assert re.fullmatch(r"(=\d+;|\?;)*", said)
        assert mask.sum() + len(said) == len(ids) <= 16
    assert spoken > 10
    for step in range(12):
        trained = sum(sum(rollout["loss_mask"]) for rollout in rollouts if rollout["step"] == step)
        assert metrics[step]["tokens"] == trained  # the loss falls on the model's tokens alone
    assert all(row["mismatch_abs_max"] < 1e-3 for row in metrics if row["mismatch_abs_max"] is not None)


def test_stopped_and_resumed_episodes_equal_the_undisturbed_run(lagged: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    process = start(stopped, SMALL, *sets(MODES["lagged1"]))
    signal_after(process, stopped, 4, signal.SIGINT)
    finish(process, code=130)
    run(stopped, "--resume")
    assert_same_run(lagged, stopped)


def test_a_small_model_learns_to_use_the_tool(tmp_path: Path) -> None:
    run(tmp_path / "run", "calculator")
    metrics, evaluations = rows(tmp_path / "run" / "metrics.jsonl"), rows(tmp_path / "run" / "eval.jsonl")

    def mean(key: str, some: slice) -> float:
        return float(np.mean([row[key] for row in metrics[some]]))

    first, last = slice(0, 3), slice(-3, None)
    assert (mean("reward_mean", first) < 0.3, mean("call_share", first) < 0.3) == (True, True)
    assert (mean("reward_mean", last) > 0.9, mean("call_share", last) > 0.9) == (True, True)
    assert evaluations[0]["pass@1"] < 0.3
    assert evaluations[-1]["pass@1"] > 0.9
    assert max(row["age_max"] for row in metrics) <= 2
    assert not [row for row in rows(tmp_path / "run" / "events.jsonl") if row["kind"] == "alarm"]


def test_256_concurrent_episodes_over_one_engine() -> None:
    """With random latencies, 16 at a time: none lost, and all as when none waits for anything."""

    def all_of_them(kind: type[AsyncTalker] | type[PlainTalker], most_s: float) -> tuple[dict[str, Episode], Episodes]:
        task = TalkTask(
            make=lambda prompt: kind(prompt, "good", 1 + int(prompt.id[1:]) % 3, most_s),
            limits=Limits(turns=6, step_s=60.0, episode_s=600.0),
            tokenizer=character_tokenizer("0123456789+"),
        )
        with closing(EnvironmentHost(task, clock=SystemClock())) as host:
            episodes = Episodes(engine(slots=16, max_tokens=64), host, task.tokenizer)
            for index in range(256):
                prompt = task.prompt(index)
                episodes.begin(prompt, request(prompt.id, prompt.token_ids, new=48))
            found: dict[str, Episode] = {}
            while episodes.open:
                for episode in episodes.run():
                    assert episode.prompt.id not in found
                    found[episode.prompt.id] = episode
        return found, episodes

    slow, episodes = all_of_them(AsyncTalker, 0.2)
    fast, _ = all_of_them(PlainTalker, 0.0)
    assert len(slow) == len(fast) == 256
    for name, episode in slow.items():
        assert np.array_equal(episode.sample.completion_ids, fast[name].sample.completion_ids), name
        assert np.array_equal(episode.sample.logprobs, fast[name].sample.logprobs), name
        assert np.array_equal(episode.loss_mask, fast[name].loss_mask), name
    assert episodes.overlapped > episodes.steps // 2
    assert np.mean([np.count_nonzero(~episode.loss_mask) > 0 for episode in slow.values()]) > 0.5
