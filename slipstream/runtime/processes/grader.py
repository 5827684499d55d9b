"""The process of `slipstream grader`: joins by URL, takes replies, judges them as a sampler would, hands the verdicts in. No jax here.

It needs the run's data and, of a pretrained model, the words, but no weights. SIGTERM is a notice that the machine goes: it takes no
more, hands in what is judged within a few seconds, gives back the rest, and leaves. A lease that has ended means that its replies are
another's: it joins anew and begins again with nothing.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Sequence

from slipstream.core.errors import StaleEpoch, UsageError
from slipstream.core.ids import ticket_id
from slipstream.core.records import EpisodeEnd, FinishReason, ModelTurn, Outcome, Progress, Prompt
from slipstream.envs.host import EnvironmentHost
from slipstream.envs.task import Task
from slipstream.loop.phases import Phases
from slipstream.runtime.coordinator.verdict_messages import Order, Reply, content_of
from slipstream.runtime.grader_check import check_grader
from slipstream.runtime.join.address import JoinSettings
from slipstream.runtime.join.orders import Orders
from slipstream.runtime.processes.participant import FAREWELL_S, Participant
from slipstream.runtime.shape import open_shape
from slipstream.runtime.stop import StopFlag

LOOK_S = 0.5  # longest sleep between two looks at what the coordinator wants
REST_S = 0.05  # without orders before that is a phase of its own
PATIENCE_S = 5.0  # at a stop, with verdicts that do not come


def grade(settings: JoinSettings, stop: StopFlag) -> None:
    """Judge until the run is over or `stop` is set.

    Raises UsageError when the coordinator refuses to be joined or the data here are not the run's, RunFailed when judging fails.
    """
    participant = Participant("grader", settings, {}, stop)
    try:
        _Grader(participant, stop).run()
    finally:
        participant.end(leaves=True)


class _Grader:
    """One process's."""

    def __init__(self, participant: Participant, stop: StopFlag) -> None:
        self._one, self._stop = participant, stop
        self._phases = Phases(participant.name, participant.clock, participant.events)
        self._phases.enter("start")
        self._judged = 0
        self._news = threading.Event()
        self._orders = Orders(participant.seat, self._judge, self._news.set)
        self._fault: UsageError | None = None

    def run(self) -> None:
        one = self._one
        renewer = one.keep_lease(self._progress, dict, self._news.set)
        task = open_shape(one.config).task
        check_grader(task, one.events, one.name)
        self._task, self._host = task, EnvironmentHost(task, clock=one.clock, on_answer=self._news.set, events=one.events)
        print(f"slipstream: {one.name} joined run {one.seat.joined.run_id} at {one.caller.url}", file=sys.stderr, flush=True)
        watchdog = one.watch([self._phases])
        self._phases.enter("wait")
        self._orders.start()
        try:
            while not self._ended():
                one.check()
                self._orders.check()
                try:
                    if renewer.stale:
                        raise StaleEpoch("the lease has ended")
                    self._turn()
                except StaleEpoch as error:
                    self._begin_again(str(error))
            self._farewell()
        finally:
            self._phases.enter("ended")
            self._orders.end()
            watchdog.close()
            self._host.close()

    def _ended(self) -> bool:
        if self._fault is not None:
            raise self._fault
        return self._stop.is_set() or self._orders.over.is_set() or self._one.told_to_go

    def _turn(self) -> None:
        """Wait for verdicts, or for orders; hand in what is judged."""
        resting = not self._orders.held
        if not self._news.wait(REST_S if resting else LOOK_S) and resting:
            self._phases.enter("wait")
            self._news.wait(LOOK_S)
        self._news.clear()
        if self._hand_in() or (self._orders.held and self._phases.current == "wait"):
            self._phases.enter("judge")  # again: it gets on

    def _hand_in(self) -> int:
        """How many verdicts counted."""
        judged: dict[int, dict[str, Outcome]] = defaultdict(dict)
        for (name, lease), answer in self._host.answered():
            assert isinstance(answer, EpisodeEnd)  # tasks of several turns are refused by the configuration's check
            judged[lease][name] = answer.outcome
        counted = sum(self._orders.hand_in(lease, verdicts) for lease, verdicts in judged.items())
        self._judged += counted
        return counted

    def _judge(self, orders: Sequence[Order], lease: int) -> None:
        """In the thread that takes them."""
        try:
            for order in orders:
                prompt, turn = asked(self._task, order.reply)
                self._host.answer((order.name, lease), prompt, turn)
        except UsageError as error:
            self._fault = error
        self._news.set()

    def _begin_again(self, cause: str) -> None:
        """A new epoch with nothing in hand."""
        one = self._one
        one.events.emit(one.name, "lease_lost", cause=cause, replies=self._orders.held)
        self._phases.enter("join")
        self._orders.let_go()
        one.join_anew()
        self._phases.enter("wait")

    def _farewell(self) -> None:
        """What is judged soon is handed in, the rest is another's at once; a run that is over needs neither."""
        one, orders = self._one, self._orders
        orders.end()
        if orders.over.is_set():
            return
        one.events.emit(one.name, "leaving", cause=self._stop.cause or "told to by the coordinator", replies=orders.held)
        try:
            while orders.held and self._host.wait(PATIENCE_S):
                self._hand_in()
            orders.give_back(FAREWELL_S)
        except StaleEpoch:
            return  # given to others already

    def _progress(self) -> Progress:
        return Progress(tokens=self._judged, phase=self._phases.current, phase_s=max(0.0, self._phases.waited_s()))


def asked(task: Task, reply: Reply) -> tuple[Prompt, ModelTurn]:
    """What a grader is asked by a reply. Raises UsageError where its data have another prompt, or another answer to it, than the run."""
    prompt = task.prompt(reply.ticket_index)
    if content_of(prompt, reply.text) != reply.content:
        raise UsageError(
            f"this grader's data are not the run's: ticket {ticket_id(reply.ticket_index)} has another prompt or answer here "
            f"({prompt.id}), so its verdicts would be wrong; give it the files that the coordinator has"
        )
    return prompt, ModelTurn(token_ids=prompt.token_ids[:0], text=reply.text, finish_reason=FinishReason.STOP, room=0)
