"""The scheduler's promises hold in random schedules on a device that remembers what is in its pages; and the checks can fail.

Rules one by one, with exact pages, come first. The random schedules submit groups and prompts that begin alike to tiny pools,
abort, pause, swap weights and stop early; `Schedule` says what is checked. Worse rules at the end break each promise.
"""

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import TransitionError
from slipstream.engine.blocks import PagePool
from slipstream.engine.plan import Chunk, Decoding, Outcome, Plan, RequestKey, Table
from slipstream.engine.prefix import PrefixIndex
from slipstream.engine.scheduler import Keep, Scheduler
from slipstream.engine.sequence import ALLOWED, Sequence, State

SCHEDULES_A_PART = 300


def scheduler(
    rows: int = 4,
    pages: int = 16,
    page_tokens: int = 4,
    prefill_tokens: int = 100,
    tokens_per_dispatch: int = 1,
    keep: Keep = "nothing",
) -> Scheduler:
    sizes = {"rows": rows, "pages": pages, "page_tokens": page_tokens, "prefill_tokens": prefill_tokens}
    return Scheduler(**sizes, tokens_per_dispatch=tokens_per_dispatch, keep=keep)


def key(name: str) -> RequestKey:
    return name, 0


def planned(s: Scheduler, version: int = 0) -> Plan:
    plan = s.plan(version)
    assert plan is not None
    return plan


def step(s: Scheduler, version: int = 0, token: int = 9, count: int = 1, end: str = "") -> Plan:
    """Plan and record one dispatch: every row draws `token` so many times; requests named by a letter of `end` end."""
    plan = planned(s, version)
    s.record({d.row: Outcome(token_ids=(token,) * min(count, d.steps_left), ended=d.key[0] in end) for d in plan.decode})
    return plan


def chunks(plan: Plan) -> list[tuple[str, int, int, Table]]:
    """(request, first position, tokens, table) of each chunk."""
    return [(c.key[0], c.start, len(c.token_ids), c.table) for c in plan.prefill]


def decodes(plan: Plan) -> list[tuple[str, int, Table]]:
    """(request, position, table) of each decoding row."""
    return [(d.key[0], d.position, d.table) for d in plan.decode]


# Rule by rule


def test_one_request_is_prefilled_in_chunks_then_decoded_to_its_last_token() -> None:
    s = scheduler(prefill_tokens=3, tokens_per_dispatch=2)
    s.submit(key("a"), [10, 11, 12, 13, 14], 3)
    first = planned(s, version=7)
    assert first == Plan(
        version=7, copies=(), decode=(), prefill=(Chunk(key=key("a"), row=0, start=0, token_ids=(10, 11, 12), table=(0, 1)),)
    )
    s.record({})
    assert chunks(step(s, 7)) == [("a", 3, 1, (0, 1))]
    decoding = Decoding(key=key("a"), row=0, token=14, position=4, steps_left=3, mixed=False, table=(0, 1))
    assert planned(s, 7) == Plan(version=7, copies=(), prefill=(), decode=(decoding,))
    assert s.record({0: Outcome(token_ids=(20, 21), ended=False)}) == ()
    (last,) = planned(s, 7).decode
    assert (last.token, last.position, last.steps_left) == (21, 6, 1)
    assert s.record({0: Outcome(token_ids=(22,), ended=False)}) == (key("a"),)  # its last token, stop or not
    assert s.idle
    assert s.plan(7) is None
    assert s.pool.free == 16
    assert s.counts() == {State.WAITING: 0, State.RUNNING: 0, State.PREEMPTED: 0, State.FINISHED: 1, State.ABORTED: 0}


def test_a_prompt_of_one_token_decodes_at_once() -> None:
    s = scheduler()
    s.submit(key("a"), [5], 2)
    assert decodes(planned(s)) == [("a", 0, (0,))]


def test_pages_are_taken_for_one_dispatch_at_a_time_and_no_further_than_the_last_token() -> None:
    s = scheduler(page_tokens=2, tokens_per_dispatch=4)
    s.submit(key("a"), [1, 2, 3], 6)  # processes positions 0..7
    assert chunks(step(s)) == [("a", 0, 2, (0, 1, 2))]  # 2 prefilled, 4 to decode
    assert decodes(step(s, count=4)) == [("a", 2, (0, 1, 2))]
    assert decodes(step(s, count=2)) == [("a", 6, (0, 1, 2, 3))]  # of 4 possible steps 2 are left
    assert s.idle


def test_chunks_of_several_prompts_fill_one_plan_beside_decoding_rows() -> None:
    s = scheduler(prefill_tokens=5)
    s.submit(key("a"), [1], 9)
    s.submit(key("b"), [2, 2, 2, 2], 2)
    s.submit(key("c"), [3, 3, 3, 3, 3], 2)
    s.submit(key("d"), [4, 4], 2)
    plan = step(s)
    assert decodes(plan) == [("a", 0, (0,))]
    assert chunks(plan) == [("b", 0, 3, (1,)), ("c", 0, 2, (2, 3))]
    plan = step(s)
    assert decodes(plan) == [("a", 1, (0,)), ("b", 3, (1,))]
    assert chunks(plan) == [("c", 2, 2, (2, 3)), ("d", 0, 1, (4,))]


