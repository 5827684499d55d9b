"""New keys and values into pages, in place, as a kernel: XLA's scatter on a CPU takes 4 ns a number."""

from collections.abc import Callable

from llvmlite import ir

from slipstream.models.cpu.emit import Builder, Structure, Type, Value, counting, element, function, i32, i64, nothing, pointer
from slipstream.models.cpu.handler import Call, Kernel
from slipstream.models.cpu.tile import STORED, Registers

_POINTERS = ("keys", "values", "new_keys", "new_values", "pages", "positions", "layer")
_LENGTHS = ("pool", "groups", "width", "page")
_COST = 64  # multiplications that storing a number counts for: each key stands in another cache line


def writing_kernel(stored: str, held: Registers) -> Kernel:
    """keys [L, p, g, k, B] and values [L, p, g, B, k], new ones of both [n, g, k], all of the type `stored` (or its bits), pages int32 [n],
    positions int32 [n], layer int32 [] -> keys and values, in the memory of the first two. A unit is one of n.
    """
    del held  # nothing is computed
    names: dict[str, Type] = {**dict.fromkeys(_POINTERS, pointer), **dict.fromkeys(_LENGTHS, i64)}

    def define_unit(module: ir.Module, job: Structure) -> ir.Function:
        return _define_unit(module, job, STORED[stored])

    return Kernel(name=f"writing_{stored}", arguments=len(_POINTERS), job=names, read=_read, define_unit=define_unit)


def _read(call: Call) -> tuple[dict[str, Value], Value, Value]:
    builder = call.builder
    pool, groups, width, page = (call.length(0, axis) for axis in range(1, 5))
    rows = call.length(2, 0)
    fields = {name: call.data(index) for index, name in enumerate(_POINTERS)}
    fields |= {"pool": pool, "groups": groups, "width": width, "page": page}
    return fields, rows, builder.mul(builder.mul(rows, groups), builder.mul(width, i64(_COST)))


def _define_unit(module: ir.Module, job: Structure, kind: Type) -> ir.Function:
    made, builder = function(module, "unit", nothing, pointer, i64)
    given, row = made.args
    keys, values, new_keys, new_values, pages, positions, layer = (job.get(builder, given, name) for name in _POINTERS)
    pool, groups, width, page = (job.get(builder, given, name) for name in _LENGTHS)

    def number(array: Value, index: Value) -> Value:
        return builder.zext(builder.load(element(builder, i32, array, index), typ=i32), i64)

    place = builder.urem(number(positions, row), page)
    own_page = builder.add(builder.mul(number(layer, i64(0)), pool), number(pages, row))
    with counting(builder, i64(0), groups) as group:
        source = builder.mul(builder.add(builder.mul(row, groups), group.index), width)
        target = builder.mul(builder.add(builder.mul(own_page, groups), group.index), builder.mul(width, page))
        _copy(builder, kind, width, new_keys, source, keys, lambda at: builder.add(builder.mul(at, page), builder.add(target, place)))
        own_values = builder.add(target, builder.mul(place, width))
        _copy(builder, kind, width, new_values, source, values, lambda at: builder.add(own_values, at))
    builder.ret_void()
    return made


def _copy(builder: Builder, kind: Type, count: Value, source: Value, start: Value, target: Value, place: Callable[[Value], Value]) -> None:
    """`count` numbers, from `start` of `source` on, to the places of `target`."""
    with counting(builder, i64(0), count) as loop:
        new = builder.load(element(builder, kind, source, builder.add(start, loop.index)), typ=kind)
        builder.store(new, element(builder, kind, target, place(loop.index)))
