"""Costs shared out over equal parts, as evenly as can be had quickly: largest differencing with a fixed number of items a part. Pure.

Karmarkar and Karp 1982 (The differencing method of set partitioning), in the form that keeps the parts equal in number (Michiels,
Aarts, Korst, van Leeuwen and Spieksma 2003, Performance ratios for the differencing method): items next in size are spread over all
parts at once, and two such spreads are laid on each other the largest on the smallest, the most uneven two first.
"""

import heapq
from collections.abc import Sequence

Part = tuple[float, tuple[int, ...]]  # its cost, and the indices of its items


def equal_parts(costs: Sequence[float], parts: int, size: int) -> list[tuple[int, ...]]:
    """Indices of `costs` in `parts` parts of at most `size` items, sums close to each other; the dearest part first.

    Equal costs are told apart by their place, so that equal inputs give equal parts. Raises ValueError when they are too many.
    """
    if len(costs) > parts * size:
        raise ValueError(f"{len(costs)} items do not fit {parts} parts of {size}")
    order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    items: list[Part] = [(float(costs[index]), (index,)) for index in order] + [(0.0, ())] * (parts * size - len(costs))
    spreads = [items[start : start + parts] for start in range(0, len(items), parts)]
    heap: list[tuple[float, int, list[Part]]] = [(_evenness(spread), number, spread) for number, spread in enumerate(spreads)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, number, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        merged = sorted(map(_joined, first, reversed(second)), key=lambda part: (-part[0], part[1]))
        heapq.heappush(heap, (_evenness(merged), number, merged))
    return [tuple(sorted(members)) for _, members in heap[0][2]] if heap else [()] * parts


def _evenness(spread: Sequence[Part]) -> float:
    """The least for the most uneven. Parts are in falling order."""
    return spread[-1][0] - spread[0][0]


def _joined(one: Part, other: Part) -> Part:
    return one[0] + other[0], one[1] + other[1]