def test_nobody_overtakes_the_longest_waiting() -> None:
    s = scheduler(rows=2, pages=4, page_tokens=2)
    s.submit(key("a"), [1, 1, 1, 1], 1)
    s.submit(key("b"), [2, 2, 2, 2, 2, 2], 1)  # 3 pages, and 2 are free
    s.submit(key("c"), [3], 2)  # would fit
    assert chunks(step(s)) == [("a", 0, 3, (0, 1))]
    assert decodes(step(s)) == [("a", 3, (0, 1))]
    plan = step(s)
    assert chunks(plan) == [("b", 0, 5, (0, 1, 2))]
    assert decodes(plan) == [("c", 0, (3,))]


def test_requests_wait_for_a_row_and_get_the_lowest() -> None:
    s = scheduler(rows=2)
    for name in "abc":
        s.submit(key(name), [1], 5)
    assert [d.row for d in step(s, end="a").decode] == [0, 1]
    assert [(d.key[0], d.row) for d in planned(s).decode] == [("b", 1), ("c", 0)]


def test_a_groups_prompt_is_computed_once_and_its_last_page_copied() -> None:
    s = scheduler(prefill_tokens=4)
    for sample in range(3):
        s.submit(("g", sample), [1, 2, 3, 4, 5, 6, 7], 3)
    assert chunks(step(s)) == [("g", 0, 4, (0, 1))]
    assert chunks(step(s)) == [("g", 4, 2, (0, 1))]
    plan = step(s)
    assert plan.copies == ((1, 2), (1, 3))
    assert plan.prefill == ()
    assert decodes(plan) == [("g", 6, (0, 1)), ("g", 6, (0, 2)), ("g", 6, (0, 3))]
    assert (s.pool.references(0), s.pool.shared, s.pool.used) == (3, 1, 4)
    s.submit(("g", 3), [1, 2, 3, 4, 5, 6, 7], 3)  # the leader has decoded into its last page: what is copied was there before
    plan = step(s, end="g")
    assert plan.copies == ((1, 4),)
    assert decodes(plan) == [("g", 7, (0, 1)), ("g", 7, (0, 2)), ("g", 7, (0, 3)), ("g", 6, (0, 4))]
    assert s.pool.free == 16


def test_a_prompt_that_ends_with_its_page_needs_no_copy() -> None:
    s = scheduler()
    for sample in range(2):
        s.submit(("g", sample), [1, 2, 3, 4, 5], 3)
    step(s)
    plan = step(s)
    assert plan.copies == ()
    assert decodes(plan) == [("g", 4, (0, 1)), ("g", 4, (0, 2))]


def test_a_latecomer_copies_from_whoever_is_left_of_its_group() -> None:
    s = scheduler(rows=2)
    for sample in range(2):
        s.submit(("g", sample), [1, 2, 3], 9)
    step(s)
    assert step(s).copies == ((0, 1),)
    s.abort(("g", 0))
    s.submit(("g", 2), [1, 2, 3], 9)
    plan = step(s)
    assert plan.copies == ((1, 0),)
    assert plan.prefill == ()


def test_prompts_that_begin_alike_share_their_full_pages_in_the_same_plan() -> None:
    s = scheduler(page_tokens=2)
    s.submit(key("a"), [1, 2, 3, 4, 5, 6], 2)
    s.submit(key("b"), [1, 2, 3, 4, 9, 9, 9], 2)
    s.submit(key("c"), [1, 2, 3], 2)
    assert chunks(step(s)) == [("a", 0, 5, (0, 1, 2)), ("b", 4, 2, (0, 1, 3, 4))]
    assert decodes(step(s)) == [("a", 5, (0, 1, 2)), ("b", 6, (0, 1, 3, 4)), ("c", 2, (0, 5))]


def test_whoever_is_left_goes_on_with_a_shared_prefill() -> None:
    s = scheduler(page_tokens=2, prefill_tokens=3)
    s.submit(("g", 0), [1, 2, 3, 4, 5, 6], 2)
    s.submit(("g", 1), [1, 2, 3, 4, 5, 6], 2)
    assert chunks(step(s)) == [("g", 0, 3, (0, 1, 2))]
    s.abort(("g", 0))
    plan = step(s)
    assert [(c.key, c.start, c.token_ids, c.table) for c in plan.prefill] == [(("g", 1), 3, (4, 5), (0, 1, 3))]
    assert decodes(step(s)) == [("g", 5, (0, 1, 3))]


def test_after_a_swap_nothing_older_is_shared_and_what_was_begun_is_mixed() -> None:
    s = scheduler()
    s.submit(key("a"), [1, 2, 3, 4, 5], 9)
    step(s, version=1)
    assert [d.mixed for d in step(s, version=1).decode] == [False]
    s.submit(key("b"), [1, 2, 3, 4, 5], 9)
    plan = step(s, version=2)
    assert [d.mixed for d in plan.decode] == [True]
    assert chunks(plan) == [("b", 0, 4, (2, 3))]
    s.submit(key("c"), [1, 2, 3, 4, 5], 9)  # version 1 again, but b's pages are of version 2, and a's in part
    assert chunks(step(s, version=1)) == [("c", 0, 4, (4, 5))]
    assert [d.mixed for d in step(s, version=1).decode] == [True, True, False]


