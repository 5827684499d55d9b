"""Verdicts through a real coordinator: a sampler's side and graders' sides of this process, over real sockets."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.errors import StaleEpoch, UsageError
from slipstream.core.ids import ticket_id
from slipstream.core.records import FinishReason, ModelTurn, Outcome, OutcomeKind
from slipstream.runtime.coordinator.verdict_messages import AT_ONCE, Order, Reply, content_of
from slipstream.runtime.join.grading import RemoteGrading
from slipstream.runtime.join.membership import Seat
from slipstream.runtime.join.orders import Orders
from slipstream.runtime.processes.grader import asked
from tests.ledger.rollouts import NumberedPrompts
from tests.runtime.coordinator.here import INFLIGHT, LEASE_S, Here, caller, coordinator, post, seat
from tests.runtime.coordinator.test_coordinator import figure

PATIENCE_S = 30.0  # a deadline for hung threads, not a performance check
FULL = Outcome(
    kind=OutcomeKind.VALUE, reward=0.1 + 0.2, format_ok=True, style="worked", detail="½ = 0.5 ✓", calls=3, failed_calls=1, side_turns=2
)


def turn(text: str) -> ModelTurn:
    return ModelTurn(token_ids=np.zeros(1, np.int32), text=text, finish_reason=FinishReason.LENGTH, room=0)


def ask(one: RemoteGrading, *indices: int) -> None:
    for index in indices:
        one.answer((ticket_id(index), 1), NumberedPrompts().prompt(index), turn(f"reply {index}"))


def verdicts(one: RemoteGrading, count: int) -> dict[str, Outcome]:
    """The next `count`, by ticket."""
    found: dict[str, Outcome] = {}
    while len(found) < count:
        assert one.wait(PATIENCE_S)
        found |= {key[0]: end.outcome for key, end in one.answered()}  # type: ignore[union-attr]
    return found


class Judge:
    """A grader that hands in what `verdict` makes of its orders, or holds them where that is None."""

    def __init__(self, one: Seat, verdict: Callable[[Order], Outcome] | None) -> None:
        self.seat, self.verdict = one, verdict
        self.held: list[tuple[Order, int]] = []
        self.holds = threading.Event()
        self.orders = Orders(one, self._judge, lambda: None)
        self.orders.start()

    def _judge(self, orders: Sequence[Order], lease: int) -> None:
        if self.verdict is not None:
            self.orders.hand_in(lease, {order.name: self.verdict(order) for order in orders})
            return
        self.held += [(order, lease) for order in orders]
        self.holds.set()


@pytest.fixture
def here(tmp_path: Path):
    with coordinator(tmp_path, INFLIGHT, grading="graders") as made:
        yield made


@pytest.fixture
def grading(here: Here):
    made = RemoteGrading(seat(here.url))
    yield made
    made.close()


def test_a_verdict_comes_back_as_the_grader_gave_it(here: Here, grading: RemoteGrading) -> None:
    judge = Judge(seat(here.url, "grader", "G"), lambda order: replace(FULL, detail=order.reply.text))
    ask(grading, *range(2 * AT_ONCE))  # more than one call takes
    found = verdicts(grading, 2 * AT_ONCE)
    assert found == {ticket_id(index): replace(FULL, detail=f"reply {index}") for index in range(2 * AT_ONCE)}
    assert content_of(NumberedPrompts().prompt(1), "x") != content_of(NumberedPrompts().prompt(2), "x")
    assert figure(here, 'verdicts{grader="grader-0"}') == 2 * AT_ONCE
    assert figure(here, 'verdicts_handed_in{receipt="accepted"}') == 2 * AT_ONCE
    assert here.app.verdicts.status().queued == 0
    judge.orders.check()
    judge.orders.end()


def test_what_a_lost_grader_held_is_judged_by_another_and_the_zombie_is_not_heard(here: Here, grading: RemoteGrading) -> None:
    lost = Judge(seat(here.url, "grader", "lost"), None)
    ask(grading, 5)
    assert lost.holds.wait(PATIENCE_S)
    assert here.app.verdicts.status().held == {"grader-0": 1}
    here.clock.advance(LEASE_S + 1)
    here.expire()
    grading._seat.rejoin(1)  # its lease has ended too: this sampler begins again
    with pytest.raises(StaleEpoch):
        lost.orders.hand_in(lost.held[0][1], {lost.held[0][0].name: FULL})
    grading.close()
    again = RemoteGrading(grading._seat)
    ask(again, 5)
    other = Judge(seat(here.url, "grader", "other"), lambda order: replace(FULL, detail="other"))
    assert verdicts(again, 1)[ticket_id(5)].detail == "other"
    lost.orders.let_go()
    assert lost.orders.hand_in(lost.held[0][1], {lost.held[0][0].name: FULL}) == 0
    for judge in (lost, other):
        judge.orders.end()
    again.close()


def test_a_failed_verdict_is_another_graders_to_give_and_a_polite_one_gives_back_at_once(here: Here, grading: RemoteGrading) -> None:
    failed = Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None, detail="no sandbox here")
    broken, leaving = Judge(seat(here.url, "grader", "broken"), lambda order: failed), Judge(seat(here.url, "grader", "leaving"), None)
    ask(grading, 7)
    assert leaving.holds.wait(PATIENCE_S)  # at first, or after the other's failure
    leaving.orders.end()
    leaving.orders.give_back(PATIENCE_S)
    leaving.seat.leave(PATIENCE_S)
    assert verdicts(grading, 1)[ticket_id(7)] == failed  # both tries are spent, or nobody else is left to try
    broken.orders.end()


def test_a_coordinator_started_anew_is_told_again_what_is_wanted(tmp_path: Path) -> None:
    clock = ManualClock()
    first, up = Here(tmp_path, INFLIGHT, clock, grading="graders"), threading.Event()
    made = caller(first.url, pause=lambda seconds: up.wait(PATIENCE_S))
    one, slow = RemoteGrading(seat(first.url, made=made)), Judge(seat(first.url, "grader", "slow", made=made), None)
    ask(one, 1, 2)
    while len(slow.held) < 2 or ("sampler-0", 1) not in first.app.verdicts._changes:
        time.sleep(0.01)  # all have connections: one that is made while a server closes is nobody's
    first.close()
    second = Here(tmp_path, INFLIGHT, clock, port=first.port, grading="graders")
    up.set()
    try:
        while second.app.verdicts.status().held != {"grader-0": 2}:  # asked for again, and given to the same grader again
            time.sleep(0.01)
        slow.orders.hand_in(0, {order.name: FULL for order, _ in slow.held})
        assert verdicts(one, 2) == {ticket_id(1): FULL, ticket_id(2): FULL}
        assert len(slow.held) == 2  # which does not judge them twice
        slow.orders.end()
        one.close()
    finally:
        second.close()


def test_who_may_not_and_what_means_nothing(here: Here, tmp_path: Path) -> None:
    sampler, grader = seat(here.url), seat(here.url, "grader", "G")
    calls = [
        (sampler, "take", {"room": 1, "holding": []}, 409, "sampler-0 is a sampler; only a grader may do this"),
        (grader, "collect", {"taken": [], "waiting": []}, 409, "grader-0 is a grader; only a sampler may do this"),
        (grader, "hand_in", {"verdicts": [{"name": "x", "outcome": {"kind": "value", "reward": None}}]}, 400, "it carries a reward"),
        (grader, "hand_in", {"verdicts": [{"name": "x", "outcome": {"kind": "right", "reward": 1.0}}]}, 400, "outcome.kind"),
        (sampler, "ask", {"replies": [{"ticket_index": -1, "sample": 0, "content": "?", "text": ""}]}, 400, "ticket_index"),
    ]
    for one, name, fields, status, words in calls:
        found, answer = post(here.url, f"v1/{name}", {**one.head, **fields})
        assert (found, words in answer["error"]) == (status, True), answer
    (tmp_path / "other").mkdir()
    with (
        coordinator(tmp_path / "other") as elsewhere,
        pytest.raises(UsageError, match=r"no grader is needed here: this run's samplers judge .* \(grading.on = 'samplers'\)"),
    ):
        seat(elsewhere.url, "grader", "G")


def test_a_grader_that_cannot_begin_says_why(here: Here, tmp_path: Path) -> None:
    reply = Reply(ticket_index=3, sample=0, content=content_of(NumberedPrompts().prompt(3), "4"), text="4")
    prompt, said = asked(NumberedPrompts(), reply)  # type: ignore[arg-type]
    assert (prompt.id, said.text) == ("p3", "4")
    with pytest.raises(UsageError, match="data are not the run's: ticket t00000003 has another prompt or answer here"):
        asked(NumberedPrompts(), replace(reply, ticket_index=3, content=content_of(NumberedPrompts().prompt(4), "4")))  # type: ignore[arg-type]
    (tmp_path / "token").write_text("wrong")
    command = [sys.executable, "-X", "importtime", "-m", "slipstream.cli.main", "grader", "--join", here.url]
    refused = subprocess.run([*command, "--token-file", str(tmp_path / "token")], cwd="/", capture_output=True, text=True)
    assert refused.returncode == 2
    imports = {line.split("|")[-1].strip() for line in refused.stderr.splitlines() if line.startswith("import time:")}
    said = [line for line in refused.stderr.splitlines() if not line.startswith("import time:")]
    assert len(said) == 1
    assert "refuses join: the token is missing or wrong" in said[0]
    assert "slipstream.envs.host" in imports
    assert "jax" not in imports
