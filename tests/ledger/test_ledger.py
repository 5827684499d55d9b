"""The ledger as an actor on a real journal: what it promises samplers and learner, through restarts, damage and full disks."""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.codec import rollout_to_bytes
from slipstream.core.errors import RolloutRefused, RunFailed, TransitionError
from slipstream.core.records import Batch, Outcome, OutcomeKind, Ticket
from slipstream.ledger.entries import TicketState
from slipstream.ledger.journal import Journal
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.recent import Recent
from slipstream.ledger.state import Policy
from tests.ledger.rollouts import JUDGED, TIMEOUT, NumberedPrompts, make_rollout

EMPTY = {"completion_ids": np.int32, "logprobs": np.float32, "versions": np.int32, "loss_mask": bool}
POLICY = Policy(prompts_per_step=2, group_size=2, eta=1, pinned=False, steps=4)
TRUNCATED, OVERWRITTEN = "truncated", "overwritten"

VICTIM = """
import sys
from pathlib import Path
from slipstream.core.clock import ManualClock
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import Policy
from tests.ledger.rollouts import NumberedPrompts, make_rollout
from tests.ledger.test_ledger import digest
policy = Policy(prompts_per_step=4, group_size=3, eta=1_000, pinned=False, steps=1_000)
ledger = Ledger(Path(sys.argv[1]), policy, NumberedPrompts(), ManualClock())
step = 0
while True:
    for ticket in ledger.claim("sampler-0", 1, step):
        for sample in ticket.samples:
            ledger.submit([make_rollout(ticket, sample, [step] * 40)])
            print("sample", ticket.index, sample, flush=True)
    batch = ledger.batch(step)
    if batch is not None:
        print("batch", step, digest(batch), flush=True)
        ledger.commit(step)
        step += 1
"""


def digest(batch: Batch) -> str:
    """Hash of every byte of a batch, in its order."""
    return hashlib.sha256(b"".join(rollout_to_bytes(rollout) for rollout in batch.rollouts)).hexdigest()


def open_ledger(path: Path, policy: Policy = POLICY) -> Ledger:
    return Ledger(path, policy, NumberedPrompts(), ManualClock())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = open_ledger(tmp_path / "journal.sqlite")
    yield opened
    opened.close()


def hand_in(ledger: Ledger, tickets: list[Ticket], version: int) -> None:
    ledger.submit([make_rollout(ticket, sample, [version]) for ticket in tickets for sample in ticket.samples])


def train_steps(ledger: Ledger, steps: int) -> list[Batch]:
    """Claims, samples, fixes and commits that many batches."""
    batches: list[Batch] = []
    for _ in range(steps):
        version = ledger.state.version
        hand_in(ledger, ledger.claim("sampler-0", POLICY.prompts_per_step, version), version)
        batch = ledger.batch(version)
        assert batch is not None
        batches.append(batch)
        ledger.commit(version)
    return batches


def test_a_claim_names_prompt_samples_and_floor(ledger: Ledger) -> None:
    first, second = ledger.claim("sampler-0", 2, 0)
    assert (first.id, first.index, first.group_id, first.prompt.id) == ("t00000000", 0, "g00000000", "p0")
    assert (second.index, second.samples, second.version_floor, second.version_pinned) == (1, (0, 1), 0, None)


def test_admission_allows_the_present_batch_and_eta_more(ledger: Ledger) -> None:
    assert len(ledger.claim("sampler-0", 100, 0)) == POLICY.prompts_per_step * (1 + POLICY.eta)
    assert ledger.claim("sampler-0", 100, 0) == []
    assert ledger.wanted_version(0) is None