def test_the_latest_gives_its_pages_up_and_comes_back_first_with_its_tokens_and_row() -> None:
    s = scheduler(rows=3, pages=4, page_tokens=2)
    s.submit(key("a"), [1, 1], 6)
    s.submit(key("b"), [2, 2], 4)
    step(s)
    for position in (1, 2, 3):
        assert [d[:2] for d in decodes(step(s))] == [("a", position), ("b", position)]
    s.submit(key("c"), [3], 1)  # one page would do, but b goes first
    assert decodes(step(s)) == [("a", 4, (0, 2, 1))]
    assert s.counts()[State.PREEMPTED] == s.counts()[State.WAITING] == s.preemptions == s.pool.free == 1
    assert decodes(step(s)) == [("a", 5, (0, 2, 1))]
    assert decodes(step(s)) == [("a", 6, (0, 2, 1, 3))]
    plan = step(s)
    assert plan.prefill == (Chunk(key=key("b"), row=1, start=0, token_ids=(2, 2, 9, 9), table=(0, 1, 2)),)
    assert [(d.key[0], d.row, d.table) for d in plan.decode] == [("c", 0, (3,))]
    assert [(d.token, d.position, d.steps_left) for d in step(s).decode] == [(9, 4, 1)]
    assert s.idle


def test_newcomers_leave_the_pages_that_the_next_dispatch_needs() -> None:
    s = scheduler(pages=3, page_tokens=1)
    s.submit(key("a"), [1], 3)
    s.submit(key("b"), [2, 2], 1)  # needs 2 pages; 2 are free, and a needs one of them next
    assert [d[0] for d in decodes(step(s))] == ["a"]
    assert s.counts()[State.WAITING] == 1


def test_keys_and_values_are_recomputed_after_a_swap_where_the_engine_asks_for_it() -> None:
    s = scheduler(tokens_per_dispatch=2)
    for sample in range(2):
        s.submit(("g", sample), [1, 2, 3], 9)
    s.submit(key("a"), [7], 9)
    step(s, version=1)
    step(s, version=1, count=2)
    s.recompute_all()
    assert s.pool.used == 0
    assert s.counts()[State.PREEMPTED] == 3
    plan = step(s, version=2)
    assert [(c.key, c.row, c.start, c.token_ids) for c in plan.prefill] == [(("g", 0), 0, 0, (1, 2, 3, 9)), (key("a"), 2, 0, (7, 9, 9))]
    plan = planned(s, version=2)
    assert [(d.key, d.row, d.token, d.position, d.mixed) for d in plan.decode] == [
        (("g", 0), 0, 9, 4, False),
        (("g", 1), 1, 9, 4, False),
        (key("a"), 2, 9, 3, False),
    ]
    assert s.preemptions == 0


