"""Whether samplers draw with the weights that were published: what they hand in is held against it. Called by `coordinator.desk`.

A sampler that fails is in quarantine for its epoch: it gets no tickets, what it hands in is refused, and it is told to leave. It may
join again, and is tested again. Like all that the coordinator keeps beside the ledger this is lost with the process; whoever draws
with other weights is found out again at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.records import Rollout
from slipstream.runtime.coordinator.announcements import Announcements
from slipstream.runtime.coordinator.messages import MessageError, Prove, Ratio

# Nats, mean difference of a canary's log-probs. Three times what the self-test allows of tokens that were drawn, where precision is
# low: a canary has few tokens, which nobody would have drawn, and unlikely tokens' log-probs move more with rounding. Weights of
# neighbouring versions may be closer than that; those are told apart by their digests.
STANDARD_ERRORS = 4.0  # by which a mean ratio may be out of its band by chance
BANDS = {"f32": 1e-3, "bf16": 0.3, "int8": 0.6, "fp8": 1.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a sampler is put in quarantine for."""

    version: int
    cause: str  # for people
    gap: float | None = None  # nats, between canaries


class Trust:
    """Holds what samplers say against what the learner announced."""

    def __init__(self, announcements: Announcements, ratio_band: float, ratio_tokens: int) -> None:
        self._announcements, self._ratio_band, self._ratio_tokens = announcements, ratio_band, ratio_tokens
        self._windows: dict[str, Window] = {}  # of ratios, by worker
        self._quarantined: set[tuple[str, int]] = set()  # workers with their epochs

    @property
    def count(self) -> int:
        """Quarantines so far."""
        return len(self._quarantined)

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

    def window(self, worker: str, epoch: int, ratio: Ratio) -> "Window | None":
        """The sampler's importance ratios so far, one more rollout's included, once there are enough of them; then they begin anew."""
        window = self._windows.get(worker)
        if window is None or window.epoch != epoch:
            window = Window(epoch=epoch)
        self._windows[worker] = window = window.with_(ratio)
        if window.tokens < self._ratio_tokens:
            return None
        del self._windows[worker]
        return window

    def off_ratio(self, window: "Window") -> Fault | None:
        """Probabilities that are not those which the tokens were drawn with: over such draws the ratio's mean is 1, whatever the lag."""
        allowed = self._ratio_band + STANDARD_ERRORS * window.error
        if not self._ratio_band or abs(window.mean - 1) <= allowed:
            return None
        found = f"its mean importance ratio at equal weights is {window.mean:.3f} over {window.tokens} tokens"
        return Fault(version=window.version, cause=f"{found}; at most {allowed:.2g} off 1 is allowed (trust.ratio_band)")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Importance ratios of one sampler in one epoch, summed."""

    epoch: int
    tokens: int = 0
    total: float = 0.0
    squares: float = 0.0
    version: int = 0  # the newest

    def with_(self, ratio: Ratio) -> "Window":
        return Window(
            epoch=self.epoch,
            tokens=self.tokens + ratio.tokens,
            total=self.total + ratio.total,
            squares=self.squares + ratio.squares,
            version=max(self.version, ratio.version),
        )

    @property
    def mean(self) -> float:
        return self.total / self.tokens

    @property
    def error(self) -> float:
        """Standard error of the mean, as if tokens were independent."""
        return (max(0.0, self.squares / self.tokens - self.mean**2) / self.tokens) ** 0.5


def band(one: str, other: str) -> float:
    """Nats by which canaries may differ that were computed by these. Exact arithmetic on one kind of device agrees to the bit."""
    if one == other and one.endswith("/exact"):
        return 0.0
    return max(BANDS[computed_by.split("/")[1]] for computed_by in (one, other))