def test_a_batch_has_whole_groups_in_order_whoever_was_first(ledger: Ledger) -> None:
    tickets = ledger.claim("sampler-0", 2, 0)
    assert ledger.batch(0) is None
    ledger.submit([make_rollout(tickets[1], 1, [0]), make_rollout(tickets[0], 1, [0])])
    assert ledger.batch(0) is None
    ledger.submit([make_rollout(tickets[1], 0, [0])])
    ledger.submit([make_rollout(tickets[0], 0, [0])])
    batch = ledger.batch(0)
    assert batch is not None
    assert [(rollout.ticket_index, rollout.sample_index) for rollout in batch.rollouts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert ledger.batch(0) is batch


@pytest.mark.parametrize("most_bytes", [0, 900, 1 << 20])
def test_a_batch_is_the_same_from_memory_and_from_the_journal(tmp_path: Path, most_bytes: int) -> None:
    """A rollout here has some 400 bytes: nothing is remembered, two of four, all. A ticket half of which is older is read back whole."""
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    tickets = ledger.claim("sampler-0", 2, 0)
    ledger.submit([make_rollout(tickets[0], 1, [0])])
    ledger.close()
    again = open_ledger(path)
    again._recent = Recent(most_bytes)
    again.submit([make_rollout(tickets[0], 0, [0]), make_rollout(tickets[1], 1, [0]), make_rollout(tickets[1], 0, [0])])
    batch = again.batch(0)
    assert batch is not None
    expected = [make_rollout(ticket, sample, [0]) for ticket in tickets for sample in (0, 1)]
    assert [rollout_to_bytes(rollout) for rollout in batch.rollouts] == [rollout_to_bytes(rollout) for rollout in expected]
    assert again._recent._bytes == 0  # what was served is let go of
    again.close()


def test_a_sample_without_a_verdict_is_counted_and_left_out(ledger: Ledger) -> None:
    tickets = ledger.claim("sampler-0", 2, 0)
    ledger.submit([make_rollout(tickets[0], 0, [0], TIMEOUT), make_rollout(tickets[0], 1, [0])])
    hand_in(ledger, tickets[1:], 0)
    batch = ledger.batch(0)
    assert batch is not None
    assert [(rollout.ticket_index, rollout.sample_index) for rollout in batch.rollouts] == [(0, 1), (1, 0), (1, 1)]
    assert [rollout_to_bytes(one) for one in batch.aside] == [rollout_to_bytes(make_rollout(tickets[0], 0, [0], TIMEOUT))]
    assert ledger.state.samples_dropped == {"timeout": 1}


def test_first_write_wins_and_everything_else_has_its_receipt(ledger: Ledger) -> None:
    """The same again, a different one, one that had no verdict, one too many, and each at every later stage of the ticket."""
    tickets = ledger.claim("sampler-0", 2, 0)
    first = make_rollout(tickets[0], 0, [0], sampler="first")
    late = replace(first, sampler_id="other", finished_s=9.0)  # the same sample, drawn by another worker
    other = make_rollout(tickets[0], 0, [0, 0], sampler="other")
    assert ledger.submit([first, first, late]) == ["accepted", "duplicate", "duplicate"]  # also within one message
    assert ledger.submit([other]) == ["conflict"]
    silent = make_rollout(tickets[0], 1, [0], TIMEOUT)
    assert ledger.submit([silent, silent, make_rollout(tickets[0], 1, [0])]) == ["accepted", "duplicate", "conflict"]
    hand_in(ledger, tickets[1:2], 0)
    assert ledger.submit([other, first]) == ["conflict", "duplicate"]
    before = ledger.batch(0)
    assert ledger.submit([other, first]) == ["conflict", "duplicate"]
    ledger.commit(0)
    assert ledger.submit([other, first]) == ["conflict", "duplicate"]
    train_steps(ledger, 1)
    ledger.forget_before(1)
    assert ledger.submit([other, first]) == ["closed", "closed"]
    assert before is not None
    assert [rollout.sampler_id for rollout in before.rollouts] == ["first", "sampler-0", "sampler-0"]
    counted = ledger.counters()["submissions"]
    assert counted == {"accepted": 8, "duplicate": 6, "conflict": 5, "closed": 2, "stale": 0}


def test_duplicates_are_still_counted_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    tickets = ledger.claim("sampler-0", 1, 0)
    hand_in(ledger, tickets, 0)
    hand_in(ledger, tickets, 0)
    state = ledger.state
    ledger.close()
    again = open_ledger(path)
    assert again.state == replace(state, term=2)
    assert again.state.duplicates == 2
    again.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_index": 2}, "sample_index must be 0 to 1"),
        ({"ticket_index": 7, "ticket_id": "t00000007", "group_id": "g00000007"}, "nobody claimed"),
        ({"ticket_id": "t00000001"}, "nobody claimed under these names"),
        ({"run_id": "elsewhere"}, "run_id is 'elsewhere', and this is run 'run'"),
        ({"lineage": 1}, "lineage is 1, and the run is at 0"),
        ({"logprobs": np.array([-1.0, np.nan], np.float32)}, "log-prob of token 1 is nan"),
        ({"logprobs": np.array([-np.inf, -1.0], np.float32)}, "log-prob of token 0 is -inf"),
        ({"logprobs": np.array([[-1.0], [-1.0]], np.float32)}, r"logprobs is float32 \[2d\], not float32 \[1d\]"),
        ({"logprobs": np.array([-1.0, -1.0])}, "logprobs is float64"),
        ({"versions": np.array([0, 2], np.int32)}, "versions are 0 to 2, and there are 0 to 1"),
        ({"versions": np.array([-1, 0], np.int32)}, "versions are -1 to 0"),
        ({name: np.zeros(0, dtype) for name, dtype in EMPTY.items()}, "has no tokens"),
    ],
)
def test_what_could_be_of_no_run_is_refused_and_changes_nothing(tmp_path: Path, change: dict[str, object], message: str) -> None:
    ledger = Ledger(tmp_path / "journal.sqlite", POLICY, NumberedPrompts(), ManualClock(), run_id="run")
    (ticket,) = ledger.claim("sampler-0", 1, 0)
    good = make_rollout(ticket, 0, [0, 0])
    before, sequence = ledger.state, ledger.sequence
    with pytest.raises(RolloutRefused, match=message):
        ledger.submit([good, replace(make_rollout(ticket, 1, [0, 0]), **change)])
    assert (ledger.state, ledger.sequence) == (before, sequence)
    assert ledger.submit([good]) == ["accepted"]
    ledger.close()


