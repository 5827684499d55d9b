"""The page pool counts right under any sequence of calls and refuses wrong ones; the prefix index finds exactly what was added."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream.core.errors import TransitionError
from slipstream.engine.blocks import PagePool
from slipstream.engine.prefix import PrefixIndex


def test_the_lowest_free_pages_are_taken_first() -> None:
    pool = PagePool(6)
    assert pool.take(4) == (0, 1, 2, 3)
    assert pool.release((2, 0)) == (2, 0)
    assert pool.take(3) == (0, 2, 4)
    assert (pool.free, pool.used, pool.pages) == (1, 5, 6)


def test_a_shared_page_is_free_when_its_last_holder_releases_it() -> None:
    pool = PagePool(3)
    pages = pool.take(2)
    pool.share(pages[:1])
    assert pool.shared == 1
    assert pool.release(pages) == (1,)
    assert (pool.references(0), pool.references(1), pool.shared) == (1, 0, 0)
    assert pool.release((0,)) == (0,)
    assert pool.free == 3


def test_too_many_pages_are_refused_and_none_is_taken() -> None:
    pool = PagePool(3)
    pool.take(1)
    with pytest.raises(TransitionError, match="cannot take 3 pages: 2 of 3 are free"):
        pool.take(3)
    assert pool.take(2) == (1, 2)
    with pytest.raises(TransitionError, match="cannot take -1 pages"):
        pool.take(-1)


@pytest.mark.parametrize("page", [-1, 2])
def test_a_page_of_another_pool_is_refused(page: int) -> None:
    pool = PagePool(2)
    pool.take(2)
    with pytest.raises(TransitionError, match=f"page {page} is none of the pool's 2"):
        pool.release((page,))


def test_a_free_page_is_neither_shared_nor_released() -> None:
    pool = PagePool(2)
    pool.take(1)
    for refused in (pool.share, pool.release):
        with pytest.raises(TransitionError, match="page 1 is free"):
            refused((1,))
    pool.release((0,))
    with pytest.raises(TransitionError, match="page 0 is free"):
        pool.release((0,))


def test_kept_pages_are_free_can_be_shared_again_and_are_taken_last_in_the_order_of_their_release() -> None:
    pool = PagePool(5)
    pool.take(4)
    assert pool.release((2, 3, 0), keep={0, 2}) == (3,)
    assert (pool.free, pool.kept, pool.references(0)) == (4, 2, 0)
    assert pool.take(3) == (2, 3, 4)
    pool.share((0,))
    assert (pool.free, pool.kept, pool.references(0)) == (0, 0, 1)
    assert pool.release((0, 1), keep={0, 1}) == ()
    assert pool.drop_kept() == (0, 1)
    with pytest.raises(TransitionError, match="page 0 is free"):
        pool.share((0,))
    assert pool.take(2) == (0, 1)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool of 0 pages"):
        PagePool(0)


class AnyCalls(RuleBasedStateMachine):
    """Tables of pages, taken, shared, released and kept at random, beside the pool that counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(7)
        self.tables: list[tuple[int, ...]] = []
        self.kept: list[int] = []

    @rule(count=st.integers(0, 7))
    def take(self, count: int) -> None:
        empty = [page for page in range(7) if page not in self.kept and not any(page in table for table in self.tables)]
        missing = max(0, count - len(empty))
        if missing <= len(self.kept):
            taken = tuple(sorted(empty + self.kept[:missing])[:count])
            del self.kept[:missing]
            assert self.pool.take(count) == taken
            self.tables.append(taken)
        else:
            with pytest.raises(TransitionError):
                self.pool.take(count)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from([*self.tables, tuple(self.kept)]))
        self.pool.share(table)
        self.tables.append(table)
        self.kept = [page for page in self.kept if page not in table]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        keep = data.draw(st.sets(st.integers(0, 6)))
        unheld = [page for page in table if not any(page in other for other in self.tables)]
        assert self.pool.release(table, keep) == tuple(page for page in unheld if page not in keep)
        self.kept += [page for page in unheld if page in keep]

    @rule()
    def drop(self) -> None:
        assert self.pool.drop_kept() == tuple(self.kept)
        self.kept = []

    @invariant()
    def counts_are_the_tables(self) -> None:
        held = [sum(page in table for table in self.tables) for page in range(7)]
        assert [self.pool.references(page) for page in range(7)] == held
        assert self.pool.used == 7 - self.pool.free == sum(count > 0 for count in held)
        assert self.pool.kept == len(self.kept)
        assert self.pool.shared == sum(count > 1 for count in held)


TestAnyCalls = AnyCalls.TestCase
TestAnyCalls.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


# The prefix index


def test_full_pages_of_a_common_beginning_are_found() -> None:
    index = PrefixIndex(2)
    index.add(0, [1, 2, 3, 4, 5], [7, 3, 9])
    assert index.full_pages(0, [1, 2, 3, 4, 5]) == [7, 3]  # page 9 is not full
    assert index.full_pages(0, [1, 2, 3, 5, 5]) == [7]
    assert index.full_pages(0, [1, 2, 3]) == [7]
    assert index.full_pages(0, [1]) == []
    assert index.full_pages(0, [3, 4]) == []  # the same tokens elsewhere are not a beginning
    assert index.full_pages(1, [1, 2]) == []  # another epoch


def test_last_pages_of_one_prefix_are_listed_in_order() -> None:
    index = PrefixIndex(2)
    index.add(0, [1, 2, 3], [0, 1, 5])  # page 5: nothing of the prefix is in it
    index.add(0, [1, 2, 3], [0, 2])
    index.add(0, [1, 2, 4], [0, 3])
    assert [index.first(page) for page in (0, 1, 2, 3, 5)] == [0, 1, 1, 3, 5]
    assert len(index) == 4
    index.forget([1])
    assert index.first(2) == 2
    index.forget([0, 2, 3, 4])
    assert len(index) == 0


@given(st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=8), st.lists(st.integers(0, 1), max_size=9), st.integers(1, 3))
def test_what_is_found_is_the_longest_common_beginning_in_full_pages(known: list[list[int]], wanted: list[int], page_tokens: int) -> None:
    index, next_page, held = PrefixIndex(page_tokens), 0, dict[int, list[int]]()
    for tokens in known:
        table = index.full_pages(0, tokens)
        while len(table) * page_tokens < len(tokens):
            table.append(next_page)
            next_page += 1
        index.add(0, tokens, table)
        for place, page in enumerate(table):
            prefix = tokens[: (place + 1) * page_tokens]
            assert held.setdefault(page, prefix) == prefix
    found = index.full_pages(0, wanted)
    assert [held[page] for page in found] == [wanted[: (place + 1) * page_tokens] for place in range(len(found))]
    longer = wanted[: (len(found) + 1) * page_tokens]
    assert len(longer) < (len(found) + 1) * page_tokens or longer not in held.values()