@pytest.mark.parametrize(("keep", "start"), [("nothing", 0), ("prefilled", 4), ("all", 8)])
def test_the_next_turn_begins_behind_the_pages_that_are_kept(keep: Keep, start: int) -> None:
    """Of 5 tokens given and 4 drawn, 8 are processed: a page is prefilled, and one filled by drawing."""
    s = scheduler(keep=keep)
    s.submit(key("a"), [1, 2, 3, 4, 5], 4)
    for _ in range(5):
        step(s)
    assert (s.idle, s.pool.used, s.pool.kept) == (True, 0, start // 4)
    assert s.prefilled_tokens == 4
    s.submit(key("b"), [1, 2, 3, 4, 5, 9, 9, 9, 9, 7, 7], 4)
    ((name, begun, tokens, table),) = chunks(step(s))
    assert (name, begun, tokens, len(table)) == ("b", start, 10 - start, 3)
    assert (s.prefilled_tokens, s.reused_tokens) == (4 + 10 - start, start)
    s.abort(key("b"))
    assert s.pool.kept == (0 if keep == "nothing" else 2)  # what is prefilled counts, though nothing was drawn


def test_kept_pages_are_given_up_before_anybody_waits_the_oldest_and_its_last_pages_first() -> None:
    s = scheduler(rows=2, pages=5, page_tokens=2, keep="all")
    for name, token in (("a", 1), ("b", 2)):
        s.submit(key(name), [token] * 5, 1)
        step(s)
        step(s)
    assert (s.pool.kept, s.pool.free) == (4, 5)
    s.submit(key("c"), [3, 3, 3], 3)  # two pages, one of which was the last of a's
    assert chunks(step(s)) == [("c", 0, 2, (1, 4))]
    assert (s.pool.kept, s.preemptions) == (3, 0)
    s.submit(key("d"), [1, 1, 1], 1)  # the first of a's, and the last of b's
    assert decodes(step(s)) == [("c", 2, (1, 4)), ("d", 2, (0, 3))]
    assert (s.pool.kept, s.reused_tokens) == (2, 2)


def test_kept_pages_go_with_the_weights() -> None:
    s = scheduler(keep="all")
    given = [1, 2, 3, 4, 5, 6]
    s.submit(key("a"), given, 2)
    s.submit(key("late"), given, 20)
    step(s, version=1)
    step(s, version=1, end="a")
    assert s.pool.kept == 0  # the page is still the other's
    s.abort(key("late"))
    assert s.pool.kept == 1
    for name, version in (("b", 2), ("c", 1)):
        s.submit(key(name), given, 1)
        assert [start for _, start, *_ in chunks(step(s, version))] == [0]
        step(s, version)
    s.new_weights()  # under the version that was there
    s.submit(key("d"), given, 1)
    assert [start for _, start, *_ in chunks(step(s, version=1))] == [0]
    step(s, version=1)
    s.submit(key("e"), given, 3)
    assert [start for _, start, *_ in chunks(step(s, version=1))] == [4]
    step(s, version=1)
    step(s, version=2)  # e goes on with keys and values of both
    step(s, version=2)
    assert (s.idle, s.pool.kept) == (True, 0)


def test_a_paused_scheduler_plans_nothing_and_forgets_nothing() -> None:
    s = scheduler()
    s.submit(key("a"), [1, 2], 2)
    s.pause()
    assert s.plan(0) is None
    assert not s.idle
    s.resume()
    assert chunks(planned(s)) == [("a", 0, 1, (0,))]


def test_abort_in_every_state_and_in_flight() -> None:
    s = scheduler(rows=2, pages=2)
    for name in "abc":
        s.submit(key(name), [1], 4)
    assert s.abort(key("c"))  # waiting
    assert not s.abort(key("c"))
    plan = planned(s)
    assert [d.key[0] for d in plan.decode] == ["a", "b"]
    assert s.abort(key("a"))  # in flight
    s.submit(key("a"), [4], 4)  # the same key again: another request
    assert s.record({row: Outcome(token_ids=(8,), ended=True) for row in (0, 1)}) == (key("b"),)
    assert [(d.key[0], d.token) for d in planned(s).decode] == [("a", 4)]
    s.record({0: Outcome(token_ids=(8,), ended=False)})
    s.recompute_all()
    assert s.abort(key("a"))  # preempted
    assert s.idle
    assert s.pool.free == 2
    assert s.counts()[State.ABORTED] == 3


def test_requests_that_can_never_run_are_refused() -> None:
    s = scheduler(pages=2, page_tokens=2)
    s.submit(key("a"), [1, 2], 3)  # 4 positions are processed
    with pytest.raises(ValueError, match=r"2 prompt \+ 4 new tokens need 3 pages of 2 tokens; there are 2"):
        s.submit(key("b"), [1, 2], 4)
    with pytest.raises(ValueError, match="has not ended"):
        s.submit(key("a"), [1], 1)
    for prompt, new in (([], 1), ([1], 0)):
        with pytest.raises(ValueError, match="at least 1 of each"):
            s.submit(key("b"), prompt, new)
    with pytest.raises(ValueError, match="prefill_tokens = 0"):
        scheduler(prefill_tokens=0)


def test_calls_out_of_turn_are_refused_and_change_nothing() -> None:
    s = scheduler()
    with pytest.raises(TransitionError, match="no dispatch is planned"):
        s.record({})
    s.submit(key("a"), [1], 2)
    planned(s)
    for call in (lambda: s.plan(0), s.recompute_all):
        with pytest.raises(TransitionError, match="have not been recorded"):
            call()
    for wrong, message in (
        ({}, "1 to 1 tokens were due, and None came"),
        ({0: Outcome(token_ids=(), ended=True)}, "1 to 1 tokens were due"),
        ({0: Outcome(token_ids=(1, 2), ended=True)}, "1 to 1 tokens were due"),
        ({0: Outcome(token_ids=(1,), ended=True), 1: Outcome(token_ids=(1,), ended=True)}, r"rows \[1\], which do not decode"),
    ):
        with pytest.raises(TransitionError, match=message):
            s.record(wrong)
    assert s.record({0: Outcome(token_ids=(1,), ended=True)}) == (key("a"),)


def test_every_state_is_in_the_table_and_only_ended_ones_are_left_for_good() -> None:
    assert list(ALLOWED) == list(State)
    assert {state for state, to in ALLOWED.items() if not to} == {State.FINISHED, State.ABORTED}


# Random schedules


class Broken(AssertionError):
    """A promise that did not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of a schedule."""

    key: RequestKey
    prompt: tuple[int, ...]
    new: int


def drawn(key: RequestKey, history: list[int]) -> tuple[int, bool]:
    """The model: the next token, a function of key and history alone, and whether it is a stop token (one in ten)."""
    number = zlib.crc32(repr((key, history)).encode())
    return number % 3, number // 3 % 10 == 0


def alone(request: Request) -> list[int]:
    """What a request draws, without scheduler or pages."""
    history, stop = list(request.prompt), False
    while len(history) < len(request.prompt) + request.new and not stop:
        token, stop = drawn(request.key, history)
        history.append(token)
    return history[len(request.prompt) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a scheduler."""

    rows: int
    pages: int
    page_tokens: int
    prefill_tokens: int
    tokens_per_dispatch: int
    keep: Keep = "nothing"

    def scheduler(self) -> Scheduler:
        return scheduler(self.rows, self.pages, self.page_tokens, self.prefill_tokens, self.tokens_per_dispatch, self.keep)

    def pages_of(self, request: Request) -> int:
        return -(-(len(request.prompt) + request.new - 1) // self.page_tokens)


Cell = tuple[int, int, int, bool]  # position, token, version, whether a decoding row wrote it


@dataclass(slots=True)
class Device:
    """Pages that remember what was written. It reads a sequence through its table only."""

    shape: Shape
    cells: list[list[Cell | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = [[None] * self.shape.page_tokens for _ in range(self.shape.pages)]

    def copy(self, copies: tuple[tuple[int, int], ...]) -> None:
        for source, to in copies:
            self.cells[to] = list(self.cells[source])

    def prefill(self, chunk: Chunk, version: int) -> None:
        for position, token in enumerate(chunk.token_ids, chunk.start):
            self.write(chunk.table, (position, token, version, False))

    def decode(self, row: Decoding, version: int, steps: int) -> Outcome:
        tokens, ended = [row.token], False
        while len(tokens) <= min(steps, row.steps_left) and not ended:
            position = row.position + len(tokens) - 1
            self.write(row.table, (position, tokens[-1], version, True))
            token, ended = drawn(row.key, [token for _, token, *_ in self.read(row.table, position + 1)])
            tokens.append(token)
        return Outcome(token_ids=tuple(tokens[1:]), ended=ended)

    def write(self, table: Table, cell: Cell) -> None:
        index, offset = divmod(cell[0], self.shape.page_tokens)
        self.cells[table[index]][offset] = cell

    def read(self, table: Table, end: int) -> list[Cell]:
        """The cells of positions 0..end-1."""
        cells = [cell for page in table for cell in self.cells[page]][:end]
        if len(cells) < end or None in cells:
            raise Broken(f"not all {end} positions of table {table} are written: {cells}")
        return [cell for cell in cells if cell is not None]


@dataclass(slots=True)
class Schedule:
    """A scheduler, a device, and what was promised about them. Dictionaries know the live requests, oldest first."""

    shape: Shape
    recompute: bool = False  # on swap; else keep
    version: int = 0
    tokens: dict[RequestKey, list[int]] = field(default_factory=dict)
    requests: dict[RequestKey, Request] = field(default_factory=dict)
    rows: dict[RequestKey, int] = field(default_factory=dict)
    plans_as_oldest: Counter[RequestKey] = field(default_factory=Counter)
    recomputed_as_oldest: Counter[RequestKey] = field(default_factory=Counter)
    results: dict[RequestKey, list[int]] = field(default_factory=dict)  # of those that finished
    submitted: int = 0
    aborted: int = 0
    prefilled: int = 0  # tokens
    scheduler: Scheduler = field(init=False)
    device: Device = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler, self.device = self.shape.scheduler(), Device(self.shape)

    # What happens

    def submit(self, request: Request) -> None:
        self.scheduler.submit(request.key, request.prompt, request.new)
        self.requests[request.key], self.tokens[request.key] = request, list(request.prompt)
        self.submitted += 1

    def abort(self, key: RequestKey) -> None:
        if not self.scheduler.abort(key):
            raise Broken(f"{key} is live and cannot be aborted")
        self.forget(key)
        self.aborted += 1

    def forget(self, key: RequestKey) -> None:
        del self.requests[key], self.tokens[key]
        self.rows.pop(key, None)

    def swap(self, version: int) -> None:
        self.version = version
        if self.recompute:
            self.scheduler.recompute_all()
            self.recomputed_as_oldest.update(list(self.requests)[:1])
        else:
            self.scheduler.recompute_undrawn()
            self.recomputed_as_oldest.update(key for key in list(self.requests)[:1] if self.begins(key))

    def begins(self, key: RequestKey) -> bool:
        """Nothing is drawn yet."""
        return len(self.tokens[key]) == len(self.requests[key].prompt)

    def dispatch(self, steps: int, *, decode_first: bool = False, abort: RequestKey | None = None) -> None:
        """One plan, checked, run and recorded. Rows make up to `steps` steps; a request may be aborted before the record."""
        running, idle, preempted = self.scheduler._running, self.shape.pages - len(self.held()), self.scheduler.preemptions
        enough = sum(self.scheduler._pages_due(one) - len(one.table) for one in running) <= idle
        plan = self.scheduler.plan(self.version)
        if enough and self.scheduler.preemptions > preempted:
            raise Broken("a request gave its pages up though there were enough")
        if plan is None:
            if self.requests:
                raise Broken(f"{len(self.requests)} requests are live and nothing is planned")
            return
        self.check_plan(plan)
        self.check_pages()
        self.check_order()
        self.device.copy(plan.copies)
        outcomes = self.decode(plan, steps) if decode_first else {}
        for chunk in plan.prefill:
            self.check_reads(chunk.key, chunk.table, chunk.start)
            self.device.prefill(chunk, plan.version)
            self.prefilled += len(chunk.token_ids)
        outcomes = outcomes or self.decode(plan, steps)
        if abort is not None:
            self.abort(abort)
        finished = self.scheduler.record(outcomes)
        for row in plan.decode:
            if row.key != abort:
                self.tokens[row.key] += outcomes[row.row].token_ids
        for key in finished:
            self.results[key] = self.tokens[key][len(self.requests[key].prompt) :]
            self.forget(key)
        counts = self.scheduler.counts()
        if (counts[State.FINISHED], counts[State.ABORTED], sum(counts.values())) != (len(self.results), self.aborted, self.submitted):
            raise Broken(f"{counts} do not balance")

    def decode(self, plan: Plan, steps: int) -> dict[int, Outcome]:
        for row in plan.decode:
            self.check_reads(row.key, row.table, row.position, None if row.mixed else plan.version)
        return {row.row: self.device.decode(row, plan.version, steps) for row in plan.decode}

    def finish(self) -> None:
        while self.requests:
            self.dispatch(self.shape.tokens_per_dispatch)
        pool = self.scheduler.pool
        if (
            not self.scheduler.idle
            or pool.used
            or len(self.scheduler._index) != pool.kept
            or sorted(pool.take(pool.pages)) != list(range(pool.pages))
        ):
            raise Broken(f"{pool.used} pages leak")
        if self.aborted + len(self.results) != self.submitted:
            raise Broken("a request did not end, or twice")

    # What is promised

    def check_reads(self, key: RequestKey, table: Table, end: int, version: int | None = None) -> None:
        """A sequence finds exactly its own tokens before `end` in its pages, computed at this version."""
        cells = self.device.read(table, end)
        if [(position, token) for position, token, *_ in cells] != list(enumerate(self.tokens[key][:end])):
            raise Broken(f"{key} reads tokens that are not its own")
        if version is not None and any(computed != version for _, _, computed, _ in cells):
            raise Broken(f"{key} reads keys and values of another version")
        if self.shape.keep != "all" and any(by_row for *_, by_row in cells[: len(self.requests[key].prompt) - 1]):
            raise Broken(f"{key} reads of its prompt what a decoding row has written")

    def check_plan(self, plan: Plan) -> None:
        entries = [*plan.prefill, *plan.decode]
        if len({entry.key for entry in entries}) < len(entries) or len({entry.row for entry in entries}) < len(entries):
            raise Broken(f"a request or row is in {plan} twice")
        if any(self.rows.setdefault(entry.key, entry.row) != entry.row or entry.row >= self.shape.rows for entry in entries):
            raise Broken("a request changed its row")
        if sum(len(chunk.token_ids) for chunk in plan.prefill) > self.shape.prefill_tokens:
            raise Broken("too many tokens are prefilled")
        sources, copied = [source for source, _ in plan.copies], [to for _, to in plan.copies]
        if len(set(copied)) < len(copied) or set(copied) & set(sources):
            raise Broken(f"the order of copies {plan.copies} matters")
        for chunk in plan.prefill:
            if list(chunk.token_ids) != self.tokens[chunk.key][chunk.start : chunk.start + len(chunk.token_ids)]:
                raise Broken(f"{chunk} has tokens that are not its own")
        for row in plan.decode:
            tokens, request = self.tokens[row.key], self.requests[row.key]
            left = len(request.prompt) + request.new - len(tokens)
            if (row.position, row.token, row.steps_left) != (len(tokens) - 1, tokens[-1], left):
                raise Broken(f"{row} is not where its request is")
            last = row.position + min(left, self.shape.tokens_per_dispatch) - 1
            written = row.table[row.position // self.shape.page_tokens : last // self.shape.page_tokens + 1]
            if len(row.table) * self.shape.page_tokens <= last or any(self.scheduler.pool.references(page) != 1 for page in written):
                raise Broken(f"{row} writes where it may not")
            if row.mixed and (self.recompute or self.begins(row.key)):
                raise Broken(f"{row} is mixed")

        running = {sequence.key for sequence in self.scheduler._running}
        if not plan.prefill and running != {row.key for row in plan.decode}:
            raise Broken("a request stands still, though nothing is prefilled")

    def check_pages(self) -> None:
        held, kept = self.held(), self.scheduler.pool._kept
        if any(self.scheduler.pool.references(page) != held[page] for page in range(self.shape.pages)):
            raise Broken(f"references differ from the tables' {held}")
        if kept.keys() & held.keys() or any(page not in held and page not in kept for page in self.scheduler._index._keys):
            raise Broken("a page is held and kept, or a free page is in the index")
        if self.scheduler.pool.free != self.shape.pages - len(held):
            raise Broken("what is kept takes room")

    def held(self) -> Counter[int]:
        """Tables that hold each page."""
        return Counter(page for sequence in self.scheduler._live.values() for page in sequence.table)

    def check_order(self) -> None:
        """Those running were submitted before all others; the oldest runs, and ends within so many plans."""
        if [sequence.key for sequence in (*self.scheduler._running, *self.scheduler._queue)] != list(self.requests):
            raise Broken("requests are not served in order")
        oldest, request = next(iter(self.requests.items()))
        self.plans_as_oldest[oldest] += 1
        prefills = -(-(len(request.prompt) + request.new) // self.shape.prefill_tokens)
        if self.plans_as_oldest[oldest] > prefills * (1 + self.recomputed_as_oldest[oldest]) + request.new:
            raise Broken(f"{oldest} starves")


def random_requests(draw: random.Random, count: int) -> list[Request]:
    """Groups of one to five; prompts begin alike, some are prefixes of others."""
    base, requests = [draw.randint(0, 2) for _ in range(12)], list[Request]()
    while len(requests) < count:
        own = [draw.randint(0, 2) for _ in range(draw.choice((0, 0, 1, 3)))]
        prompt = tuple((base[: draw.randint(0, 12)] + own) or [1])
        name, new = f"g{len(requests)}", draw.randint(1, 9)
        requests += [Request(key=(name, sample), prompt=prompt, new=new) for sample in range(draw.choice((1, 1, 2, 3, 5)))]
    return requests


def random_shape(draw: random.Random, requests: list[Request]) -> Shape:
    """A scheduler whose pool holds the largest request, or up to four times as much."""
    page_tokens = draw.choice((1, 2, 4))
    largest = max(-(-(len(request.prompt) + request.new - 1) // page_tokens) for request in requests)
    return Shape(
        rows=draw.randint(1, 5),
        pages=max(1, int(largest * draw.choice((1, 1.3, 2, 4)))),
        page_tokens=page_tokens,
        prefill_tokens=draw.choice((1, 3, 8, 100)),
        tokens_per_dispatch=draw.randint(1, 4),
        keep=draw.choice(("nothing", "prefilled", "all")),
    )


def next_turn(draw: random.Random, before: Request, said: list[int]) -> Request:
    """What was said goes on with a few tokens of somebody else's."""
    answer = tuple(draw.randint(0, 2) for _ in range(draw.randint(1, 3)))
    return Request(key=(f"{before.key[0]}+", before.key[1]), prompt=(*before.prompt, *said, *answer), new=draw.randint(1, 5))


def run(seed: int) -> Schedule:
    """The schedule of a seed, to its end."""
    draw = random.Random(f"schedule {seed}")
    requests = random_requests(draw, draw.randint(1, 12))
    schedule = Schedule(random_shape(draw, requests), recompute=draw.random() < 0.5)
    calm = draw.random() < 0.3  # no aborts, swaps and early exits
    todo, by_key = list(reversed(requests)), {request.key: request for request in requests}
    while todo:
        while todo and draw.random() < 0.5:
            schedule.submit(todo.pop())
        live = list(schedule.requests)
        if live and draw.random() < 0.05 and not calm:
            schedule.abort(draw.choice(live))
        if draw.random() < 0.1 and not calm:
            schedule.swap(draw.choice((schedule.version + 1, schedule.version + 1, max(0, schedule.version - 1))))
        if draw.random() < 0.05:
            schedule.scheduler.pause()
            if schedule.scheduler.plan(schedule.version) is not None:
                raise Broken("paused, and yet it plans")
            schedule.scheduler.resume()
        for _ in range(draw.randint(0, 3)):
            steps = schedule.shape.tokens_per_dispatch if calm else draw.randint(1, schedule.shape.tokens_per_dispatch)
            live = list(schedule.requests)
            abort = draw.choice(live) if live and draw.random() < 0.03 and not calm else None
            schedule.dispatch(steps, decode_first=draw.random() < 0.5, abort=abort)
        if schedule.results and draw.random() < 0.3:
            ended = draw.choice(list(schedule.results))
            turn = next_turn(draw, by_key[ended], schedule.results[ended])
            if turn.key not in by_key and schedule.shape.pages_of(turn) <= schedule.shape.pages:
                by_key[turn.key] = turn
                schedule.submit(turn)
    schedule.finish()
    if any(tokens != alone(by_key[key]) for key, tokens in schedule.results.items()):
        raise Broken("a request drew other tokens than it draws alone")
    return schedule


@pytest.mark.parametrize("part", range(10))
def test_every_promise_holds_in_random_schedules(part: int) -> None:
    preempted = aborted = swapped = reused = 0
    for seed in range(part * SCHEDULES_A_PART, (part + 1) * SCHEDULES_A_PART):
        schedule = run(seed)
        preempted += schedule.scheduler.preemptions > 0
        aborted += schedule.aborted > 0
        swapped += schedule.version > 0
        reused += schedule.scheduler.reused_tokens > 0
    assert min(preempted, aborted, swapped, reused) > SCHEDULES_A_PART / 10  # the schedules do all that


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Request], random.Random]:
    randomness = random.Random(draw(st.integers(0, 2**32)))
    return random_requests(randomness, draw(st.integers(1, 8))), randomness


