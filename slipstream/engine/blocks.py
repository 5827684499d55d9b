"""The page pool: which pages of the key/value cache are free, and how many tables hold each of the others.

A page that no table holds is free: empty, or *kept*, because somebody may ask for what is in it. Kept pages are taken like empty ones
as soon as those run out, the one longest without use first, so keeping never costs anybody a page.

Pure counting: it knows neither sequences nor what is written in a page, and the engine's scratch page is not one of its own.
Called by the scheduler only.
"""

import heapq
from collections.abc import Container, Iterable

from slipstream.core.errors import TransitionError


class PagePool:
    """Pages 0..pages-1 with reference counts. The lowest empty pages are taken first, so that runs repeat."""

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise ValueError(f"a pool of {pages} pages: at least 1 is needed")
        self._empty = list(range(pages))  # a heap
        self._kept: dict[int, None] = {}  # in the order of their release
        self._references = [0] * pages

    @property
    def pages(self) -> int:
        return len(self._references)

    @property
    def free(self) -> int:
        """Pages that no table holds, kept ones included."""
        return len(self._empty) + len(self._kept)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def used(self) -> int:
        return self.pages - self.free

    @property
    def shared(self) -> int:
        """Pages that more than one table holds."""
        return sum(count > 1 for count in self._references)

    def references(self, page: int) -> int:
        """How many tables hold the page; none holds a free one."""
        return self._references[page]

    def take(self, count: int) -> tuple[int, ...]:
        """`count` free pages, each with one reference. Raises TransitionError, taking none, where fewer are free."""
        if not 0 <= count <= self.free:
            raise TransitionError(f"cannot take {count} pages: {self.free} of {self.pages} are free")
        while len(self._empty) < count:
            self._drop(next(iter(self._kept)))
        taken = tuple(heapq.heappop(self._empty) for _ in range(count))
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each page. Raises TransitionError for an empty page."""
        for page in pages:
            if page in self._kept:
                del self._kept[page]
            else:
                self._check_used(page)
            self._references[page] += 1

    def release(self, pages: Iterable[int], keep: Container[int] = ()) -> tuple[int, ...]:
        """One reference less to each page; those that are empty now. Of those that nobody holds any more, the ones in `keep` are kept.

        Raises TransitionError for a page that was free already.
        """
        emptied: list[int] = []
        for page in pages:
            self._check_used(page)
            self._references[page] -= 1
            if self._references[page] == 0 and page in keep:
                self._kept[page] = None
            elif self._references[page] == 0:
                heapq.heappush(self._empty, page)
                emptied.append(page)
        return tuple(emptied)

    def drop_kept(self) -> tuple[int, ...]:
        """Keep nothing any more; the pages that are empty now."""
        dropped = tuple(self._kept)
        for page in dropped:
            self._drop(page)
        return dropped

    def _drop(self, page: int) -> None:
        del self._kept[page]
        heapq.heappush(self._empty, page)

    def _check_used(self, page: int) -> None:
        if not 0 <= page < self.pages:
            raise TransitionError(f"page {page} is none of the pool's {self.pages}")
        if self._references[page] == 0:
            raise TransitionError(f"page {page} is free: nobody can share or release it")
