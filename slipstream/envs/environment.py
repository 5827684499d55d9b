"""What an environment is: the other side of one episode. Plain or async methods, single use, no reset.

`envs.episode` drives one; tasks of several turns make one for each sample (`Interactive`). What an environment raises, and a step
that takes too long, are failures and never a reward.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from slipstream.core.errors import ConfigError, Problem
from slipstream.core.records import ModelTurn, Outcome, Prompt
from slipstream.text.chat import Message
from slipstream.text.conversation import Conversation
from slipstream.text.tokenizer import Tokenizer

GRADING_S = 60.0  # the longest that judging the end of an episode may take; every verifier has a shorter deadline of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an environment says to a model's turn, in words: text, or messages where the model has a chat template."""

    messages: tuple[Message, ...] = ()
    text: str = ""  # of a user's turn where there is a chat template; else as it stands
    answers: Message | None = None  # the model's turn, where messages refer to it: ids and names of its "tool_calls"
    calls: int = 0  # of tools that this answers
    failed_calls: int = 0  # those of them that were answered with an error


class Environment(Protocol):
    """One episode's other side. Any method may be a coroutine function instead."""

    def start(self, prompt: Prompt) -> Awaitable[None] | None:
        """Called once, before the first step; within that step's deadline."""
        ...

    def step(self, turn: ModelTurn) -> Observation | Outcome | Awaitable[Observation | Outcome]:
        """What comes of a model's turn. An outcome ends the episode; where no further turn is possible only that is of use."""
        ...

    def close(self) -> Awaitable[None] | None:
        """Called once, whatever happened, and possibly while a step that took too long still runs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of an episode. Its tokens are bounded by sampling.max_new_tokens, turns of the environment included."""

    turns: int  # of the model, at most
    step_s: float  # one answer of the environment
    episode_s: float  # from the first answer's beginning to the last one's end, generation between them included
    lifetime_s: float = float("inf")  # how long what the environment holds (a sandbox, a session) lives

    def problems(self) -> list[Problem]:
        """Deadlines that could not be kept; a check at the start of a run."""
        found: list[Problem] = []
        if self.step_s > self.episode_s:
            fix = f"one step may not take longer than its episode, task.episode_seconds = {self.episode_s:g}"
            found.append(Problem(field="task.step_seconds", value=f"{self.step_s:g}", fix=fix))
        if self.lifetime_s <= self.episode_s + GRADING_S:
            most = self.lifetime_s - GRADING_S
            fix = (
                f"what the environment holds lives {self.lifetime_s:g} s, and grading may take {GRADING_S:g} s of it; set it below {most:g}"
            )
            found.append(Problem(field="task.episode_seconds", value=f"{self.episode_s:g}", fix=fix))
        return found

    def check(self) -> None:
        """Raises ConfigError with every problem."""
        if found := self.problems():
            raise ConfigError(found)


class Transcript(Protocol):
    """The tokens of an episode: what an environment says, as ids to put behind the model's."""

    def reply(self, model_ids: np.ndarray, said: Observation) -> np.ndarray:
        """Ids int32 of the environment's turn, up to where the model goes on. Called once a turn, in order."""
        ...


@runtime_checkable
class Interactive(Protocol):
    """A task whose prompts are answered over several turns (beside `envs.task.Task`)."""

    @property
    def limits(self) -> Limits: ...

    def environment(self, prompt: Prompt) -> Environment:
        """A fresh one for one sample of the prompt."""
        ...

    def transcript(self, prompt: Prompt) -> Transcript:
        """A fresh one for one sample of the prompt."""
        ...


class PlainTranscript:
    """For models without a chat template: the environment's text, tokenised as it stands."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def reply(self, model_ids: np.ndarray, said: Observation) -> np.ndarray:
        return self._tokenizer.encode(said.text)


class ChatTranscript:
    """For models with a chat template: see `text.conversation`. Begins at the model's first turn."""

    def __init__(self, opened: Conversation) -> None:
        self._conversation = opened

    def reply(self, model_ids: np.ndarray, said: Observation) -> np.ndarray:
        after = self._conversation.after_model_turn(model_ids, said.answers)
        self._conversation = after.extend(said.messages or ({"role": "user", "content": said.text},))
        return self._conversation.token_ids[len(after.token_ids) :]
