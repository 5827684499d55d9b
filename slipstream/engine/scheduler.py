"""The scheduler: which sequence holds which row and pages, and what each dispatch computes. A pure state machine, without jax.

Sequences are served in the order they were submitted. Those with pages are `running`; the others wait in one queue and every
one of them was submitted later than any that runs. So a sequence that must give its pages up (always the latest that runs)
goes to the head of the queue, comes back first, and can keep its row meanwhile: nobody else is admitted before it.

Full pages of sequences that have ended are kept for those that begin alike, such as the next turn of a conversation, until their
place is needed or the weights change. `Keep` says which: a position's bits must not depend on who computed them.

It does not look at weights, stop tokens or text. The engine calls `plan` and `record` in turn, and the rest in between.
"""

import heapq
from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Literal

from slipstream.core.errors import TransitionError
from slipstream.engine.blocks import PagePool
from slipstream.engine.plan import Chunk, Decoding, Outcome, Plan, RequestKey
from slipstream.engine.prefix import PrefixIndex
from slipstream.engine.sequence import Sequence, State

Keep = Literal["nothing", "prefilled", "all"]  # of the full pages of ended sequences; "all": also those with drawn tokens


class Scheduler:
    """Plans dispatches for `rows` sequences at a time over `pages` pages of `page_tokens` tokens.

    A plan prefills at most `prefill_tokens` tokens and decodes up to `tokens_per_dispatch` steps. Results of a dispatch must be
    recorded before the next is planned. All counts are at least 1. Counters, never reset: `preemptions`, `prefilled_tokens`, and
    `reused_tokens`, those found in kept pages instead.
    """

    def __init__(
        self, *, rows: int, pages: int, page_tokens: int, prefill_tokens: int, tokens_per_dispatch: int, keep: Keep = "nothing"
    ) -> None:
        sizes = {"rows": rows, "page_tokens": page_tokens, "prefill_tokens": prefill_tokens, "tokens_per_dispatch": tokens_per_dispatch}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} = {value}: at least 1 is needed")
        self.pool = PagePool(pages)
        self.preemptions = 0  # sequences that gave their pages up because others needed them
        self.prefilled_tokens = self.reused_tokens = 0
        self._page_tokens, self._prefill_tokens, self._steps = page_tokens, prefill_tokens, tokens_per_dispatch
        self._keep: Keep = keep
        self._index = PrefixIndex(page_tokens)
        self._filled = [0] * pages  # positions of each page that are prefilled, or will be after the present plan
        self._free_rows = list(range(rows))  # a heap
        self._live: dict[RequestKey, Sequence] = {}
        self._running: list[Sequence] = []  # in submit order
        self._queue: deque[Sequence] = deque()  # in submit order: preempted, then waiting
        self._counts = dict.fromkeys(State, 0)
        self._version: int | None = None
        self._epoch = -1  # changes of the version so far; unlike a version, never comes back
        self._paused = False
        self._planned: dict[int, Sequence] | None = None  # by row, those that decode in the plan not yet recorded

    # What the engine's users ask for

    def submit(self, key: RequestKey, prompt_ids: Iterable[int], max_new_tokens: int) -> None:
        """Queue a request. Raises ValueError where it is empty, known already, or too long for the whole pool."""
        tokens = [int(token) for token in prompt_ids]
        if key in self._live:
            raise ValueError(f"request {key} has been submitted and has not ended")
        if not tokens or max_new_tokens < 1:
            raise ValueError(f"request {key}: {len(tokens)} prompt + {max_new_tokens} new tokens; at least 1 of each is needed")
        sequence = Sequence(key=key, tokens=tokens, given=len(tokens), most_tokens=len(tokens) + max_new_tokens)
        needed = self._pages_to(sequence.most_tokens - 1)  # the last token drawn is never processed
        if needed > self.pool.pages:
            raise ValueError(
                f"request {key}: {len(tokens)} prompt + {max_new_tokens} new tokens need {needed} pages of {self._page_tokens} tokens; "
                f"there are {self.pool.pages}"
            )
        self._live[key] = sequence
        self._counts[State.WAITING] += 1
        self._queue.append(sequence)

    def abort(self, key: RequestKey) -> bool:
        """End a request now, also between `plan` and `record`. False where no such request waits or runs."""
        sequence = self._live.get(key)
        if sequence is None:
            return False
        (self._running if sequence.state is State.RUNNING else self._queue).remove(sequence)
        self._end(sequence, State.ABORTED)
        return True

    def pause(self) -> None:
        """No plans until `resume`. Nothing is lost."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def new_weights(self) -> None:
        """What is computed so far is of other weights than the next plan's, whatever their version. Not between `plan` and `record`."""
        self._check_recorded()
        self._version = None

    def recompute_all(self) -> None:
        """Every running sequence gives up its pages, and is prefilled again by the next plans. Not between `plan` and `record`."""
        self._check_recorded()
        while self._running:
            self._preempt_latest()

    def recompute_undrawn(self) -> int:
        """As `recompute_all`, those of which nothing is drawn yet; they keep their place. How many. For new weights: whatever these
        then draw rests on them alone.
        """
        self._check_recorded()
        found = [sequence for sequence in self._running if len(sequence.tokens) == sequence.given]
        for sequence in found:
            self._release(sequence)
        return len(found)

    def complete(self) -> tuple[Chunk, ...]:
        """The running sequences whose prefill is done, in submit order, each with all its tokens (the newest has no keys and values)."""
        return tuple(
            Chunk(key=one.key, row=one.row, start=0, token_ids=tuple(one.tokens), table=tuple(one.table))
            for one in self._running
            if one.computed == one.newest
        )

    def counts(self) -> dict[State, int]:
        """Sequences by state, ended ones included: the sum is what was ever submitted."""
        return dict(self._counts)

    @property
    def idle(self) -> bool:
        """Every request has ended."""
        return not self._live

    # Dispatches

    def plan(self, version: int) -> Plan | None:
        """What the next dispatch, with weights `version`, does. None where nothing is left to do, or while paused."""
        self._check_recorded()
        if self._paused:
            return None
        if version != self._version:
            self._version, self._epoch = version, self._epoch + 1
            self._index.forget(self.pool.drop_kept())
        self._extend_running()
        self._admit()
        copies = self._copy_tails()
        decode = [sequence for sequence in self._running if sequence.computed == sequence.newest]
        chunks = self._prefill()
        if not decode and not chunks:
            return None
        self._planned = {sequence.row: sequence for sequence in decode}
        return Plan(version=version, copies=copies, prefill=chunks, decode=tuple(self._decoding(sequence) for sequence in decode))

    def record(self, outcomes: Mapping[int, Outcome]) -> tuple[RequestKey, ...]:
        """Take the results of the planned dispatch, by row; the requests that finished. Those of aborted requests are ignored.

        Raises TransitionError, changing nothing, for results that do not belong to the plan.
        """
        if self._planned is None:
            raise TransitionError("results came, but no dispatch is planned")
        if unknown := [row for row in outcomes if row not in self._planned]:
            raise TransitionError(f"results came for rows {unknown}, which do not decode")
        due = {row: sequence for row, sequence in self._planned.items() if sequence.state is State.RUNNING}
        for row, sequence in due.items():
            steps = min(self._steps, sequence.steps_left)
            if row not in outcomes or not 1 <= len(outcomes[row].token_ids) <= steps:
                raise TransitionError(f"request {sequence.key}, row {row}: 1 to {steps} tokens were due, and {outcomes.get(row)} came")
        self._planned = None
        finished: list[RequestKey] = []
        for row, sequence in due.items():
            sequence.tokens += outcomes[row].token_ids
            sequence.computed = sequence.newest
            if outcomes[row].ended or sequence.steps_left == 0:
                self._running.remove(sequence)
                self._end(sequence, State.FINISHED)
                finished.append(sequence.key)
        return tuple(finished)

    # Pages and rows

    def _pages_to(self, position: int) -> int:
        """Pages that hold the positions before this one."""
        return -(-position // self._page_tokens)

    def _pages_due(self, sequence: Sequence, dispatches: int = 1) -> int:
        """Pages a sequence needs for its tokens and so many more dispatches."""
        return self._pages_to(sequence.newest + min(dispatches * self._steps, sequence.steps_left))

    def _take(self, sequence: Sequence, count: int) -> None:
        taken = self.pool.take(count)
        self._index.forget(taken)  # some may have been kept
        for page in taken:
            self._filled[page] = 0
            sequence.table.append(page)

    def _release(self, sequence: Sequence, keep: Container[int] = ()) -> None:
        """Give up the pages; those to keep, the last ones first, so that none is kept longer than the one before it."""
        self._index.forget(self.pool.release(reversed(sequence.table), keep))
        sequence.table.clear()
        sequence.computed = 0

    def _worth_keeping(self, sequence: Sequence) -> frozenset[int]:
        """Pages of a sequence that ends which another can begin with: full, and computed wholly with the present weights."""
        if self._keep == "nothing" or sequence.epoch != self._epoch:
            return frozenset()
        if self._keep == "all":
            self._know_drawn(sequence)
        size = self._page_tokens
        return frozenset(page for page in sequence.table if self._index.full(page) and self._filled[page] == size)

    def _know_drawn(self, sequence: Sequence) -> None:
        """Make those pages known that decoding has filled."""
        full = sequence.computed // self._page_tokens
        drawn = [page for page in sequence.table[:full] if not self._index.full(page)]
        self._index.forget(drawn)  # the first was known by the tokens that were prefilled in it
        self._index.add(self._epoch, sequence.tokens[: full * self._page_tokens], sequence.table)
        for page in drawn:
            self._filled[page] = self._page_tokens

    def _extend_running(self) -> None:
        """Give every running sequence the pages of one more dispatch, oldest first, preempting the latest where they run out.

        The oldest always goes on: alone it has the whole pool, and `submit` made sure that this is enough.
        """
        done = 0
        while done < len(self._running):
            sequence = self._running[done]
            if self._extend(sequence) if sequence.table else self._furnish(sequence):
                done += 1
            else:
                self._preempt_latest()
                self.preemptions += 1

    def _extend(self, sequence: Sequence) -> bool:
        """The pages of one more dispatch, where there are enough."""
        missing = self._pages_due(sequence) - len(sequence.table)
        if missing > self.pool.free:
            return False
        self._take(sequence, missing)
        return True

    def _furnish(self, sequence: Sequence, reserved: int = 0) -> bool:
        """All the pages of a sequence without any, shared with others of the present weights as far as they begin alike.

        False where there are not enough, `reserved` ones left free.
        """
        known = sequence.tokens[:-1]
        shared = self._index.full_pages(self._epoch, known)
        own, kept = self._pages_due(sequence) - len(shared), sum(self.pool.references(page) == 0 for page in shared)
        if own + kept + reserved > self.pool.free:
            return False
        self.reused_tokens += kept * self._page_tokens
        sequence.epoch = self._epoch
        self.pool.share(shared)
        sequence.table.extend(shared)
        self._take(sequence, own)
        self._index.add(self._epoch, known, sequence.table)
        return True

    def _admit(self) -> None:
        """Move the head of the queue to the rows as long as there is a row and there are pages. Nobody overtakes the head.

        Pages that those running need in their next dispatch are left free, or the newcomer would be preempted at once.
        """
        ahead = sum(self._pages_due(sequence, dispatches=2) - len(sequence.table) for sequence in self._running)
        while self._queue:
            sequence = self._queue[0]
            if (sequence.row < 0 and not self._free_rows) or not self._furnish(sequence, reserved=ahead):
                return
            self._running.append(self._queue.popleft())
            self._move(sequence, State.RUNNING)
            if sequence.row < 0:
                sequence.row = heapq.heappop(self._free_rows)
            ahead += self._pages_due(sequence, dispatches=2) - len(sequence.table)

    def _preempt_latest(self) -> None:
        sequence = self._running.pop()
        self._queue.appendleft(sequence)
        self._move(sequence, State.PREEMPTED)
        self._release(sequence)

    def _end(self, sequence: Sequence, state: State) -> None:
        self._move(sequence, state)
        self._release(sequence, self._worth_keeping(sequence))
        if sequence.row >= 0:
            heapq.heappush(self._free_rows, sequence.row)
        del self._live[sequence.key]

    def _move(self, sequence: Sequence, state: State) -> None:
        before = sequence.state
        sequence.become(state)
        self._counts[before] -= 1
        self._counts[state] += 1

    def _check_recorded(self) -> None:
        if self._planned is not None:
            raise TransitionError("the results of the planned dispatch have not been recorded")

    # What is computed

    def _advance(self, sequence: Sequence) -> None:
        """Skip the positions that are computed already, by this sequence or another that holds the same page."""
        while sequence.computed < sequence.newest:
            index, offset = divmod(sequence.computed, self._page_tokens)
            filled = self._filled[sequence.table[index]]
            if filled <= offset:
                return
            sequence.computed += filled - offset

    def _fill(self, sequence: Sequence, end: int) -> None:
        """Note that the positions of a sequence before `end` are computed after this plan."""
        for index in range(sequence.computed // self._page_tokens, self._pages_to(end)):
            self._filled[sequence.table[index]] = min(self._page_tokens, end - index * self._page_tokens)
        sequence.computed = end

    def _copied_tail(self, sequence: Sequence) -> tuple[int, int] | None:
        """The source of a sequence's last, partly prefilled page and its positions. None: it has none, or computes it itself."""
        index, positions = divmod(sequence.newest, self._page_tokens)
        if positions == 0:
            return None
        source = self._index.first(sequence.table[index])
        return None if source == sequence.table[index] else (source, positions)

    def _copy_tails(self) -> tuple[tuple[int, int], ...]:
        """Complete those sequences whose last page lacks only what another's, complete before this plan, has."""
        copies: list[tuple[int, int]] = []
        for sequence in self._running:
            self._advance(sequence)
            tail = self._copied_tail(sequence) if sequence.computed < sequence.newest else None
            if tail is None:
                continue
            source, positions = tail
            if sequence.computed == sequence.newest - positions and self._filled[source] == positions:
                copies.append((source, sequence.table[sequence.computed // self._page_tokens]))
                self._fill(sequence, sequence.newest)
        return tuple(copies)

    def _prefill(self) -> tuple[Chunk, ...]:
        """Spend the prefill tokens, oldest sequence first. What a plan's earlier chunks compute counts as computed for the later."""
        chunks: list[Chunk] = []
        left = self._prefill_tokens
        for sequence in self._running:
            self._advance(sequence)
            tail = self._copied_tail(sequence) if sequence.computed < sequence.newest else None
            start = sequence.computed
            end = min(start + left, sequence.newest - (0 if tail is None else tail[1]))
            if end > start:
                left -= end - start
                self.prefilled_tokens += end - start
                self._fill(sequence, end)
                tokens, table = tuple(sequence.tokens[start:end]), tuple(sequence.table)
                chunks.append(Chunk(key=sequence.key, row=sequence.row, start=start, token_ids=tokens, table=table))
        return tuple(chunks)

    def _decoding(self, sequence: Sequence) -> Decoding:
        return Decoding(
            key=sequence.key,
            row=sequence.row,
            token=sequence.tokens[-1],
            position=sequence.newest,
            steps_left=sequence.steps_left,
            mixed=sequence.epoch != self._epoch,
            table=tuple(sequence.table),
        )
