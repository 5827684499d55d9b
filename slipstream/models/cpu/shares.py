"""Probabilities of blocks of ids, as a kernel: what a token is drawn by first; see `engine.sampling.draw`."""

from slipstream.models.cpu.by_row import LANES, Row, row_kernel
from slipstream.models.cpu.emit import Value, Vectors, counting, i64
from slipstream.models.cpu.exponential import define_exponential
from slipstream.models.cpu.handler import Kernel
from slipstream.models.cpu.tile import Registers

_COST = 32  # multiplications that an id counts for


def shares_kernel(held: Registers) -> Kernel:
    """log-probs float32 [n, v] -> shares float32 [n, w] of blocks, each of every w-th id, summed in the order of ids; w divides v."""
    del held  # vectors are as wide everywhere
    return row_kernel("block_shares", ("log_probs",), ("shares",), {"ids": (0, 1), "width": (1, 1)}, _COST, _define, together=1)


def _define(row: Row) -> None:
    builder, ids, width = row.builder, row.lengths["ids"], row.lengths["width"]
    start, own = builder.mul(row.index, ids), builder.mul(row.index, width)

    def sum_from(first: Value, lanes: int) -> None:
        exponential = define_exponential(row.module, lanes)
        with counting(builder, first, ids, width, carried=[Vectors(builder, lanes).number(0.0)]) as loop:
            log_probs = row.load("log_probs", "float32", builder.add(start, loop.index), lanes)
            loop.then = [builder.fadd(loop.now[0], builder.call(exponential, [log_probs]))]
        row.store("shares", "float32", builder.add(own, first), loop.now[0])

    whole = builder.sub(width, builder.urem(width, i64(LANES)))
    with counting(builder, i64(0), whole, LANES) as some:
        sum_from(some.index, LANES)
    with counting(builder, whole, width) as one:
        sum_from(one.index, 1)
