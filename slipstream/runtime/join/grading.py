"""Verdicts by graders that are somewhere else. Implements `core.ports.Environments` for tasks of one turn; made for one sampler's epoch.

Two threads call the coordinator: one asks for verdicts, one collects them. A lease that has ended is noticed by the sampler, which
closes this and begins again. Where nobody judges, it waits; nothing is judged here instead.
"""

import threading
from collections.abc import Callable

from slipstream.core.errors import StaleEpoch
from slipstream.core.ids import ticket_index
from slipstream.core.ports import EpisodeKey
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, FinishReason, ModelTurn, Prompt
from slipstream.runtime.coordinator.verdict_messages import AT_ONCE, Asked, Collected, Reply, content_of
from slipstream.runtime.join.caller import Ending
from slipstream.runtime.join.membership import Seat
from slipstream.runtime.join.pending import Pending
from slipstream.runtime.worker import Worker

POLL_S = 20.0
PAUSE_S = 0.2  # before the coordinator is asked again that had no room, or that knows us no more


class RemoteGrading:
    """`on_answer` is called, from a thread of its own, whenever there is something to take."""

    interactive = False

    def __init__(self, seat: Seat, on_answer: Callable[[], None] = lambda: None) -> None:
        self._seat, self._on_answer = seat, on_answer
        self._changed = threading.Condition()
        self._pending = Pending()
        self._open: dict[str, tuple[EpisodeKey, FinishReason]] = {}  # by the reply's name
        self._answers: list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]] = []
        self._closed = threading.Event()
        self._workers = [Worker("ask", self._ask, self._wake), Worker("collect", self._collect, self._wake)]
        for worker in self._workers:
            worker.start()

    def answer(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        reply = Reply(ticket_index=ticket_index(key[0]), sample=key[1], content=content_of(prompt, turn.text), text=turn.text)
        with self._changed:
            self._open[reply.name] = (key, turn.finish_reason)
            self._pending.add(reply)
            self._changed.notify_all()

    def answered(self) -> list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]]:
        for worker in self._workers:
            worker.check()
        with self._changed:
            answers, self._answers = self._answers, []
        return answers

    def wait(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._answers) or self._failed, timeout_s)

    def close(self) -> None:
        """The threads end with their present calls. May be called again."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    @property
    def _failed(self) -> bool:
        return any(worker.failure for worker in self._workers)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._on_answer()

    def _ask(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or bool(self._pending.unasked(1)))
                replies = self._pending.unasked(AT_ONCE)
            if not replies or self._closed.is_set():
                continue
            try:
                answer = self._seat.call("ask", {"replies": [_plain(reply) for reply in replies]})
            except StaleEpoch:
                self._closed.wait(PAUSE_S)
                continue
            except Ending:
                return
            taken = Asked.model_validate_json(answer.body).taken
            with self._changed:
                self._pending.asked(replies[:taken])
                self._changed.notify_all()
            if taken < len(replies):
                self._closed.wait(PAUSE_S)

    def _collect(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or self._pending.waits)
                had, waiting = self._pending.report()
            if self._closed.is_set():
                continue
            wait_s = min(POLL_S, self._seat.joined.lease_s)
            try:
                answer = self._seat.call("collect", {"taken": had, "waiting": waiting, "wait_s": wait_s}, wait_s=wait_s)
            except StaleEpoch:
                self._closed.wait(PAUSE_S)
                continue
            except Ending:
                return
            found = Collected(verdicts=[], unknown=[]) if answer.status == 204 else Collected.model_validate_json(answer.body)
            self._receive(had, found)

    def _receive(self, had: list[str], found: Collected) -> None:
        with self._changed:
            for verdict in self._pending.received(had, found.verdicts, found.unknown):
                key, finish_reason = self._open.pop(verdict.name)
                self._answers.append((key, EpisodeEnd(outcome=verdict.outcome, finish_reason=finish_reason)))
            self._changed.notify_all()
        if found.verdicts:
            self._on_answer()


def _plain(reply: Reply) -> dict[str, object]:
    return {"ticket_index": reply.ticket_index, "sample": reply.sample, "content": reply.content, "text": reply.text}
