"""The canary of a version: log-probs of fixed tokens, by a sampler's engine after each load and by the learner at each publication.

The coordinator compares the two (`coordinator.trust`). Digests say which bytes a sampler has fetched; canaries, what it computes with
them: other weights in the engine, a broken cast, a device that computes wrongly. Called by `processes.sampler` and `processes.learner`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.errors import RunFailed
from slipstream.core.ports import Sampler, WeightStore
from slipstream.core.records import Sample, SampleRequest, TrainingSequence, WeightVersion
from slipstream.engine.requests import LARGEST_BIAS
from slipstream.models.spec import ModelSpec
from slipstream.train.learner import Learner

TOKENS = 8  # the first half is the prompt
TICKET = "canary"  # no ticket is called so


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What is computed on. It is of no task, so that a sampler's kept prefixes stay what they would be."""

    prompt_ids: np.ndarray  # int32 [prompt_tokens]
    forced: int  # the token that follows each time, whatever the model thinks
    new_tokens: int

    def request(self, version: int) -> SampleRequest:
        """Its raw log-probs are those asked for: at temperature 1, without the bias that forces the token."""
        return SampleRequest(
            key=(TICKET, version),
            prompt_ids=self.prompt_ids,
            seed=0,
            max_new_tokens=self.new_tokens,
            temperature=0.0,
            stop_ids=(),
            logit_bias=((self.forced, LARGEST_BIAS),),
        )

    def sequence(self) -> TrainingSequence:
        """For the learner to score at temperature 1."""
        ids = np.concatenate([self.prompt_ids, np.full(self.new_tokens, self.forced, np.int32)])
        zeros = np.zeros(len(ids), np.float32)
        return TrainingSequence(
            token_ids=ids,
            loss_mask=np.arange(len(ids)) >= len(self.prompt_ids),
            advantages=zeros,
            behaviour_logprobs=zeros,
            versions=np.full(len(ids), -1, np.int32),
        )


def canary(spec: ModelSpec, max_tokens: int) -> Canary:
    """The model's, where sequences have at most `max_tokens` (at least 2)."""
    known = spec.vocab if spec.known_tokens is None else spec.known_tokens
    tokens = min(TOKENS, max_tokens)
    ids = (np.arange(1, tokens // 2 + 2, dtype=np.int64) * 7919 % known).astype(np.int32)
    return Canary(prompt_ids=ids[:-1], forced=int(ids[-1]), new_tokens=tokens - tokens // 2)


class CanarySampler:
    """A sampler that also draws the canary after each load, for `tell` (weights, log-probs float32 [new_tokens]).

    Where nothing runs at the load it is drawn at once, before any ticket is claimed; else among the samples that run, as one more
    request. What is drawn by two versions is not told: the later one has a canary of its own.
    """

    def __init__(self, inner: Sampler, drawn: Canary, tell: Callable[[WeightVersion, np.ndarray], None]) -> None:
        self.id, self.sampler_class = inner.id, inner.sampler_class
        self._inner, self._canary, self._tell = inner, drawn, tell
        self._loaded: dict[int, WeightVersion] = {}  # whose canary is not drawn yet, without their parameters

    @property
    def version(self) -> int:
        return self._inner.version

    def load(self, weights: WeightVersion) -> None:
        inner, version = self._inner, weights.version
        inner.load(weights)
        idle = not (inner.running() or inner.waiting())
        self._loaded[version] = WeightVersion(lineage=weights.lineage, version=version, params=None, digest=weights.digest)
        inner.submit(self._canary.request(version))
        while idle and version in self._loaded:
            self._take(inner.step())

    def waiting(self) -> int:
        return self._inner.waiting()

    def running(self) -> int:
        return self._inner.running()

    def free_slots(self) -> int:
        return self._inner.free_slots()

    def submit(self, request: SampleRequest) -> None:
        self._inner.submit(request)

    def step(self) -> list[Sample]:
        return self._take(self._inner.step())

    def _take(self, ended: Sequence[Sample]) -> list[Sample]:
        """The others of them."""
        for sample in ended:
            if sample.key[0] == TICKET:
                weights = self._loaded.pop(sample.key[1])
                if (sample.versions == weights.version).all():
                    if sample.raw_logprobs is None:
                        raise RunFailed(f"{self.id} tells no log-probs of the model's own distribution, so its weights cannot be proven")
                    self._tell(weights, sample.raw_logprobs)
        return [sample for sample in ended if sample.key[0] != TICKET]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStore:
    """A learner's store that tells `expect` (version, log-probs float32 [new_tokens]) before each version is published."""

    store: WeightStore
    learner: Learner
    canary: Canary
    expect: Callable[[int, np.ndarray], None]

    def publish(self, weights: WeightVersion) -> None:
        (scored,) = self.learner.score([self.canary.sequence()], weights, temperature=1.0)
        self.expect(weights.version, scored[len(self.canary.prompt_ids) :])
        self.store.publish(weights)

    def newest(self) -> int:
        return self.store.newest()

    def has(self, version: int) -> bool:
        return self.store.has(version)

    def get(self, version: int) -> WeightVersion:
        return self.store.get(version)
