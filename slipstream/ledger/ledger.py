"""The ledger of one process: the state machine behind a lock, journalled before it moves. Implements `core.ports.Ledger`.

Opening an existing journal replays it; `restart` then puts the run back to the version of the checkpoint in use.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from slipstream.core.clock import Clock
from slipstream.core.codec import rollout_from_bytes, rollout_to_bytes
from slipstream.core.errors import RunFailed, TransitionError
from slipstream.core.ids import group_id, ticket_id
from slipstream.core.ports import PromptStream
from slipstream.core.records import Batch, Rollout, Ticket
from slipstream.ledger.events import (
    Batched,
    Claimed,
    Event,
    Forgotten,
    GroupDropped,
    Opened,
    Restarted,
    SampleDropped,
    Submitted,
    Trained,
    TurnedAway,
)
from slipstream.ledger.journal import Journal
from slipstream.ledger.rules import ZERO_VARIANCE, Grant, claimable, gives_way, next_batch, surplus, turned_away, wanted_version
from slipstream.ledger.state import LedgerState, Policy
from slipstream.ledger.transition import apply


class Ledger:
    """Thread-safe. `sequence` grows with every change and `wait_change` sleeps until it does, so that waiting costs nothing."""

    def __init__(self, path: Path, policy: Policy, prompts: PromptStream, clock: Clock) -> None:
        self._journal = Journal(path)
        self._prompts, self._clock = prompts, clock
        self._state = LedgerState(policy=policy)
        self._batch: Batch | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sequence = 0
        try:
            self._replay(path)
        except RunFailed:
            self._journal.close()
            raise

    def _replay(self, path: Path) -> None:
        """Come to the journal's state; a new journal begins with the rules."""
        events = list(self._journal.events())
        try:
            if events and not isinstance(events[0], Opened):
                raise TransitionError("its first event is missing")
            for event in events:
                self._state = apply(event, self._state)
        except TransitionError as error:
            raise RunFailed(f"{path} is damaged, or run.toml was changed since: {error}") from error
        if not events:
            with self._lock:
                self._record([Opened(**asdict(self._state.policy))])

    @property
    def state(self) -> LedgerState:
        """A snapshot; immutable."""
        return self._state

    @property
    def sequence(self) -> int:
        """Grows with every change."""
        return self._sequence

    def wait_change(self, seen: int, timeout_s: float) -> bool:
        """Sleep until `sequence` is no longer `seen`, at most `timeout_s`; False when nothing changed."""
        with self._lock:
            return self._changed.wait_for(lambda: self._sequence != seen, timeout_s)

    def restart(self, version: int) -> None:
        """Go on from the checkpoint of `version`: leases end, later batches are served again from the journal."""
        with self._lock:
            if version > self._state.version:
                raise RunFailed(
                    f"the journal knows {self._state.version} trained steps, the checkpoint {version}: they are of different runs"
                )
            if version * self._state.policy.prompts_per_step < self._state.forgotten:
                raise RunFailed(f"the checkpoint of step {version} is older than the batches that the journal still has; start a new run")
            self._record([Restarted(version=version)])

    def wanted_version(self, newest: int) -> int | None:
        return wanted_version(self._state, newest)

    def claim(self, worker: str, tickets: int, loaded_version: int) -> list[Ticket]:
        with self._lock:
            grants = claimable(self._state, tickets, loaded_version)
            if grants:
                self._record([Claimed(index=grant.index, worker=worker, floor=grant.version) for grant in grants])
            return [self._ticket(grant) for grant in grants]

    def submit(self, rollouts: Sequence[Rollout]) -> None:
        with self._lock:
            state = self._state
            events: list[Event] = []
            contents: list[tuple[int, int, bytes]] = []
            for rollout in rollouts:
                index, sample = rollout.ticket_index, rollout.sample_index
                if turned_away(state, index, sample):
                    event = TurnedAway(index=index, sample=sample)
                elif rollout.outcome.reward is None:
                    event = SampleDropped(index=index, sample=sample, reason=rollout.outcome.kind.value)
                else:
                    content = rollout_to_bytes(rollout)
                    reward, oldest = rollout.outcome.reward, rollout.age_version
                    event = Submitted(index=index, sample=sample, content=_digest(content), oldest=oldest, reward=reward)
                    contents.append((index, sample, content))
                state = apply(event, state)
                events.append(event)
                if not isinstance(event, TurnedAway) and gives_way(state, index):
                    events.append(GroupDropped(index=index, step=state.batched, reason=ZERO_VARIANCE))
                    state = apply(events[-1], state)
            self._record(events, contents)

    def batch(self, step: int) -> Batch | None:
        with self._lock:
            if step == self._state.batched:
                members = next_batch(self._state)
                if members is None:
                    return None
                dropped = [GroupDropped(index=index, step=step, reason=ZERO_VARIANCE) for index in surplus(self._state, members)]
                self._record([*dropped, Batched(step=step, members=tuple(members))])
            if self._batch is None or self._batch.step != step:
                self._batch = self._read_batch(step)
            return self._batch

    def commit(self, step: int) -> None:
        with self._lock:
            self._record([Trained(step=step)])

    def sync(self) -> None:
        """Make the journal survive a power cut; before a checkpoint counts as existing."""
        with self._lock:
            self._journal.sync()

    def forget_before(self, step: int) -> None:
        """Batches before `step` will never be served again: the oldest checkpoint kept is `step` or newer."""
        with self._lock:
            tickets = [index for index, entry in self._state.entries.items() if entry.step is not None and entry.step < step]
            event = Forgotten(step=step)
            state = apply(event, self._state)
            self._journal.forget(self._clock.now_s(), event, tickets)
            self._state = state

    def wake(self) -> None:
        """Let everyone who waits look again, though nothing changed here (new weights, a stop)."""
        with self._lock:
            self._sequence += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._journal.close()

    def _record(self, events: Sequence[Event], rollouts: Sequence[tuple[int, int, bytes]] = ()) -> None:
        """Check the events, write them, then move: nothing is visible that is not on disk, nothing on disk that is not legal."""
        state = self._state
        for event in events:
            state = apply(event, state)
        self._journal.append(self._clock.now_s(), events, rollouts)
        self._state = state
        self._sequence += 1
        self._changed.notify_all()

    def _ticket(self, grant: Grant) -> Ticket:
        entry = self._state.entries[grant.index]
        policy = self._state.policy
        remaining = tuple(sample for sample in range(policy.group_size) if sample not in entry.submitted and sample not in entry.dropped)
        return Ticket(
            id=ticket_id(grant.index),
            index=grant.index,
            group_id=group_id(grant.index),
            prompt=self._prompts.prompt(grant.index),
            samples=remaining,
            version_floor=entry.floor,
            version_pinned=grant.version if policy.pinned else None,
        )

    def _read_batch(self, step: int) -> Batch:
        members = self._state.members(step)
        if not members:
            raise RunFailed(f"batch {step} is not in the journal any more; only batches after the kept checkpoints are")
        left_out = self._state.left_out(step)
        return Batch(step=step, rollouts=self._rollouts(members), dropped=self._rollouts(left_out), refilled_groups=len(left_out))

    def _rollouts(self, tickets: Sequence[int]) -> tuple[Rollout, ...]:
        return tuple(rollout_from_bytes(content) for index in tickets for content in self._contents(index))

    def _contents(self, index: int) -> list[bytes]:
        """Bytes of a ticket's rollouts by sample index, exactly those that were handed in."""
        contents = self._journal.rollouts(index)
        if {sample: _digest(content) for sample, content in contents.items()} != self._state.entries[index].submitted:
            raise RunFailed(
                f"the journal is damaged: the rollouts of {ticket_id(index)} are not those that were handed in; start a new run"
            )
        return list(contents.values())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
