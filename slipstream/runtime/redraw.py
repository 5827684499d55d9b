"""Rollouts drawn again from what was recorded of them, one turn of the model at a time. An actor around an engine; see `replay`.

A turn's tokens follow from the ids before it, its seed and the weights, with each change of version after as many tokens as were
recorded. Nothing depends on the company it was in, so turns whose versions changed alike are drawn together, as many as one prefill takes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from slipstream.core.ports import WeightStore
from slipstream.core.records import Partial, Rollout, Sample, SampleRequest
from slipstream.engine.engine import PREFILL_CALLS, PREFILL_TOKENS, Engine, OnSwap
from slipstream.loop.episodes import turn_seed

Versions = tuple[tuple[int, int], ...]  # (version, tokens that it drew), in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the model wrote at one go."""

    rollout: Rollout
    number: int  # in its episode, from 0
    start: int  # of its tokens in the completion
    end: int

    @property
    def versions(self) -> Versions:
        return tuple((int(version), len(list(run))) for version, run in groupby(self.rollout.versions[self.start : self.end]))

    @property
    def name(self) -> str:
        """For people."""
        of = f", turn {self.number + 1}" if self.number else ""
        return f"ticket {self.rollout.ticket_index}, sample {self.rollout.sample_index}{of}"


def turns(rollout: Rollout) -> Iterator[Turn]:
    """The stretches of tokens that the model chose."""
    edges = np.flatnonzero(np.diff(rollout.loss_mask.astype(np.int8), prepend=0, append=0))
    for number, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
        yield Turn(rollout=rollout, number=number, start=int(start), end=int(end))


class Redraw:
    """`on_swap` (sampler id, version) says what the sampler did with its keys and values when that version came to running samples."""

    def __init__(
        self, engine: Engine, store: WeightStore, temperature: float, stop_ids: tuple[int, ...], on_swap: Callable[[str, int], OnSwap]
    ) -> None:
        self._engine, self._store, self._temperature, self._stop_ids, self._on_swap = engine, store, temperature, stop_ids, on_swap

    def draw(self, wanted: Iterable[Turn], slots: int) -> Iterator[tuple[Turn, Sample]]:
        """Each turn with what comes of it now. All their versions must be in the store."""

        def alike(turn: Turn) -> tuple[Versions, str]:
            return turn.versions, turn.rollout.sampler_id if len(turn.versions) > 1 else ""

        for _, members in groupby(sorted(wanted, key=alike), key=alike):
            for some in _together(list(members), slots):
                yield from self._draw(some)

    def taken_over(self, turn: Turn) -> Iterator[Sample]:
        """The turn as another sampler would have gone on with it, after one prefill, at each change of version, the latest first."""
        for change in range(len(turn.versions) - 1, 0, -1):
            given = sum(tokens for _, tokens in turn.versions[:change])
            ((_, head),) = self._draw([replace(turn, end=turn.start + given)])
            ((_, tail),) = self._draw([turn], change)
            ids, logprobs = np.append(head.completion_ids, tail.completion_ids[given:]), np.append(head.logprobs, tail.logprobs[given:])
            yield replace(tail, completion_ids=ids, logprobs=logprobs)

    def _draw(self, some: Sequence[Turn], change: int = 0) -> Iterator[tuple[Turn, Sample]]:
        """From the given change of version on; the tokens before it are as recorded."""
        by_key = {(str(place), 0): turn for place, turn in enumerate(some)}
        given = sum(tokens for _, tokens in some[0].versions[:change])
        (first, count), *later = some[0].versions[change:]
        count += given
        self._engine.load(self._store.get(first))
        for key, turn in by_key.items():
            self._engine.submit(self._request(key, turn, given))
        found: list[Sample] = []
        for version, more in later:
            while len(found) < len(some) and self._reached(by_key) < count:
                found += self._engine.step()
            self._engine.load(self._store.get(version), self._on_swap(some[0].rollout.sampler_id, version))
            count += more
        while len(found) < len(some):
            found += self._engine.step()
        for sample in found:
            yield by_key[sample.key], sample

    def _reached(self, keys: Iterable[tuple[str, int]]) -> int:
        """Tokens that a turn has drawn or is drawing: a swap comes behind the dispatch in flight."""
        return max((len(self._engine.drawn(key)[0]) + self._engine.drawing(key) for key in keys), default=0)

    def _request(self, key: tuple[str, int], turn: Turn, given: int) -> SampleRequest:
        rollout, own = turn.rollout, slice(turn.start, turn.start + given)
        parts = {"completion_ids": rollout.completion_ids[own], "logprobs": rollout.logprobs[own], "versions": rollout.versions[own]}
        return SampleRequest(
            key=key,
            prompt_ids=np.concatenate([rollout.prompt_ids, rollout.completion_ids[: turn.start]]),
            seed=turn_seed(rollout.seed, turn.number),
            max_new_tokens=turn.end - turn.start,
            temperature=self._temperature,
            stop_ids=self._stop_ids,
            drawn=Partial(ticket_index=rollout.ticket_index, sample=rollout.sample_index, **parts) if given else None,
        )


def _together(members: list[Turn], slots: int) -> Iterator[list[Turn]]:
    """Cut so that all of a cut draw their first tokens in the same dispatch."""
    some: list[Turn] = []
    tokens = 0
    for turn in members:
        prompt = len(turn.rollout.prompt_ids) + turn.start
        if some and (len(some) == slots or tokens + prompt > PREFILL_CALLS * PREFILL_TOKENS):
            yield some
            some, tokens = [], 0
        some.append(turn)
        tokens += prompt
    yield some