@settings(max_examples=60, deadline=None)
@given(loads())
def test_results_depend_on_neither_order_nor_sizes(drawn: tuple[list[Request], random.Random]) -> None:
    requests, randomness = drawn
    expected = {request.key: alone(request) for request in requests}
    for _ in range(3):
        schedule = Schedule(random_shape(randomness, requests))
        for request in randomness.sample(requests, len(requests)):
            schedule.submit(request)
            if randomness.random() < 0.3:
                schedule.dispatch(randomness.randint(1, schedule.shape.tokens_per_dispatch))
        schedule.finish()
        assert schedule.results == expected


@settings(max_examples=60, deadline=None)
@given(loads(), st.sampled_from((1, 2, 4)), st.sampled_from((1, 3, 8)))
def test_what_prompts_have_in_common_is_computed_once(drawn: tuple[list[Request], random.Random], page_tokens: int, chunk: int) -> None:
    requests, randomness = drawn
    pages = sum(len(request.prompt) + 60 for request in requests)
    shape = Shape(rows=len(requests), pages=pages, page_tokens=page_tokens, prefill_tokens=chunk, tokens_per_dispatch=1)
    schedule = Schedule(shape)
    for request in randomness.sample(requests, len(requests)):
        schedule.scheduler.submit(request.key, request.prompt, 60)  # none ends before all are prefilled
        if randomness.random() < 0.3:
            step_all(schedule)
    for _ in range(50):
        step_all(schedule)
    prefixes = [request.prompt[:-1] for request in requests]
    full = {prefix[:end] for prefix in prefixes for end in range(page_tokens, len(prefix) + 1, page_tokens)}
    tails = {prefix for prefix in prefixes if len(prefix) % page_tokens}
    assert schedule.prefilled == len(full) * page_tokens + sum(len(prefix) % page_tokens for prefix in tails)