def test_tokens_older_than_the_ticket_allows_are_turned_away(ledger: Ledger) -> None:
    train_steps(ledger, 1)
    (ticket,) = ledger.claim("sampler-0", 1, 1)
    assert ledger.submit([make_rollout(ticket, 0, [1, 0, 1]), make_rollout(ticket, 0, [1])]) == ["stale", "accepted"]


def test_a_commit_comes_once_and_in_order(ledger: Ledger) -> None:
    with pytest.raises(TransitionError, match="cannot be trained"):
        ledger.commit(0)
    train_steps(ledger, 1)
    with pytest.raises(TransitionError, match="cannot be trained"):
        ledger.commit(0)


def test_the_run_ends_after_its_last_step(ledger: Ledger) -> None:
    train_steps(ledger, POLICY.steps)
    assert ledger.claim("sampler-0", 10, POLICY.steps) == []
    assert ledger.wanted_version(POLICY.steps) is None
    assert ledger.batch(POLICY.steps) is None
    assert ledger.state.balance() == {"open": 0, "leased": 0, "grouped": 0, "batched": 0, "trained": 8, "dropped": 0}


@pytest.mark.parametrize("pinned", [False, True], ids=["inflight", "pinned"])
def test_groups_without_signal_are_dropped_for_further_prompts(tmp_path: Path, pinned: bool) -> None:
    """Equal rewards, one verdict and none are no signal. What was dropped is served with its batch, byte for byte and forgotten with it."""
    path, policy = tmp_path / "journal.sqlite", replace(POLICY, pinned=pinned, refill=3)
    ledger = open_ledger(path, policy)
    wrong = Outcome(kind=OutcomeKind.WRONG, reward=0.0)
    answers = {0: (JUDGED, JUDGED), 1: (JUDGED, wrong), 2: (JUDGED, wrong), 3: (TIMEOUT, JUDGED)}
    further = [8, 9, 10] if pinned else [4, 5]
    answers |= {further[0]: (TIMEOUT, TIMEOUT), further[1]: (wrong, JUDGED), 6: (JUDGED, wrong), 11: (JUDGED, wrong)}

    def draw() -> list[int]:
        """Claims all that may be claimed; the last sample is handed in first."""
        tickets = ledger.claim("sampler-0", 10, 0)
        ledger.submit([make_rollout(one, sample, [0], answers[one.index][sample]) for one in tickets[::-1] for sample in one.samples])
        return [ticket.index for ticket in tickets]

    assert draw() == [0, 1, 2, 3]
    if pinned:  # each batch refills for itself: 0 for ticket 0, and 1 for ticket 3
        assert draw() == [8, 11]
        assert draw() == [9]
    else:
        assert draw() == [4, 5]
        assert ledger.state.balance()["dropped"] == 3
        assert draw() == [6]
    assert draw() == []
    batch = ledger.batch(0)
    assert batch is not None
    assert batch.refilled_groups == (2 if pinned else 3)
    assert [one.ticket_index for one in batch.rollouts] == ([1, 1, 9, 9] if pinned else [1, 1, 2, 2])
    assert [one.ticket_index for one in batch.dropped] == ([0, 0] if pinned else [0, 0, 3])
    dropped = ledger.state.samples_dropped
    assert (dropped["zero_variance"], dropped["timeout"]) == (2 if pinned else 3, 3)
    assert ledger.submit(batch.dropped) == ["duplicate"] * len(batch.dropped)
    ledger.commit(0)
    ledger.close()

    again = open_ledger(path, policy)
    again.restart(0)
    assert again.batch(0) == batch
    again.commit(0)
    assert again.batch(1) is not None
    again.commit(1)
    again.forget_before(2)
    assert again.submit([replace(one, lineage=1) for one in batch.dropped]) == ["closed"] * len(batch.dropped)
    counts = again.state.balance()
    assert (counts["trained"], counts["dropped"], sum(counts.values())) == (4, 3, again.state.issued)
    assert again.state.entries == {}
    again.close()


