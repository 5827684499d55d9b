"""What kernels have in common that look at one row after another: their arrays, and how threads share the rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from slipstream.models.cpu.emit import Builder, Structure, Type, Value, counting, element, f32, function, i32, i64, least, nothing, pointer
from slipstream.models.cpu.handler import Call, Kernel
from slipstream.models.cpu.tile import STORED, store_as, widened

LANES = 16  # numbers that are looked at together; widths are multiples of it
TOGETHER = 16  # rows of a unit, where they are short


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row in the making: where its numbers lie."""

    module: ir.Module
    builder: Builder
    index: Value
    lengths: Mapping[str, Value]
    arrays: Mapping[str, Value]

    def load(self, name: str, stored: str, place: Value, lanes: int = LANES) -> Value:
        """Numbers of an array from a place on, as float32."""
        return widened(self.builder, stored, self._at(name, stored, place), lanes)

    def store(self, name: str, stored: str, place: Value, vector: Value) -> None:
        """float32 to a place of an array, rounded to its type."""
        store_as(self.builder, stored, vector, self._at(name, stored, place))

    def number(self, name: str, place: Value = i64(0)) -> Value:
        """One number of an array of float32."""
        return self.builder.load(self._at(name, "float32", place), typ=f32)

    def integer(self, name: str, place: Value = i64(0)) -> Value:
        """One number of an array of int32, not negative."""
        return self.builder.zext(self.builder.load(element(self.builder, i32, self.arrays[name], place), typ=i32), i64)

    def _at(self, name: str, stored: str, place: Value) -> Value:
        return element(self.builder, STORED[stored], self.arrays[name], place)


def row_kernel(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    lengths: Mapping[str, tuple[int, int]],
    cost: int,
    define: Callable[[Row], None],
    together: int = TOGETHER,
) -> Kernel:
    """Arrays by their names; the first axis of the first one counts the rows, `together` of which are a unit of work. `lengths`: of an
    axis of an array, by names; a number of the first one's rows costs so many multiplications. `define` writes the code of a row.
    """
    arrays = (*inputs, *outputs)
    job: dict[str, Type] = {**dict.fromkeys(arrays, pointer), **dict.fromkeys(lengths, i64), "rows": i64}

    def read(call: Call) -> tuple[dict[str, Value], Value, Value]:
        builder, rows = call.builder, call.length(0, 0)
        known = {length: call.length(*where) for length, where in lengths.items()}
        price = builder.mul(builder.mul(rows, call.length(0, 1)), i64(cost))
        fields = {array: call.data(index) for index, array in enumerate(arrays)} | known | {"rows": rows}
        return fields, builder.udiv(builder.add(rows, i64(together - 1)), i64(together)), price

    def define_unit(module: ir.Module, structure: Structure) -> ir.Function:
        made, builder = function(module, "unit", nothing, pointer, i64)
        given, unit = made.args
        known = {length: structure.get(builder, given, length) for length in lengths}
        data = {array: structure.get(builder, given, array) for array in arrays}
        first = builder.mul(unit, i64(together))
        end = least(builder, builder.add(first, i64(together)), structure.get(builder, given, "rows"))
        with counting(builder, first, end) as loop:
            define(Row(module=module, builder=builder, index=loop.index, lengths=known, arrays=data))
        builder.ret_void()
        return made

    return Kernel(name=name, arguments=len(inputs), job=job, read=read, define_unit=define_unit)