def step_all(schedule: Schedule) -> None:
    """One dispatch in which nobody ends."""
    if (plan := schedule.scheduler.plan(0)) is not None:
        schedule.prefilled += sum(len(chunk.token_ids) for chunk in plan.prefill)
        schedule.scheduler.record({row.row: Outcome(token_ids=(0,), ended=False) for row in plan.decode})


# Worse rules, each of which must be found out


def shares_partly_filled_pages(index: PrefixIndex, epoch: int, token_ids: list[int]) -> list[int]:
    found, before = list[int](), -1 - epoch
    for block in index._blocks(token_ids):
        if (before, block) not in index._pages:
            break
        before = index._pages[before, block][0]
        found.append(before)
    return found


def shares_across_versions(index: PrefixIndex, epoch: int, token_ids: list[int], known: Callable = PrefixIndex.full_pages) -> list[int]:
    return next((pages for old in range(epoch, -1, -1) if (pages := known(index, old, token_ids))), [])


def shares_any_page_with_these_tokens(index: PrefixIndex, epoch: int, token_ids: list[int]) -> list[int]:
    blocks = {block: pages[0] for (_, block), pages in index._pages.items() if len(block) == index._page_tokens}
    found = list[int]()
    for block in index._blocks(token_ids):
        if block not in blocks:
            break
        found.append(blocks[block])
    return found


