"""Whole episodes from a sampler and the environments that answer its turns. An actor without a thread of its own: its caller's.

A model's turn that ends is handed over to be answered, and holds no slot meanwhile. Where the answer is a verdict, the episode has
ended; where it is an environment's turn, the ids so far with the environment's behind them are the next turn's prompt: nothing is
rendered or tokenised again. With tasks of one turn this is the grading, beside generation. Used by dispatch and evaluations.
"""

import sys
from dataclasses import dataclass, field, replace

import numpy as np

from slipstream.core.ports import Environments, EpisodeKey, Sampler, TextCodec
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, ModelTurn, Outcome, Prompt, Sample, SampleRequest
from slipstream.core.rng import stream_seed

LOOK_S = 0.5  # longest sleep of `run` at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One that has ended."""

    prompt: Prompt
    sample: Sample  # all turns in one; what the environment wrote has log-prob 0 and the version of the model's token before it
    loss_mask: np.ndarray  # bool [completion_tokens]; True = the model chose it
    outcome: Outcome


@dataclass(slots=True, kw_only=True)
class _Open:
    """One that has not ended."""

    prompt: Prompt
    request: SampleRequest  # the first turn's; its max_new_tokens bounds the whole episode
    turns: list[Sample] = field(default_factory=list[Sample])
    said: list[np.ndarray] = field(default_factory=list[np.ndarray])  # by the environment, after each turn but the last

    @property
    def tokens(self) -> int:
        """Of the completion so far."""
        return sum(len(turn.completion_ids) for turn in self.turns) + sum(map(len, self.said))


class Episodes:
    """Episodes over one sampler. Called by one thread.

    Counts, never reset: `tokens` that the sampler drew, `turns` of the model that ended, `steps` of the sampler, and those of them
    that it made while some turn was being answered (`overlapped`).
    """

    def __init__(self, sampler: Sampler, environments: Environments, codec: TextCodec) -> None:
        self._sampler, self._environments, self._codec = sampler, environments, codec
        self._open: dict[EpisodeKey, _Open] = {}
        self._unanswered: set[EpisodeKey] = set()
        self.tokens = self.turns = self.steps = self.overlapped = 0

    @property
    def busy(self) -> bool:
        """The sampler has something to do."""
        return bool(self._sampler.running() or self._sampler.waiting())

    @property
    def unanswered(self) -> int:
        """Turns that are being answered."""
        return len(self._unanswered)

    @property
    def open(self) -> int:
        """Episodes that have not ended."""
        return len(self._open)

    @property
    def places(self) -> int:
        """For further episodes; the sampler's slots are the only limit."""
        return sys.maxsize

    @property
    def first_turns(self) -> list[EpisodeKey]:
        """Open episodes whose first turn has not ended: what is drawn of them so far can be gone on from elsewhere."""
        return [key for key, one in self._open.items() if not one.turns]

    @property
    def drawing(self) -> bool:
        """Some episode has tokens to draw, now or after the answer to its last turn."""
        return self.busy or (self._environments.interactive and bool(self._open))

    def begin(self, prompt: Prompt, request: SampleRequest) -> None:
        """Raises ValueError, as the sampler does, for a request that cannot be drawn."""
        self._sampler.submit(request)
        self._open[request.key] = _Open(prompt=prompt, request=request)

    def take(self) -> list[Episode]:
        """Those whose verdict has come; the others that were answered go on to their next turn. Raises what a grader fell over."""
        ended: list[Episode] = []
        for key, answer in self._environments.answered():
            self._unanswered.discard(key)
            if isinstance(answer, EpisodeEnd):
                ended.append(_whole(self._open.pop(key), answer))
            else:
                self._go_on(self._open[key], answer)
        return ended

    def step(self) -> list[Episode]:
        """Advance the sampler, hand over the turns that ended, and take what is answered."""
        self.steps += 1
        self.overlapped += bool(self._unanswered)
        for sample in self._sampler.step():
            self._hand_over(sample)
        return self.take()

    def run(self) -> list[Episode]:
        """As `step`, waiting for answers where there is nothing else to do."""
        if not self.busy:
            self._environments.wait(LOOK_S)
        ended = self.take()
        return [*ended, *(self.step() if self.busy else [])]

    def drain(self, patience_s: float) -> list[Episode]:
        """Those whose verdict comes while one comes every `patience_s` at the latest. Episodes that would go on are dropped."""
        ended: list[Episode] = []
        while self._unanswered and self._environments.wait(patience_s):
            ended += self.take()
        return ended

    def close(self) -> None:
        """End the environments; open episodes are forgotten."""
        self._environments.close()
        self._open.clear()
        self._unanswered.clear()

    def _hand_over(self, sample: Sample) -> None:
        one = self._open[sample.key]
        one.turns.append(sample)
        self.tokens += len(sample.completion_ids)
        self.turns += 1
        self._unanswered.add(sample.key)
        turn = ModelTurn(
            token_ids=sample.completion_ids,
            text=self._codec.decode(sample.completion_ids.tolist()),
            finish_reason=sample.finish_reason,
            room=one.request.max_new_tokens - one.tokens,
        )
        self._environments.answer(sample.key, one.prompt, turn)

    def _go_on(self, one: _Open, answer: EnvironmentTurn) -> None:
        one.said.append(answer.token_ids)
        room = one.request.max_new_tokens - one.tokens
        if not len(answer.token_ids) or room < 1:
            raise ValueError(f"episode {one.request.key}: an environment's turn of {len(answer.token_ids)} tokens leaves room for {room}")
        seed = turn_seed(one.request.seed, len(one.turns))
        request = replace(one.request, prompt_ids=_ids(one, prompt=True), seed=seed, max_new_tokens=room, drawn=None)
        self._sampler.submit(request)


def turn_seed(seed: int, turn: int) -> int:
    """The seed of an episode's `turn`, counted from 0: the sample's own, and others for later turns, so that no draw comes twice."""
    return seed if turn == 0 else stream_seed(seed, "turn", turn)


def _ids(one: _Open, *, prompt: bool) -> np.ndarray:
    """Ids int32 of all turns so far in their order, behind those of the prompt where asked for."""
    parts: list[np.ndarray] = [one.prompt.token_ids] if prompt else []
    for place, turn in enumerate(one.turns):
        parts += [turn.completion_ids, *one.said[place : place + 1]]
    return np.concatenate(parts).astype(np.int32)


def _whole(one: _Open, end: EpisodeEnd) -> Episode:
    """All turns as one sample."""
    logprobs: list[np.ndarray] = []
    versions: list[np.ndarray] = []
    mask: list[np.ndarray] = []
    for place, turn in enumerate(one.turns):
        said = len(one.said[place]) if place < len(one.said) else 0
        logprobs += [turn.logprobs, np.zeros(said, np.float32)]
        versions += [turn.versions, np.full(said, turn.versions[-1], np.int32)]
        mask += [np.ones(len(turn.completion_ids), bool), np.zeros(said, bool)]
    first, last = one.turns[0], one.turns[-1]
    sample = replace(
        last,
        completion_ids=_ids(one, prompt=False),
        logprobs=np.concatenate(logprobs),
        versions=np.concatenate(versions),
        raw_logprobs=last.raw_logprobs if len(one.turns) == 1 else None,
        finish_reason=end.finish_reason,
        started_s=first.started_s,
    )
    return Episode(prompt=one.prompt, sample=sample, loss_mask=np.concatenate(mask), outcome=end.outcome)
