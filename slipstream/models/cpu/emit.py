"""What writing LLVM code needs again and again: types, counted loops, elements of arrays, fields of structures."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir

Value: TypeAlias = Any  # llvmlite has no types that hold
Type: TypeAlias = Any
Builder: TypeAlias = Any

i1, i8, i16, i32, i64, f32 = *(ir.IntType(bits) for bits in (1, 8, 16, 32, 64)), ir.FloatType()
pointer, nothing = ir.PointerType(), ir.VoidType()
NULL = ir.Constant(pointer, None)


@dataclass(slots=True)
class Loop:
    """One pass of a loop: its index, and the values that go from pass to pass."""

    index: Value
    now: list[Value]  # behind the loop: the last ones
    then: list[Value] = field(default_factory=list)  # to be set in the body where values are carried


@contextmanager
def counting(builder: Builder, first: Value, end: Value, step: int | Value = 1, carried: Sequence[Value] = ()) -> Iterator[Loop]:
    """The body of `for index in range(first, end, step)` (unsigned); the builder stands behind the loop afterwards."""
    before = builder.block
    head, body, after = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(i64)
    index.add_incoming(first, before)
    now = [builder.phi(value.type) for value in carried]
    builder.cbranch(builder.icmp_unsigned("<", index, end), body, after)
    builder.position_at_end(body)
    loop = Loop(index, now)
    yield loop
    index.add_incoming(builder.add(index, i64(step) if isinstance(step, int) else step), builder.block)
    for phi, start, then in zip(now, carried, loop.then, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(then, builder.block)
    builder.branch(head)
    builder.position_at_end(after)


def element(builder: Builder, kind: Type, array: Value, index: Value) -> Value:
    """Address of array[index]."""
    return builder.gep(array, [index], source_etype=kind)


@dataclass(frozen=True, slots=True)
class Structure:
    """A C structure whose fields have names."""

    fields: dict[str, Type]

    @property
    def kind(self) -> ir.LiteralStructType:
        return ir.LiteralStructType(self.fields.values())

    @property
    def size(self) -> ir.Constant:
        """Bytes, where no field is smaller than its alignment asks."""
        return i64(sum(4 if kind is i32 else 8 for kind in self.fields.values()))

    def at(self, builder: Builder, base: Value, name: str) -> Value:
        """Address of a field."""
        known = self.kind if base.type.is_opaque else None  # a place on the stack knows its type
        return builder.gep(base, [i32(0), i32(list(self.fields).index(name))], source_etype=known)

    def get(self, builder: Builder, base: Value, name: str) -> Value:
        """A field's value."""
        return builder.load(self.at(builder, base, name), typ=self.fields[name])

    def set(self, builder: Builder, base: Value, **values: Value) -> None:
        """Fields stored."""
        for name, value in values.items():
            builder.store(value, self.at(builder, base, name))


@dataclass(frozen=True, slots=True)
class Vectors:
    """Arithmetic on vectors of `lanes` numbers."""

    builder: Builder
    lanes: int

    @property
    def kind(self) -> ir.VectorType:
        return ir.VectorType(f32, self.lanes)

    @property
    def whole(self) -> ir.VectorType:
        return ir.VectorType(i32, self.lanes)

    def number(self, value: float) -> ir.Constant:
        """One number in all lanes. LLVM takes only constants that float32 holds."""
        return ir.Constant(self.kind, [float(np.float32(value))] * self.lanes)

    def integer(self, value: int) -> ir.Constant:
        """The same of int32."""
        return ir.Constant(self.whole, [value] * self.lanes)

    def intrinsic(self, name: str, *vectors: Value) -> Value:
        """A function of float32 that LLVM knows, such as `fma`."""
        called = declared(self.builder.module, f"llvm.{name}.v{self.lanes}f32", self.kind, *[self.kind] * len(vectors))
        return self.builder.call(called, vectors)

    def polynomial(self, coefficients: Sequence[float], x: Value) -> Value:
        """Their sum times powers of x, the constant one first."""
        *others, found = map(self.number, coefficients)
        for coefficient in reversed(others):
            found = self.intrinsic("fma", found, x, coefficient)
        return found


def function(module: ir.Module, name: str, returns: Type, *arguments: Type, public: bool = False) -> tuple[ir.Function, Builder]:
    """A new function and a builder at its start."""
    made = ir.Function(module, ir.FunctionType(returns, arguments), name)
    made.linkage = "external" if public else "internal"
    return made, ir.IRBuilder(made.append_basic_block())


def declared(module: ir.Module, name: str, returns: Type, *arguments: Type) -> ir.Function:
    """A function of the C library or of LLVM, by name."""
    known = module.globals.get(name)
    return ir.Function(module, ir.FunctionType(returns, arguments), name) if known is None else known


def least(builder: Builder, first: Value, second: Value) -> Value:
    """The smaller of two unsigned numbers."""
    return builder.select(builder.icmp_unsigned("<", first, second), first, second)


def most(builder: Builder, first: Value, second: Value) -> Value:
    """The larger of two unsigned numbers."""
    return builder.select(builder.icmp_unsigned(">", first, second), first, second)


def folded(builder: Builder, vector: Value, fold: Callable[[Value, Value], Value]) -> Value:
    """A vector's lanes made one, in a tree: halves are folded until one is left."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        halves = (ir.Constant(ir.VectorType(i32, lanes), list(range(first, first + lanes))) for first in (0, lanes))
        vector = fold(*(builder.shuffle_vector(vector, vector, half) for half in halves))
    return builder.extract_element(vector, i32(0))
