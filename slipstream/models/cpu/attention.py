"""Attention of a few rows over the pages of their sequence, as a kernel: an online softmax, one page after another.

For each row and page: scores are sums over the head's width (`tile.py`) times the scale, soft-capped where the model does so; where they
raise the row's peak, what was summed before shrinks (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135);
values are added token after token.

The bits of a row depend on the row and what it sees: a page of which it sees nothing multiplies by exp(0) = 1 and adds 0. Sums over a
page's tokens run in `LANES` lanes that are added up in a tree, whatever the width of the processor's registers.
"""

from functools import partial

import numpy as np
from llvmlite import ir

from slipstream.models.cpu.emit import (
    Builder,
    Structure,
    Type,
    Value,
    counting,
    declared,
    element,
    f32,
    folded,
    function,
    i1,
    i32,
    i64,
    least,
    most,
    nothing,
    pointer,
)
from slipstream.models.cpu.exponential import define_exponential
from slipstream.models.cpu.handler import Call, Kernel
from slipstream.models.cpu.hyperbolic import define_tanh
from slipstream.models.cpu.tile import STORED, Registers, Tile, by_tiles, spread_out, store_as, widened

LANES = 16  # page lengths and widths of heads are multiples of it
MASKED = float(np.float32(-1e30))  # score of a token that is not seen
AHEAD = 32  # inputs of a product; their columns are asked for before they are needed, because pages lie anywhere
_ROWS = (6, 4, 3, 2, 1)  # of a tile; few, for the query heads of one key head are few
_POINTERS = ("q", "keys", "values", "tables", "positions", "window", "scale", "softcap", "mixed", "peak", "total")
_LENGTHS = ("groups", "heads", "width", "page", "table", "tokens")


def attention_kernel(queries: str, stored: str, held: Registers) -> Kernel:
    """q [u, x, h, k] of the type `queries`, keys [p, g, k, B] and values [p, g, B, k] of the type `stored` (or its bits), tables int32
    [u, j], positions int32 [u, x], window int32 [] (0: all), scale and softcap float32 [] (0: none) -> mixed [u, x, h, k] of the type
    `queries`, peak and total float32 [u, x, h].

    Key head i is that of h / g query heads from i h / g on. Peak and total are the largest score and the sum of exp(score - peak). A unit
    of work is one of u with one of g: its rows are x tokens times h / g heads.
    """
    names: dict[str, Type] = {**dict.fromkeys(_POINTERS, pointer), **dict.fromkeys(_LENGTHS, i64)}
    define_unit = partial(_define_unit, queries=queries, stored=stored, held=held)
    return Kernel(name=f"attention_{queries}_{stored}", arguments=8, job=names, read=_read, define_unit=define_unit)


def _read(call: Call) -> tuple[dict[str, Value], Value, Value]:
    builder = call.builder
    units, tokens, heads, width = (call.length(0, axis) for axis in range(4))
    groups, page, table = call.length(1, 1), call.length(1, 3), call.length(3, 1)
    lengths = {"groups": groups, "heads": heads, "width": width, "page": page, "table": table, "tokens": tokens}
    fields = {name: call.data(index) for index, name in enumerate(_POINTERS)} | lengths
    of_a_page = builder.mul(builder.mul(tokens, heads), builder.mul(width, builder.mul(page, i64(2))))
    return fields, builder.mul(units, groups), builder.mul(units, of_a_page)


