"""The prefix index: which pages hold, or will hold, the beginning of a token sequence. Called by the scheduler only.

A page is known by its own tokens and the page before it. That names the whole prefix, exactly and without a hash that could
collide: whoever holds a page holds the one before it too, so a page is never freed (and its number used anew) before those
that follow it; of kept pages the later ones are given up first. A first page follows the epoch it belongs to, so pages of
different weights never meet.

Full pages are shared by reference. The last, partly filled one is each sequence's own, for it will be decoded into; those
with the same prefix are listed together, and the first of them is computed and copied to the others.
"""

from collections.abc import Iterable, Iterator, Sequence

_Key = tuple[int, tuple[int, ...]]  # page before it, or -1 - epoch; its own tokens


class PrefixIndex:
    """Pages by prefix. It holds no references: the scheduler tells it which pages were freed."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._pages: dict[_Key, list[int]] = {}
        self._keys: dict[int, _Key] = {}

    def __len__(self) -> int:
        """Pages known."""
        return len(self._keys)

    def full_pages(self, epoch: int, token_ids: Sequence[int]) -> list[int]:
        """The pages of the longest known beginning of the sequence, full pages only, in position order."""
        found: list[int] = []
        before = -1 - epoch
        for block in self._blocks(token_ids):
            pages = self._pages.get((before, block))
            if pages is None or len(block) < self._page_tokens:
                break
            before = pages[0]
            found.append(before)
        return found

    def add(self, epoch: int, token_ids: Sequence[int], table: Sequence[int]) -> None:
        """Make the pages of a sequence known: `table[j]` holds tokens `[j * page_tokens, (j + 1) * page_tokens)` of it."""
        before = -1 - epoch
        for page, block in zip(table, self._blocks(token_ids), strict=False):
            if page not in self._keys:  # else it was found here, and is shared
                self._keys[page] = before, block
                self._pages.setdefault((before, block), []).append(page)
            before = page

    def first(self, page: int) -> int:
        """The first of the known pages with the same prefix: the one to compute, the others' source. Else the page itself."""
        key = self._keys.get(page)
        return page if key is None else self._pages[key][0]

    def full(self, page: int) -> bool:
        """The page is known, and no later token belongs in it."""
        key = self._keys.get(page)
        return key is not None and len(key[1]) == self._page_tokens

    def forget(self, pages: Iterable[int]) -> None:
        """Drop pages that are used for something else from now on."""
        for page in pages:
            key = self._keys.pop(page, None)
            if key is None:
                continue
            self._pages[key].remove(page)
            if not self._pages[key]:
                del self._pages[key]

    def _blocks(self, token_ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        for start in range(0, len(token_ids), self._page_tokens):
            yield tuple(token_ids[start : start + self._page_tokens])
