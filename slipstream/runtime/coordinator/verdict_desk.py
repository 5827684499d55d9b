"""The coordinator's calls about verdicts: who may make them, long polls, figures. An actor on the event loop; called by `coordinator.app`.

It touches no disk and never waits for the ledger's thread, whose newest state it only reads: verdicts are as quick as the network.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from slipstream.core.clock import Clock, SystemClock
from slipstream.runtime.coordinator import figures
from slipstream.runtime.coordinator.desk import Desk
from slipstream.runtime.coordinator.long_poll import long_poll
from slipstream.runtime.coordinator.messages import Call, Message, read_message
from slipstream.runtime.coordinator.verdict_messages import Ask, Asked, Collect, Collected, HandIn, Take, Taken
from slipstream.runtime.coordinator.verdicts import Party, VerdictReceipt, Verdicts
from slipstream.telemetry.status import GradingStatus

EXPIRE_S = 1.0  # between two looks at what takes too long

AnyCall = TypeVar("AnyCall", bound=Call)
Result = TypeVar("Result")


class VerdictDesk:
    """One coordinator's. Everything here is called in the event loop's thread."""

    def __init__(self, desk: Desk, clock: Clock | None = None) -> None:
        self._desk, self._clock = desk, clock or SystemClock()
        self._verdicts = Verdicts()
        self._expired_s = self._clock.now_s()
        self._seen: tuple[object, bool] = (None, False)  # workers, and whether the run is done, as of the last look
        self._graders: frozenset[str] = frozenset()
        self._taking: dict[Party, Take] = {}  # each grader's newest call
        self._changes: dict[Party | None, asyncio.Event] = {}  # waited for by one sampler, or (None) by all graders

    def routes(self) -> list[web.RouteDef]:
        """One POST a call."""
        return [
            self._route("ask", Ask, "sampler", self._ask),
            self._route("collect", Collect, "sampler", self._collect),
            self._route("take", Take, "grader", self._take),
            self._route("hand_in", HandIn, "grader", self._hand_in),
        ]

    def look(self) -> None:
        """Take note of who has come and gone, and of what takes too long. To be called whenever the ledger may have changed."""
        now_s = self._clock.now_s()
        if now_s - self._expired_s > EXPIRE_S:
            self._expired_s = now_s
            for name in self._verdicts.expire(now_s):
                self._desk.emit("coordinator", "verdict_overdue", reply=name)
                self._tell(None)
        workers, done = self._desk.workers, self._desk.done
        if workers is self._seen[0] and done == self._seen[1]:
            return
        self._seen = workers, done
        here = {name: worker for name, worker in workers.items() if worker.here}
        self._graders = frozenset(name for name, worker in here.items() if worker.kind == "grader")
        self._verdicts.keep({name: worker.epoch for name, worker in here.items()})
        self._taking = {party: call for party, call in self._taking.items() if party[0] in here}
        self.wake()

    def wake(self) -> None:
        """Let all long polls look again."""
        for party in list(self._changes):
            self._tell(party)

    def status(self) -> GradingStatus:
        """For people."""
        return self._verdicts.moment(self._clock.now_s())

    def figures(self) -> list[list[str]]:
        """Families of /metrics."""
        verdicts, now = self._verdicts, self.status()
        stages = {str(stage): count for stage, count in verdicts.stages().items()}
        receipts = {str(receipt): verdicts.receipts[receipt] for receipt in VerdictReceipt}
        return [
            figures.family("verdicts", "counter", "Accepted, by grader.", figures.labelled("grader", verdicts.verdicts)),
            figures.family("verdicts_handed_in", "counter", "By what became of them.", figures.labelled("receipt", receipts)),
            figures.family("verdict_seconds", "counter", "From asking to verdict, summed.", {"": verdicts.waited_s}),
            figures.family("replies", "gauge", "By where they are on their way to a verdict.", figures.labelled("stage", stages)),
            figures.family("verdict_oldest_seconds", "gauge", "Since the oldest of them was asked for.", {"": now.oldest_s}),
        ]

    async def _ask(self, message: Ask, owner: Party) -> Asked:
        taken = self._verdicts.ask(owner, message.replies, self._clock.now_s())
        self._tell(None)
        return Asked(taken=taken)

    async def _collect(self, message: Collect, owner: Party) -> Collected | None:
        unknown = self._verdicts.collect(owner, message.taken, message.waiting)

        def found() -> Collected | None:
            verdicts = self._verdicts.done(owner)
            return Collected(verdicts=verdicts, unknown=unknown) if verdicts or unknown else None

        return await self._until(owner, message, found, message.wait_s)

    async def _take(self, message: Take, grader: Party) -> Taken | None:
        self._verdicts.give_back(grader, message.holding)
        self._taking[grader] = message

        def found() -> Taken | None:
            alone, newest = self._graders <= {grader[0]}, self._taking.get(grader) is message
            room = message.room if newest else 0  # the answer to an older call goes nowhere
            orders = self._verdicts.take(grader, room, alone=alone, now_s=self._clock.now_s())
            return Taken(orders=orders, done=self._desk.done) if orders or self._desk.done or not room else None

        return await self._until(None, message, found, message.wait_s)

    async def _hand_in(self, message: HandIn, grader: Party) -> None:
        owners = {self._verdicts.owner(verdict.name) for verdict in message.verdicts}
        for verdict in message.verdicts:
            receipt = self._verdicts.hand_in(grader[0], verdict, self._clock.now_s())
            if receipt is VerdictReceipt.AGAIN:
                detail = verdict.outcome.detail
                self._desk.emit("coordinator", "verdict_failed", worker=grader[0], reply=verdict.name, detail=detail)
                owners.add(None)  # another grader may have it
        for who in owners:
            self._tell(who)

    async def _until(self, who: Party | None, message: Call, look: Callable[[], Result | None], wait_s: float) -> Result | None:
        """What `look` finds, now or after a change for `who` within the time. Raises StaleEpoch once the caller is not here any more."""

        def change() -> asyncio.Event:
            self._desk.party(message)
            return self._changes.setdefault(who, asyncio.Event())

        async def looked() -> Result | None:
            return look()

        return await long_poll(looked, change, wait_s, lambda: self._desk.closing)

    def _tell(self, who: Party | None) -> None:
        if (change := self._changes.pop(who, None)) is not None:
            change.set()

    def _route(self, name: str, kind: type[AnyCall], by: str, act: Callable[[AnyCall, Party], Awaitable[Message | None]]) -> web.RouteDef:
        async def handle(request: web.Request) -> web.Response:
            message = read_message(kind, await request.read())
            self.look()
            answer = await act(message, self._desk.party(message, by))
            return web.Response(status=204) if answer is None else _json(answer)

        return web.post(f"/v1/{name}", handle)


def _json(answer: Message) -> web.Response:
    return web.Response(text=answer.model_dump_json(), content_type="application/json")
