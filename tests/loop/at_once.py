"""Environments without threads: a grader's verdict is there as soon as the turn is handed over. So schedules of tests repeat."""

from random import Random
from typing import Protocol

import numpy as np

from slipstream.core.ports import EpisodeKey
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, ModelTurn, Outcome, Prompt


class Grader(Protocol):
    """Judges a completion."""

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome: ...


class AtOnce:
    interactive = False

    def __init__(self, grader: Grader) -> None:
        self._grader, self._ended = grader, list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]]()

    def answer(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        self._ended.append((key, EpisodeEnd(outcome=self._grader.grade(prompt, turn.text), finish_reason=turn.finish_reason)))

    def answered(self) -> list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self, timeout_s: float) -> bool:
        return bool(self._ended)

    def close(self) -> None:
        self._ended.clear()


class Chatty(AtOnce):
    """Every second prompt's first turn is answered with two tokens instead of a verdict; answers come late, in an order of chance."""

    interactive = True

    def __init__(self, grader: Grader, chance: Random) -> None:
        super().__init__(grader)
        self._chance, self._spoken = chance, set[EpisodeKey]()

    def answer(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        if int(prompt.id[1:]) % 2 and turn.room > 2 and key not in self._spoken:
            self._spoken.add(key)
            self._ended.append((key, EnvironmentTurn(token_ids=np.array([7, len(turn.token_ids)], np.int32))))
        else:
            super().answer(key, prompt, turn)

    def answered(self) -> list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]]:
        self._chance.shuffle(self._ended)
        count = max(0, self._chance.randint(-3 * len(self._ended), len(self._ended)))  # mostly none
        now, self._ended = self._ended[:count], self._ended[count:]
        return now