def test_a_waiting_thread_wakes_at_the_change_and_not_by_time(ledger: Ledger) -> None:
    seen = ledger.sequence
    woken: list[bool] = []
    waiting = threading.Thread(target=lambda: woken.append(ledger.wait_change(seen, 60)))
    waiting.start()
    ledger.claim("sampler-0", 1, 0)
    waiting.join(30)
    assert woken == [True]
    assert ledger.wait_change(ledger.sequence, 0.0) is False
    assert ledger.wait_change(seen, 60) is True


def test_after_a_restart_batches_are_the_same_and_leases_are_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    served = train_steps(ledger, 2)
    begun, untouched = ledger.claim("sampler-0", 2, 2)
    ledger.submit([make_rollout(begun, 1, [2])])
    ledger.close()

    again = open_ledger(path)
    again.restart(0)
    assert (again.state.version, again.state.term, again.state.lineage) == (0, 2, 1)
    assert again.claim("sampler-0", 10, 0) == []  # version 0 has its two batches; the returned tickets' turn comes later
    for step, batch in enumerate(served):
        same = again.batch(step)
        assert same is not None
        assert digest(same) == digest(batch)
        again.commit(step)
    tickets = again.claim("sampler-0", 2, 2)
    assert [(ticket.index, ticket.samples) for ticket in tickets] == [(begun.index, (0,)), (untouched.index, (0, 1))]
    again.close()


def test_a_pinned_ticket_that_comes_back_is_drawn_by_its_own_version(tmp_path: Path) -> None:
    path, policy = tmp_path / "journal.sqlite", Policy(prompts_per_step=1, group_size=2, eta=1, pinned=True, steps=4)
    ledger = open_ledger(path, policy)
    for version in (0, 0):  # batches 0 and 1 are both of version 0
        hand_in(ledger, ledger.claim("sampler-0", 1, version), version)
    assert ledger.batch(0) is not None
    ledger.commit(0)
    (ticket,) = ledger.claim("sampler-0", 1, 1)
    assert (ticket.index, ticket.version_pinned) == (2, 1)
    ledger.close()
    again = open_ledger(path, policy)
    again.restart(0)
    assert again.wanted_version(0) is None  # version 1 has yet to be made again
    assert again.batch(0) is not None
    again.commit(0)
    assert again.wanted_version(1) == 1
    assert again.claim("sampler-0", 1, 0) == []
    assert [back.version_pinned for back in again.claim("sampler-0", 1, 1)] == [1]
    again.close()


