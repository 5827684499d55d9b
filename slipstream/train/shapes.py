"""The shapes of microbatches that a run may compute on: few, listed before it starts, since each one is a compiled program. Pure."""

from bisect import bisect_left
from dataclasses import dataclass

from slipstream.config.schema import BatchSection
from slipstream.train.cost import BY_POSITIONS, Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """A ladder of row lengths and, for each, how many rows are computed at once. `programs` lists all that may occur."""

    row_lengths: tuple[int, ...]  # tokens, rising; all multiples of `align`
    tokens: int  # of a full microbatch, whatever its rows' length
    halvings: int = 0  # the last microbatches may have a half, a quarter, ... of the full rows
    devices: int = 1  # that share each microbatch: a device has as many rows as the next, one below the other
    align: int = 1  # every sequence starts at a multiple of this
    cost: Cost = BY_POSITIONS  # by which plans are compared and rows balanced

    def row_length(self, positions: int) -> int:
        """The shortest row that holds `positions`. Raises ValueError where none does."""
        index = bisect_left(self.row_lengths, positions)
        if index == len(self.row_lengths):
            raise ValueError(f"a sequence of {positions} positions does not fit a row of {self.row_lengths[-1]}; raise batch.row_tokens")
        return self.row_lengths[index]

    def heights(self, row_length: int) -> list[int]:
        """Rows of a microbatch, falling: the full number, then halves as long as the devices share them evenly."""
        found = [max(1, self.tokens // row_length // self.devices) * self.devices]
        while len(found) <= self.halvings and found[-1] % (2 * self.devices) == 0:
            found.append(found[-1] // 2)
        return found

    def programs(self) -> list[tuple[int, int]]:
        """Every (rows, row_tokens) that may be compiled."""
        return [(rows, length) for length in self.row_lengths for rows in self.heights(length)]

    def cover(self, rows: int, row_length: int) -> list[int]:
        """Heights of the fewest microbatches that hold `rows` rows with as few empty ones as the heights allow."""
        heights = self.heights(row_length)
        left = -(-rows // heights[-1]) * heights[-1]
        found: list[int] = []
        for height in heights:
            found += [height] * (left // height)
            left %= height
        return found


def one_shape(row_tokens: int, rows: int, align: int = 1) -> Shapes:
    """Microbatches of `rows` rows of `row_tokens`, and no others."""
    return Shapes(row_lengths=(row_tokens,), tokens=row_tokens * rows, align=align)


def configured_shapes(batch: BatchSection, cost: Cost, *, align: int = 1, devices: int = 1) -> Shapes:
    """The shapes of a configuration."""
    return Shapes(
        row_lengths=(*batch.row_lengths, batch.row_tokens),
        tokens=batch.row_tokens * batch.rows_per_microbatch,
        halvings=batch.partial_microbatches,
        devices=devices,
        align=align,
        cost=cost,
    )