def releases_all_but_the_last(pool: PagePool, pages: Iterator[int], keep: frozenset[int], release=PagePool.release) -> tuple[int, ...]:
    return release(pool, list(pages)[1:], keep)


def keeps_the_first_pages_shortest(pool: PagePool, pages: Iterator[int], keep: frozenset[int], release=PagePool.release) -> tuple[int, ...]:
    return release(pool, list(pages)[::-1], keep)


def keeps_drawn_tokens(s: Scheduler, sequence: Sequence, worth_keeping: Callable = Scheduler._worth_keeping) -> frozenset[int]:
    s._know_drawn(sequence)
    return worth_keeping(s, sequence)


def takes_kept_pages_twice(pool: PagePool, pages: list[int]) -> None:
    for page in pages:
        pool._references[page] += 1


def copies_before_it_is_computed(s: Scheduler) -> tuple[tuple[int, int], ...]:
    copies = list[tuple[int, int]]()
    for sequence in s._running:
        s._advance(sequence)
        tail = s._copied_tail(sequence)
        if tail is not None and sequence.computed == sequence.newest - tail[1]:
            copies.append((tail[0], sequence.table[sequence.computed // s._page_tokens]))
            s._fill(sequence, sequence.newest)
    return tuple(copies)


def without_copies(s: Scheduler) -> tuple[tuple[int, int], ...]:
    for sequence in s._running:
        if sequence.computed < sequence.newest:
            s._advance(sequence)
    return ()


def takes_pages_with_their_filling(s: Scheduler, sequence: Sequence, count: int) -> None:
    sequence.table.extend(s.pool.take(count))


def preempts_the_oldest(s: Scheduler, preempt: Callable = Scheduler._preempt_latest) -> None:
    s._running.insert(len(s._running), s._running.pop(0))
    preempt(s)


def preempted_to_the_end_of_the_queue(s: Scheduler, preempt: Callable = Scheduler._preempt_latest) -> None:
    preempt(s)
    s._queue.rotate(-1)


def shortest_first(s: Scheduler, admit: Callable = Scheduler._admit) -> None:
    ordered = sorted(s._queue, key=lambda sequence: sequence.most_tokens)
    s._queue.clear()
    s._queue.extend(ordered)
    admit(s)


def shares_without_a_new_epoch(s: Scheduler, sequence: Sequence, reserved: int = 0, furnish: Callable = Scheduler._furnish) -> bool:
    epoch, done = sequence.epoch, furnish(s, sequence, reserved)
    if done and epoch >= 0:
        sequence.epoch = epoch
    return done


def one_page_too_few(s: Scheduler, sequence: Sequence, dispatches: int = 1, due: Callable = Scheduler._pages_due) -> int:
    return max(1, due(s, sequence, dispatches) - 1)


@pytest.mark.parametrize(
    ("owner", "name", "worse", "message"),
    [
        (PrefixIndex, "forget", lambda index, pages: None, "free page is in the index|is free"),
        (PrefixIndex, "full_pages", shares_partly_filled_pages, "writes where it may not|not its own"),
        (PrefixIndex, "full_pages", shares_across_versions, "of another version"),
        (PrefixIndex, "full_pages", shares_any_page_with_these_tokens, "not its own|not all|writes"),
        (PagePool, "share", lambda pool, pages: None, "references differ"),
        (PagePool, "release", releases_all_but_the_last, "references differ|leak"),
        (PagePool, "release", keeps_the_first_pages_shortest, "not its own|not all"),
        (PagePool, "share", takes_kept_pages_twice, "held and kept|references differ"),
        (PagePool, "free", property(lambda pool: len(pool._empty)), "gave its pages up|takes room|leak|cannot take|nothing is planned"),
        (Scheduler, "_worth_keeping", keeps_drawn_tokens, "a decoding row has written"),
        (Scheduler, "_copy_tails", copies_before_it_is_computed, "not its own|not all"),
        (Scheduler, "_copy_tails", without_copies, "stands still"),
        (Scheduler, "_take", takes_pages_with_their_filling, "not its own|not all"),
        (Scheduler, "_preempt_latest", preempts_the_oldest, "not served in order|writes where it may not"),
        (Scheduler, "_preempt_latest", preempted_to_the_end_of_the_queue, "not served in order"),
        (Scheduler, "_admit", shortest_first, "not served in order"),
        (Scheduler, "_pages_due", one_page_too_few, "writes where it may not"),
        (Scheduler, "recompute_all", lambda s: None, "is mixed"),
        (Scheduler, "recompute_undrawn", lambda s: 0, "is mixed"),
        (Scheduler, "_furnish", shares_without_a_new_epoch, "of another version|is mixed"),
        (Scheduler, "_fill", lambda s, sequence, end: setattr(sequence, "computed", end), "stands still"),
    ],
)
def test_a_worse_rule_is_found_out(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, worse: Callable, message: str) -> None:
    monkeypatch.setattr(owner, name, worse)
    with pytest.raises((Broken, TransitionError), match=message):
        deque(map(run, range(1_000)), maxlen=0)
