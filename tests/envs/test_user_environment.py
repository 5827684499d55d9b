"""Environments of the user: found by their address, made for each sample with its row, and as broken as they may be."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from slipstream.config.load import load_config
from slipstream.config.schema import RowsTask, RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.errors import ConfigError, RunFailed, UsageError
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, FinishReason, ModelTurn, OutcomeKind
from slipstream.envs.build import build_task
from slipstream.envs.host import EnvironmentHost
from slipstream.envs.user_environment import RowsWithEnvironment, find_environment
from tests.envs.small_chat import byte_tokenizer, chatml, write_lines

TOKENIZER = byte_tokenizer()
CODE = """
from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.environment import Observation

class Guess:
    lifetime_s = 5000.0
    def __init__(self, row):
        self.row = row
        if row["word"] == "broken":
            raise OSError("no session can be had")
    async def start(self, prompt):
        self.guesses = 0
    def step(self, turn):
        self.guesses += 1
        if turn.text == self.row["word"]:
            return Outcome(kind=OutcomeKind.VALUE, reward=1 / self.guesses)
        return Observation(text="No, guess again.")
    def close(self):
        pass

class Half:
    def step(self, turn): ...
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "guess.py").write_text(CODE)
    write_lines(tmp_path / "train.jsonl", json.dumps({"id": "a", "question": "Which word?", "word": "sea"}))
    write_lines(tmp_path / "test.jsonl", *(json.dumps({"id": word, "question": f"{word[0]}?", "word": word}) for word in ("sky", "broken")))
    return tmp_path


def task(files: Path, **settings: object) -> RowsWithEnvironment:
    given = {"train": str(files / "train.jsonl"), "test": str(files / "test.jsonl"), "environment": f"{files / 'guess.py'}:Guess"}
    found = build_task(RunConfig(task=RowsTask(**(given | settings))), TOKENIZER, chatml())
    assert isinstance(found, RowsWithEnvironment)
    return found


def answers(found: RowsWithEnvironment, id: str, *texts: str) -> list[EnvironmentTurn | EpisodeEnd]:
    prompt = next(prompt for prompt in found.reserved if prompt.id == id)
    said = []
    with closing(EnvironmentHost(found, clock=SystemClock())) as host:
        for text in texts:
            ids = np.append(TOKENIZER.encode(text), 1).astype(np.int32)
            host.answer(("t", 0), prompt, ModelTurn(token_ids=ids, text=text, finish_reason=FinishReason.STOP, room=500))
            assert host.wait(60.0)
            ((_, answer),) = host.answered()
            said.append(answer)
    return said


def test_its_words_are_a_users_turn_and_its_outcome_the_verdict(files: Path) -> None:
    first, end = answers(task(files), "sky", "sea", "sky")
    written = TOKENIZER.backend.decode(first.token_ids.tolist(), skip_special_tokens=False)
    assert written == "\n<|im_start|>user\nNo, guess again.<|im_end|>\n<|im_start|>assistant\n"
    assert (end.outcome.kind, end.outcome.reward) == (OutcomeKind.VALUE, 0.5)


def test_one_that_cannot_be_made_fails_its_episode(files: Path) -> None:
    (end,) = answers(task(files), "broken", "sea")
    assert (end.outcome.kind, end.outcome.detail) == (OutcomeKind.INFRASTRUCTURE, "the environment raised OSError: no session can be had")


def test_what_cannot_be_an_environment_is_refused(files: Path) -> None:
    with pytest.raises(UsageError, match=r"task\.environment = '.*:Half': an environment has the methods .* no start and no close"):
        find_environment(f"{files / 'guess.py'}:Half")
    with pytest.raises(UsageError, match="has no class 'Gess'; it has Guess, Half, Observation, Outcome, OutcomeKind"):
        find_environment(f"{files / 'guess.py'}:Gess")
    with pytest.raises(ConfigError, match="lives 5000 s"):
        EnvironmentHost(task(files, episode_seconds=4950.0), clock=SystemClock())
    with pytest.raises(ConfigError) as refused:
        load_config("gsm8k", ["task.environment=a:B", 'task.tools=["python"]', "task.format_weight=0.5"])
    assert [problem.field for problem in refused.value.problems] == ["task.tools", "task.format_weight"]
    found = task(files)
    with pytest.raises(RunFailed, match="its environment or agent judges"):
        found.grade(found.prompt(0), "sea")