def _define_unit(module: ir.Module, job: Structure, *, queries: str, stored: str, held: Registers) -> ir.Function:
    made, builder = function(module, "unit", nothing, pointer, i64)
    given, index = made.args
    q, keys, values, tables, positions, window, scale, softcap, mixed, peak, total = (job.get(builder, given, name) for name in _POINTERS)
    groups, heads, width, page, table, tokens = (job.get(builder, given, name) for name in _LENGTHS)
    unit, group = builder.udiv(index, groups), builder.urem(index, groups)
    own_positions, own_table = (
        element(builder, i32, array, builder.mul(unit, length)) for array, length in ((positions, tokens), (tables, table))
    )
    window = builder.sext(builder.load(window, typ=i32), i64)
    scale, softcap = (builder.load(number, typ=f32) for number in (scale, softcap))
    first, last = _ends(builder, own_positions, tokens)
    per_token = builder.udiv(heads, groups)
    scores = builder.alloca(f32, size=builder.mul(page, i64(max(_ROWS))))
    own_q, own_mixed = (builder.alloca(f32, size=builder.mul(width, i64(max(_ROWS)))) for _ in range(2))
    own_peak, own_total = (builder.alloca(f32, size=i64(max(_ROWS))) for _ in range(2))
    sweeps = {size: _define_sweep(module, stored, held, size) for size in _ROWS}
    copy, soften, finish = _define_copy(module, queries), _define_soften(module), _define_finish(module, queries)
    from_page = builder.udiv(_earliest(builder, first, window), page)
    until_page = builder.add(builder.udiv(last, page), i64(1))

    def place_of(row: Value) -> Value:
        """Of a row of this unit among all tokens and heads."""
        token, head = builder.udiv(row, per_token), builder.add(builder.mul(group, per_token), builder.urem(row, per_token))
        return builder.add(builder.mul(builder.add(builder.mul(unit, tokens), token), heads), head)

    def use(row: Value, size: int) -> None:
        with counting(builder, i64(0), i64(size)) as each:
            row_q = element(builder, f32, own_q, builder.mul(each.index, width))
            theirs = element(builder, STORED[queries], q, builder.mul(place_of(builder.add(row, each.index)), width))
            builder.call(copy, [row_q, theirs, width])
        for array, number, count in (
            (own_peak, MASKED, i64(size)),
            (own_total, 0.0, i64(size)),
            (own_mixed, 0.0, builder.mul(width, i64(size))),
        ):
            _fill(builder, array, number, count)
        with counting(builder, from_page, until_page) as step:
            start = builder.mul(step.index, page)
            number = builder.zext(builder.load(element(builder, i32, own_table, step.index), typ=i32), i64)
            offset = builder.mul(builder.add(builder.mul(number, groups), group), builder.mul(width, page))
            own_keys, own_values = (element(builder, STORED[stored], array, offset) for array in (keys, values))
            builder.call(sweeps[size], [own_q, width, i64(0), width, own_keys, page, scores, page, i1(0)])
            with counting(builder, i64(0), i64(size)) as each:
                position = _position(builder, own_positions, builder.udiv(builder.add(row, each.index), per_token))
                seen = _seen(builder, start, page, _earliest(builder, position, window), position)
                row_scores = element(builder, f32, scores, builder.mul(each.index, page))
                row_mixed = element(builder, f32, own_mixed, builder.mul(each.index, width))
                row_peak, row_total = (element(builder, f32, array, each.index) for array in (own_peak, own_total))
                builder.call(soften, [row_scores, page, *seen, scale, softcap, row_peak, row_total, row_mixed, width])
            seen = _seen(builder, start, page, _earliest(builder, first, window), last)
            builder.call(sweeps[size], [scores, page, *seen, own_values, width, own_mixed, width, i1(1)])
        with counting(builder, i64(0), i64(size)) as each:
            place = place_of(builder.add(row, each.index))
            row_mixed = element(builder, f32, own_mixed, builder.mul(each.index, width))
            row_total = element(builder, f32, own_total, each.index)
            builder.call(finish, [row_mixed, width, row_total, element(builder, STORED[queries], mixed, builder.mul(place, width))])
            for array, own in ((peak, own_peak), (total, own_total)):
                builder.store(builder.load(element(builder, f32, own, each.index), typ=f32), element(builder, f32, array, place))

    by_tiles(builder, builder.mul(tokens, per_token), _ROWS, use)
    builder.ret_void()
    return made


