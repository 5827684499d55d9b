"""Logits of a row made log-probs, as a kernel: by the temperature, the largest taken off, and the log of the sum of what is left.

Sums run in `LANES` lanes over `RUN` vectors, and the sums of such runs are added up in order: of many thousand ids none is lost.
"""

from llvmlite import ir

from slipstream.models.cpu.by_row import LANES, Row, row_kernel
from slipstream.models.cpu.emit import Value, Vectors, counting, f32, folded, i32, i64, least
from slipstream.models.cpu.exponential import define_exponential, define_logarithm
from slipstream.models.cpu.handler import Kernel
from slipstream.models.cpu.tile import Registers, spread_out

RUN = 64  # vectors
NEVER = -1e30  # logit of an id that has no probability; finite, so that 0 * log-prob is 0
_COST = 32  # multiplications that an id counts for


def softmax_kernel(held: Registers) -> Kernel:
    """logits [n, v] and divisor [n], float32, known int32 [] -> log-probs [n, v] and log-sum-exp [n, 1]; v a multiple of `LANES`."""
    del held  # vectors are as wide everywhere
    inputs, outputs = ("logits", "divisor", "known"), ("log_probs", "total")
    return row_kernel("log_softmax", inputs, outputs, {"width": (0, 1)}, _COST, _define, together=1)


def _define(row: Row) -> None:
    builder, width, vectors = row.builder, row.lengths["width"], Vectors(row.builder, LANES)
    start, exponential = builder.mul(row.index, width), define_exponential(row.module, LANES)
    divisor, known = (
        spread_out(builder, one, LANES) for one in (row.number("divisor", row.index), builder.trunc(row.integer("known"), i32))
    )
    never, zeros, lanes = vectors.number(NEVER), vectors.number(0.0), ir.Constant(vectors.whole, list(range(LANES)))

    def place(column: Value) -> Value:
        return builder.add(start, column)

    def higher(one: Value, other: Value) -> Value:
        return builder.select(builder.fcmp_ordered(">", one, other), one, other)

    with counting(builder, i64(0), width, LANES, carried=[never]) as loop:
        ids = builder.add(spread_out(builder, builder.trunc(loop.index, i32), LANES), lanes)
        scaled = builder.fdiv(row.load("logits", "float32", place(loop.index)), divisor)
        scaled = builder.select(builder.icmp_signed("<", ids, known), scaled, never)
        row.store("log_probs", "float32", place(loop.index), scaled)
        loop.then = [higher(scaled, loop.now[0])]
    peak = folded(builder, loop.now[0], higher)
    peaks = spread_out(builder, peak, LANES)
    with counting(builder, i64(0), width, LANES * RUN, carried=[zeros]) as run:
        end = least(builder, builder.add(run.index, i64(LANES * RUN)), width)
        with counting(builder, run.index, end, LANES, carried=[zeros]) as loop:
            shifted = builder.fsub(row.load("log_probs", "float32", place(loop.index)), peaks)
            loop.then = [builder.fadd(loop.now[0], builder.call(exponential, [shifted]))]
        run.then = [builder.fadd(run.now[0], loop.now[0])]
    total = spread_out(builder, folded(builder, run.now[0], builder.fadd), LANES)
    taken = builder.call(define_logarithm(row.module, LANES), [total])
    with counting(builder, i64(0), width, LANES) as loop:
        shifted = builder.fsub(row.load("log_probs", "float32", place(loop.index)), peaks)
        row.store("log_probs", "float32", place(loop.index), builder.fsub(shifted, taken))
    whole = builder.fadd(peak, builder.extract_element(taken, i32(0)))
    row.store("total", "float32", row.index, builder.bitcast(whole, ir.VectorType(f32, 1)))
