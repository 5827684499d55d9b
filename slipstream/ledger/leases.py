"""Deadlines of workers' leases: when each ends unless it is renewed. Not journalled: a restarted coordinator gives everyone a new one."""

from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.core.records import Progress


@dataclass(slots=True)
class _Lease:
    deadline_s: float
    progress: Progress
    moved_s: float  # when it last got on
    heard_s: float  # when it last renewed


class Leases:
    """The caller serialises access. All times are of the coordinator's clock."""

    def __init__(self, lease_s: float, stalled_s: float) -> None:
        self.lease_s, self._stalled_s = lease_s, stalled_s
        self._leases: dict[str, _Lease] = {}

    def begin(self, worker: str, now_s: float) -> None:
        """A lease from now on."""
        self._leases[worker] = _Lease(deadline_s=now_s + self.lease_s, progress=Progress(), moved_s=now_s, heard_s=now_s)

    def renew(self, worker: str, progress: Progress, busy: bool, now_s: float) -> None:
        """A worker that is alive but has tickets and does not get on (no token, no other phase) keeps the end of its lease as it is."""
        lease = self._leases[worker]
        if not busy or (progress.tokens, progress.phase) != (lease.progress.tokens, lease.progress.phase):
            lease.moved_s = now_s
        lease.progress, lease.heard_s = progress, now_s
        if now_s - lease.moved_s < self._stalled_s:
            lease.deadline_s = now_s + self.lease_s

    def end(self, worker: str) -> None:
        self._leases.pop(worker, None)

    def ended(self, now_s: float) -> Iterable[str]:
        """Workers whose lease is over, in the order in which they came."""
        return [worker for worker, lease in self._leases.items() if lease.deadline_s <= now_s]

    def progress(self) -> dict[str, Progress]:
        """What each worker last said of itself."""
        return {worker: lease.progress for worker, lease in self._leases.items()}

    def silent_s(self, now_s: float) -> dict[str, float]:
        """Seconds since each worker said it."""
        return {worker: now_s - lease.heard_s for worker, lease in self._leases.items()}