def test_forgetting_keeps_all_that_a_restart_may_need(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    served = train_steps(ledger, 3)
    with pytest.raises(TransitionError, match="only 3 are trained"):
        ledger.forget_before(4)
    ledger.forget_before(1)
    ledger.forget_before(1)
    assert ledger.state.balance()["trained"] == 6
    ledger.close()

    with sqlite3.connect(path) as database:
        kept = [ticket for (ticket,) in database.execute("select distinct ticket from rollout order by ticket")]
    database.close()
    assert kept == [2, 3, 4, 5]
    again = open_ledger(path)
    assert again.state.balance()["trained"] == 6
    with pytest.raises(RunFailed, match="older than the batches that the journal still has"):
        again.restart(0)
    again.restart(1)
    for step in (1, 2):
        same = again.batch(step)
        assert same is not None
        assert digest(same) == digest(served[step])
        again.commit(step)
    again.close()


def test_a_checkpoint_from_the_future_is_refused(ledger: Ledger) -> None:
    train_steps(ledger, 1)
    with pytest.raises(RunFailed, match="knows 1 trained steps, the checkpoint 2"):
        ledger.restart(2)


@pytest.mark.parametrize("samples", [1, 7, 25, 60])
def test_a_killed_process_loses_nothing_that_it_had_told(tmp_path: Path, samples: int) -> None:
    """SIGKILL in the middle of submissions: whatever the process had said is in the journal, batches byte for byte."""
    path = tmp_path / "journal.sqlite"
    told_samples: set[tuple[int, int]] = set()
    told_batches: dict[int, str] = {}
    with subprocess.Popen([sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        for line in victim.stdout:
            match line.split():
                case ["sample", index, sample]:
                    told_samples.add((int(index), int(sample)))
                case ["batch", step, content]:
                    told_batches[int(step)] = content
                case _:
                    pytest.fail(line)
            if len(told_samples) >= samples:
                victim.send_signal(signal.SIGKILL)
                break
        victim.wait()
    assert victim.returncode == -signal.SIGKILL

    policy = Policy(prompts_per_step=4, group_size=3, eta=1_000, pinned=False, steps=1_000)
    ledger = open_ledger(path, policy)
    ledger.restart(0)
    known = {(index, sample) for index, entry in ledger.state.entries.items() for sample in entry.submitted}
    assert told_samples <= known
    for step, content in told_batches.items():
        batch = ledger.batch(step)
        assert batch is not None
        assert digest(batch) == content
        ledger.commit(step)
    assert ledger.state.entries  # and the run can go on: what was begun is completed, not drawn again
    back = [index for index, entry in ledger.state.entries.items() if entry.state is TicketState.OPEN]
    for ticket in ledger.claim("sampler-0", len(back), ledger.state.version):
        assert ticket.index not in back or {(ticket.index, sample) for sample in ticket.samples}.isdisjoint(told_samples)
    ledger.close()


@pytest.mark.parametrize("damage", [TRUNCATED, OVERWRITTEN])
def test_a_damaged_journal_is_a_clear_failure(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    train_steps(ledger, 3)
    ledger.close()
    content = path.read_bytes()
    assert len(content) > 8_192
    path.write_bytes(content[:5_000] if damage == TRUNCATED else content[:100] + b"\x99" * 4_000 + content[4_100:])
    with pytest.raises(RunFailed, match=r"journal.sqlite is damaged .*malformed"):
        open_ledger(path)


def test_a_file_that_is_no_journal_is_a_clear_failure(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"this is something else entirely, and long enough to be looked at" * 100)
    with pytest.raises(RunFailed, match=r"journal.sqlite is damaged \(file is not a database\)"):
        open_ledger(path)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("update event set body = '{\"index\":' where seq = 2", "event 2 cannot be read"),
        ("update event set kind = 'Sold' where seq = 3", "event 3 cannot be read"),
        ("update event set body = '{\"step\":0}' where seq = 1", "event 1 cannot be read"),
        ("delete from event where seq = 1", "is damaged, or run.toml was changed since"),
    ],
)
def test_events_that_make_no_sense_are_a_clear_failure(tmp_path: Path, statement: str, message: str) -> None:
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    train_steps(ledger, 1)
    ledger.close()
    change(path, statement)
    with pytest.raises(RunFailed, match=message):
        open_ledger(path)


@pytest.mark.parametrize(
    "statement",
    [
        "update rollout set content = cast(substr(content, 1, length(content) - 1) || x'07' as blob) where ticket = 1 and sample = 0",
        "update rollout set content = cast(replace(cast(content as text), 'p1', 'p2') as blob) where ticket = 1 and sample = 0",
        "delete from rollout where ticket = 0 and sample = 1",
    ],
)
def test_a_batch_that_is_not_what_was_handed_in_is_never_served(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    train_steps(ledger, 1)
    ledger.close()
    change(path, statement)
    again = open_ledger(path)
    again.restart(0)
    with pytest.raises(RunFailed, match="are not those that were handed in"):
        again.batch(0)
    again.close()


def test_a_journal_under_another_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    train_steps(ledger, 1)
    ledger.close()
    with pytest.raises(RunFailed, match=r"or run\.toml was changed since: the run began with another prompts_per_step"):
        open_ledger(path, Policy(prompts_per_step=3, group_size=2, eta=1, pinned=False, steps=4))


def test_a_torn_tail_of_the_log_is_as_if_it_had_not_happened(tmp_path: Path) -> None:
    """A power cut may tear the end of the write-ahead log: the transactions before it stand."""
    path, torn = tmp_path / "journal.sqlite", tmp_path / "torn.sqlite"
    ledger = open_ledger(path)
    train_steps(ledger, 1)
    tickets = ledger.claim("sampler-0", 2, 1)
    hand_in(ledger, tickets, 1)
    log = Path(f"{path}-wal").read_bytes()
    torn.write_bytes(path.read_bytes())
    Path(f"{torn}-wal").write_bytes(log[: len(log) - 100])
    ledger.close()
    again = open_ledger(torn)
    assert again.state.version == 1
    assert [again.state.entries[ticket.index].state for ticket in tickets] == [TicketState.LEASED] * 2
    again.close()


def test_a_full_disk_is_named_and_nothing_of_the_message_is_taken(tmp_path: Path) -> None:
    """SQLite's page limit gives the same error as a full disk. Once there is room again, the ledger goes on where it was."""
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path, Policy(prompts_per_step=50, group_size=2, eta=1, pinned=False, steps=4))
    tickets = ledger.claim("sampler-0", 50, 0)
    database: sqlite3.Connection = ledger._journal._database  # the limit holds for its own connection only
    ((pages,),) = database.execute("pragma page_count").fetchall()
    database.execute(f"pragma max_page_count = {pages + 2}")
    before = ledger.state
    rollouts = [make_rollout(ticket, sample, [0] * 400) for ticket in tickets for sample in ticket.samples]
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"no space left on device while using .*journal.sqlite; free space .* --resume"):
            ledger.submit(rollouts)
        assert ledger.state is before
    database.execute("pragma max_page_count = 1000000")
    ledger.submit(rollouts)
    batch = ledger.batch(0)
    assert batch is not None
    assert len(batch.rollouts) == 100
    ledger.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to mount a small file system")
def test_a_really_full_file_system_is_named(tmp_path: Path) -> None:
    """In a process of its own, so that nothing keeps the file system busy."""
    script = """
import sys
from pathlib import Path
from slipstream.core.errors import RunFailed
from slipstream.ledger.events import Submitted
from slipstream.ledger.journal import Contents, Journal
journal = Journal(Path(sys.argv[1]) / "journal.sqlite")
try:
    for index in range(1_000):
        journal.append(0.0, [Submitted(index=index, sample=0, content="c", oldest=0)], Contents(taken=[(index, 0, bytes(3_000))]))
except RunFailed as error:
    print(error)
"""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
    try:
        said = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert said.startswith("no space left on device while using ")


def test_a_sync_reaches_the_disk_past_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with an old snapshot keeps SQLite from moving the log into the database; then the log itself is synced."""
    synced: list[str] = []
    monkeypatch.setattr("slipstream.ledger.journal.os.fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    path = tmp_path / "journal.sqlite"
    ledger = open_ledger(path)
    train_steps(ledger, 1)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("begin")
    reader.execute("select count(*) from event").fetchall()
    train_steps(ledger, 1)
    ledger.sync()
    assert synced == [f"{path}-wal"]
    reader.close()
    ledger.close()


def test_what_a_power_cut_may_not_undo_waits_for_the_disk(tmp_path: Path) -> None:
    """SQLite syncs its log at the end of a transaction whose level is full, and with it all that was written before."""
    open_ledger(tmp_path / "journal.sqlite").close()
    ledger, said = open_ledger(tmp_path / "journal.sqlite"), list[str]()
    database: sqlite3.Connection = ledger._journal._database
    assert database.execute("pragma synchronous").fetchone() == (2,)  # full, as the term was begun with
    database.set_trace_callback(said.append)
    ledger.join("sampler", "one", {})
    train_steps(ledger, 2)
    ledger.restart(1)
    level, kinds, levels = "full", set[str](), dict[str, set[str]]()
    for statement in said:
        level = statement.removeprefix("pragma synchronous = ") if statement.startswith("pragma synchronous") else level
        kinds |= {statement.split("'")[1]} if statement.startswith("insert into event") else set()
        if statement == "commit":
            levels.setdefault(level, set()).update(kinds)
            kinds = set()
    assert levels["full"] == {"Batched", "Trained", "Restarted"}
    assert levels["normal"] == {"Joined", "Claimed", "Submitted"}
    ledger.close()


def test_a_journal_that_cannot_be_opened_is_a_clear_failure(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="unable to open database file while using"):
        Journal(tmp_path / "absent" / "journal.sqlite")


def change(path: Path, statement: str) -> None:
    """What a broken disk or a curious person may do to a journal."""
    database = sqlite3.connect(path)
    assert database.execute(statement).rowcount == 1
    database.commit()
    database.close()
