"""Interactive tasks for tests: environments that take their time, fail or hang, by the prompt's number."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from slipstream.core.records import FinishReason, ModelTurn, Outcome, OutcomeKind, Prompt
from slipstream.core.rng import generator
from slipstream.envs.environment import Environment, Limits, Observation
from slipstream.text.tokenizer import Tokenizer, character_tokenizer

RIGHT = Outcome(kind=OutcomeKind.VALUE, reward=1.0)
ENDLESS = 3600.0  # longer than any test


@dataclass(kw_only=True)
class TalkTask:
    """`make` gives the environment of a prompt."""

    make: Callable[[Prompt], Environment]
    limits: Limits = field(default_factory=lambda: Limits(turns=6, step_s=60.0, episode_s=120.0))
    tokenizer: Tokenizer = field(default_factory=lambda: character_tokenizer("0123456789+"))
    name = "talk"

    def prompt(self, index: int) -> Prompt:
        return Prompt(id=f"n{index}", token_ids=np.array([1 + index % 9], np.int32), text="", answer="")

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        raise AssertionError("interactive tasks are judged by their environments")

    def environment(self, prompt: Prompt) -> Environment:
        return self.make(prompt)

    def transcript(self, prompt: Prompt) -> "Written":
        return Written(self.tokenizer)


class Written:
    """Tokens of an observation's text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def reply(self, model_ids: np.ndarray, said: Observation) -> np.ndarray:
        return self._tokenizer.encode(said.text)


def turn(text: str = "1", room: int = 50, reason: FinishReason = FinishReason.STOP) -> ModelTurn:
    return ModelTurn(token_ids=np.array([2, 0], np.int32), text=text, finish_reason=reason, room=room)


class Talker:
    """Says a few words, then the verdict; `plan` is "good", "raises" or "hangs". Sleeps a little, by the clock or the event loop."""

    closed: ClassVar[Counter[str]] = Counter()  # by prompt, of all

    def __init__(self, prompt: Prompt, plan: str, turns: int, most_s: float) -> None:
        self._prompt, self._plan, self._turns, self._most_s, self._number = prompt, plan, turns, most_s, 0

    def start(self, prompt: Prompt) -> None:
        assert prompt is self._prompt

    def naps_s(self) -> float:
        self._number += 1
        return float(generator(5, "latency", self._prompt.id, self._number).uniform(0, self._most_s))

    def said(self) -> Observation | Outcome:
        if self._plan == "raises" and self._number == self._turns:
            raise RuntimeError("the tool is gone")
        return RIGHT if self._number > self._turns else Observation(text=f"+{self._number}", calls=1)

    def close(self) -> None:
        self.closed[self._prompt.id] += 1


class AsyncTalker(Talker):
    async def step(self, turn: ModelTurn) -> Observation | Outcome:
        await asyncio.sleep(self.naps_s())
        if self._plan == "hangs" and self._number == self._turns:
            await asyncio.sleep(ENDLESS)
        return self.said()


class PlainTalker(Talker):
    released = threading.Event()  # set at the end of a test, so that no thread is left

    def step(self, turn: ModelTurn) -> Observation | Outcome:
        time.sleep(self.naps_s())
        if self._plan == "hangs" and self._number == self._turns:
            self.released.wait(ENDLESS)
        return self.said()