def _define_sweep(module: ir.Module, stored: str, held: Registers, rows: int) -> ir.Function:
    """A function like a `Tile`'s, over as many columns as one input has."""
    widths = (held.columns, LANES) if held.columns > LANES else (LANES,)
    tiles = {width: Tile(stored=stored, rows=rows, width=width, lanes=held.lanes, ahead=AHEAD).define(module) for width in widths}
    arguments = (pointer, i64, i64, i64, pointer, i64, pointer, i64, i1)
    made, builder = function(module, f"sweep_{rows}", nothing, *arguments)
    x, x_stride, start, end, columns, column_stride, out, out_stride, add = made.args
    done: Value = i64(0)
    for width, tile in tiles.items():
        until = builder.sub(column_stride, builder.urem(column_stride, i64(width)))
        with counting(builder, done, until, width) as loop:
            own_columns, own_out = element(builder, STORED[stored], columns, loop.index), element(builder, f32, out, loop.index)
            builder.call(tile, [x, x_stride, start, end, own_columns, column_stride, own_out, out_stride, add])
        done = until
    builder.ret_void()
    return made


def _define_soften(module: ir.Module) -> ir.Function:
    """`void soften(scores, page, seen_from, seen_until, scale, softcap, peak, total, mixed, width)`: one row, one page.

    Products become weights exp(score - peak), 0 where nothing is seen; what was summed before shrinks to the new peak.
    """
    arguments = (pointer, i64, i64, i64, f32, f32, pointer, pointer, pointer, i64)
    made, builder = function(module, "soften", nothing, *arguments)
    scores, page, seen_from, seen_until, scale, softcap, peak, total, mixed, width = made.args
    vector, exponential = ir.VectorType(f32, LANES), define_exponential(module, LANES)
    capped = builder.fcmp_ordered(">", softcap, f32(0.0))
    with builder.if_then(capped, likely=False):
        builder.call(_define_cap(module), [scores, page, scale, softcap])
    scales = spread_out(builder, builder.select(capped, f32(1.0), scale), LANES)

    def seen(first: Value) -> Value:
        places = builder.add(
            spread_out(builder, builder.trunc(first, i32), LANES), ir.Constant(ir.VectorType(i32, LANES), list(range(LANES)))
        )
        after, before = (spread_out(builder, builder.trunc(bound, i32), LANES) for bound in (seen_from, seen_until))
        return builder.and_(builder.icmp_signed(">=", places, after), builder.icmp_signed("<", places, before))

    highest: Value = ir.Constant(vector, [MASKED] * LANES)
    with counting(builder, i64(0), page, LANES, carried=[highest]) as loop:
        at = element(builder, f32, scores, loop.index)
        score = builder.fmul(builder.load(at, align=4, typ=vector), scales)
        score = builder.select(seen(loop.index), score, ir.Constant(vector, [MASKED] * LANES))
        builder.store(score, at, align=4)
        loop.then = [_higher(builder, score, loop.now[0])]
    before = builder.load(peak, typ=f32)
    higher = _higher(builder, folded(builder, loop.now[0], partial(_higher, builder)), before)
    peaks = spread_out(builder, higher, LANES)
    with counting(builder, i64(0), page, LANES, carried=[ir.Constant(vector, [0.0] * LANES)]) as loop:
        at = element(builder, f32, scores, loop.index)
        weight = builder.call(exponential, [builder.fsub(builder.load(at, align=4, typ=vector), peaks)])
        weight = builder.select(seen(loop.index), weight, ir.Constant(vector, [0.0] * LANES))
        builder.store(weight, at, align=4)
        loop.then = [builder.fadd(loop.now[0], weight)]
    added = folded(builder, loop.now[0], builder.fadd)
    shrinks = builder.call(exponential, [spread_out(builder, builder.fsub(before, higher), LANES)])
    shrink = builder.extract_element(shrinks, i32(0))
    fused = declared(module, "llvm.fma.f32", f32, f32, f32, f32)
    builder.store(builder.call(fused, [builder.load(total, typ=f32), shrink, added]), total)
    builder.store(higher, peak)
    with counting(builder, i64(0), width, LANES) as loop:
        at = element(builder, f32, mixed, loop.index)
        builder.store(builder.fmul(builder.load(at, align=4, typ=vector), shrinks), at, align=4)
    builder.ret_void()
    return made


