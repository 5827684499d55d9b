"""Whether samplers draw with the weights that were published: what they hand in is held against it. Called by `coordinator.desk`.

A sampler that fails is in quarantine for its epoch: it gets no tickets, what it hands in is refused, and it is told to leave. It may
join again, and is tested again. Like all that the coordinator keeps beside the ledger this is lost with the process; whoever draws
with other weights is found out again at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.records import Rollout
from slipstream.runtime.coordinator.announcements import Announcements
from slipstream.runtime.coordinator.messages import MessageError, Prove

# Nats, mean difference of a canary's log-probs. Three times what the self-test allows of tokens that were drawn, where precision is
# low: a canary has few tokens, which nobody would have drawn, and unlikely tokens' log-probs move more with rounding. Weights of
# neighbouring versions may be closer than that; those are told apart by their digests.
BANDS = {"f32": 1e-3, "bf16": 0.3, "int8": 0.6, "fp8": 1.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a sampler is put in quarantine for."""

    version: int
    cause: str  # for people
    gap: float | None = None  # nats, between canaries


class Trust:
    """Holds what samplers say against what the learner announced."""

    def __init__(self, announcements: Announcements) -> None:
        self._announcements = announcements
        self._quarantined: set[tuple[str, int]] = set()  # workers with their epochs

    def quarantine(self, worker: str, epoch: int) -> None:
        self._quarantined.add((worker, epoch))

    def quarantined(self, worker: str, epoch: int) -> bool:
        return (worker, epoch) in self._quarantined

    def gap(self, message: Prove) -> float | None:
        """Nats, mean over the canary's tokens, between a sampler and the learner; None where the learner's are not known (any more).

        Raises MessageError where the canaries have different lengths."""
        expected, found = self._announcements.canary(message.version), message.canary
        if expected is None:
            return None
        if len(expected.logprobs) != len(found.logprobs):
            raise MessageError(f"prove: canary of {len(found.logprobs)} tokens; the learner's has {len(expected.logprobs)}")
        gaps = [abs(one - other) for one, other in zip(found.logprobs, expected.logprobs, strict=True)]
        return sum(gaps) / len(gaps)

    def unproven(self, message: Prove, gap: float | None) -> Fault | None:
        """Other weights than were announced, or a gap that the two precisions do not explain."""
        version, published = message.version, self._announcements.digest(message.version)
        if published not in (None, message.digest):
            return Fault(
                version=version, cause=f"it loaded weights with digest {message.digest}; those of version {version} have {published}"
            )
        expected, computed_by = self._announcements.canary(version), message.canary.computed_by
        if expected is None or gap is None or gap <= (allowed := band(computed_by, expected.computed_by)):
            return None
        cause = f"its log-probs of the canary are {gap:.3g} nats off the learner's ({computed_by}: at most {allowed:g})"
        return Fault(version=version, cause=f"{cause}, with weights that it calls version {version}", gap=gap)

    def fault(self, rollouts: Sequence[Rollout]) -> Fault | None:
        """The first rollout whose last token is of other weights than were announced under its version.

        None too for a version that the coordinator was not told of since it or the learner started: nothing is known against it.
        """
        for rollout in rollouts:
            version = int(rollout.versions[-1])
            published = self._announcements.digest(version)
            if published not in (None, rollout.weight_digest):
                drawn = f"weights with digest {rollout.weight_digest}" if rollout.weight_digest else "weights without a digest"
                name = f"rollout {rollout.ticket_id}/{rollout.sample_index}"
                return Fault(version=version, cause=f"{name} was drawn by {drawn}; those of version {version} have {published}")
        return None


def band(one: str, other: str) -> float:
    """Nats by which canaries may differ that were computed by these. Exact arithmetic on one kind of device agrees to the bit."""
    if one == other and one.endswith("/exact"):
        return 0.0
    return max(BANDS[computed_by.split("/")[1]] for computed_by in (one, other))
