"""The page pool: which pages of the key/value cache are free, and how many tables hold each of the others.

Pure counting: it knows neither sequences nor what is written in a page, and the engine's scratch page is not one of its own.
Called by the scheduler only.
"""

import heapq
from collections.abc import Iterable

from slipstream.core.errors import TransitionError


class PagePool:
    """Pages 0..pages-1 with reference counts. The lowest free pages are taken first, so that runs repeat."""

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise ValueError(f"a pool of {pages} pages: at least 1 is needed")
        self._free = list(range(pages))  # a heap
        self._references = [0] * pages

    @property
    def pages(self) -> int:
        return len(self._references)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.pages - self.free

    @property
    def shared(self) -> int:
        """Pages that more than one table holds."""
        return sum(count > 1 for count in self._references)

    def references(self, page: int) -> int:
        """How many tables hold the page; 0 is free."""
        return self._references[page]

    def take(self, count: int) -> tuple[int, ...]:
        """`count` free pages, lowest first, each with one reference. Raises TransitionError, taking none, where fewer are free."""
        if not 0 <= count <= self.free:
            raise TransitionError(f"cannot take {count} pages: {self.free} of {self.pages} are free")
        taken = tuple(heapq.heappop(self._free) for _ in range(count))
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each page. Raises TransitionError for a free page."""
        for page in pages:
            self._check_used(page)
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> tuple[int, ...]:
        """One reference less to each page; those that are free now. Raises TransitionError for a page that was free already."""
        freed: list[int] = []
        for page in pages:
            self._check_used(page)
            self._references[page] -= 1
            if self._references[page] == 0:
                heapq.heappush(self._free, page)
                freed.append(page)
        return tuple(freed)

    def _check_used(self, page: int) -> None:
        if not 0 <= page < self.pages:
            raise TransitionError(f"page {page} is none of the pool's {self.pages}")
        if self._references[page] == 0:
            raise TransitionError(f"page {page} is free: nobody can share or release it")