def _define_cap(module: ir.Module) -> ir.Function:
    """`void cap(scores, page, scale, softcap)`: products become softcap tanh(product scale / softcap)."""
    made, builder = function(module, "cap", nothing, pointer, i64, f32, f32)
    scores, page, scale, softcap = made.args
    tanh, scales, softcaps = define_tanh(module, LANES), *(spread_out(builder, number, LANES) for number in (scale, softcap))
    with counting(builder, i64(0), page, LANES) as loop:
        at = element(builder, f32, scores, loop.index)
        score = builder.fmul(builder.load(at, align=4, typ=scales.type), scales)
        builder.store(builder.fmul(builder.call(tanh, [builder.fdiv(score, softcaps)]), softcaps), at, align=4)
    builder.ret_void()
    return made


def _define_finish(module: ir.Module, queries: str) -> ir.Function:
    """`void finish(mixed, width, total, out)`: one row's values divided by the sum of their weights, rounded to the type `queries`."""
    made, builder = function(module, "finish", nothing, pointer, i64, pointer, pointer)
    mixed, width, total, out = made.args
    totals = spread_out(builder, builder.load(total, typ=f32), LANES)
    with counting(builder, i64(0), width, LANES) as loop:
        summed = builder.load(element(builder, f32, mixed, loop.index), align=4, typ=ir.VectorType(f32, LANES))
        store_as(builder, queries, builder.fdiv(summed, totals), element(builder, STORED[queries], out, loop.index))
    builder.ret_void()
    return made


def _define_copy(module: ir.Module, queries: str) -> ir.Function:
    """`void copy(target, source, count)`: a row of the type `queries` as float32; `count` is a multiple of `LANES`."""
    made, builder = function(module, "copy", nothing, pointer, pointer, i64)
    target, source, count = made.args
    with counting(builder, i64(0), count, LANES) as loop:
        vector = widened(builder, queries, element(builder, STORED[queries], source, loop.index), LANES)
        builder.store(vector, element(builder, f32, target, loop.index), align=4)
    builder.ret_void()
    return made


def _ends(builder: Builder, positions: Value, tokens: Value) -> tuple[Value, Value]:
    """The lowest and the highest of a unit's positions."""
    start = _position(builder, positions, i64(0))
    with counting(builder, i64(1), tokens, carried=[start, start]) as loop:
        position = _position(builder, positions, loop.index)
        loop.then = [least(builder, loop.now[0], position), most(builder, loop.now[1], position)]
    lowest, highest = loop.now
    return lowest, highest


def _position(builder: Builder, positions: Value, token: Value) -> Value:
    return builder.zext(builder.load(element(builder, i32, positions, token), typ=i32), i64)


def _earliest(builder: Builder, position: Value, window: Value) -> Value:
    """The first position that a token sees."""
    later = builder.sub(builder.add(position, i64(1)), window)
    limited = builder.and_(builder.icmp_signed(">", window, i64(0)), builder.icmp_signed(">", later, i64(0)))
    return builder.select(limited, later, i64(0))


def _seen(builder: Builder, start: Value, page: Value, earliest: Value, last: Value) -> tuple[Value, Value]:
    """The tokens of the page that begins at `start` that are seen, from and until."""

    def within(position: Value) -> Value:
        offset = builder.sub(position, start)
        offset = builder.select(builder.icmp_signed("<", offset, i64(0)), i64(0), offset)
        return builder.select(builder.icmp_signed("<", offset, page), offset, page)

    return within(earliest), within(builder.add(last, i64(1)))


def _fill(builder: Builder, array: Value, number: float, count: Value) -> None:
    with counting(builder, i64(0), count) as loop:
        builder.store(f32(number), element(builder, f32, array, loop.index))


def _higher(builder: Builder, one: Value, other: Value) -> Value:
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)
