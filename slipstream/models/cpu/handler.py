"""A kernel as a function that XLA calls (its foreign function interface, the C API of jaxlib), shared by XLA's own threads.

A call is cut into units; threads take them in order until none is left. The thread that was called does not wait for a helper to
begin, only for units already taken: a pool that is busy makes it slower, never stuck.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from slipstream.models.cpu.emit import (
    NULL,
    Builder,
    Structure,
    Type,
    Value,
    counting,
    declared,
    element,
    function,
    i32,
    i64,
    least,
    nothing,
    pointer,
)

WORTH_SHARING = 1 << 18  # multiplications of a call; fewer are done before a helper wakes

# xla/ffi/api/c_api.h, version 0.3: fields in their order, with structures inside others laid flat
API_VERSION = (0, 3)
_CALL = ir.FunctionType(pointer, [pointer]).as_pointer()  # every function of the interface: arguments in a structure, an error or NULL
_EXTENDED = {"struct_size": i64, "extension": pointer}
_BUFFERS = {**_EXTENDED, "count": i64, "kinds": pointer, "all": pointer}
_FRAME = Structure(
    {**_EXTENDED, "api": pointer, "context": pointer, "stage": i64}
    | {f"{side}_{name}": kind for side in ("arguments", "results") for name, kind in _BUFFERS.items()}
)
_BUFFER = Structure({**_EXTENDED, "type": i64, "data": pointer, "rank": i64, "lengths": pointer})
_METADATA_EXTENSION = Structure({"struct_size": i64, "type": i64, "next": pointer, "metadata": pointer})
_METADATA = Structure({"struct_size": i64, "version_size": i64, "version_extension": pointer, "major": i32, "minor": i32})
BEFORE_FUNCTIONS = {**_EXTENDED, "version_size": i64, "version_extension": pointer, "version": i64, "internal": pointer}
API = Structure({**BEFORE_FUNCTIONS, **{f"other_{index}": pointer for index in range(11)}, "schedule": _CALL, "count_threads": _CALL})
_SCHEDULE = Structure({**_EXTENDED, "context": pointer, "task": pointer, "data": pointer})
_COUNT_THREADS = Structure({**_EXTENDED, "context": pointer, "threads": pointer})

_SHARED = {"units": i64, "next": i64, "done": i64, "holders": i64}
"""Of every job: its units, those taken and those done so far, and the threads that still look at it, the last of which frees it."""


class Call:
    """The arrays of one call, arguments first, then results."""

    def __init__(self, builder: Builder, frame: Value, arguments: int) -> None:
        self.builder, self._frame, self._arguments = builder, frame, arguments

    def data(self, index: int) -> Value:
        """Address of an array's first element."""
        return _BUFFER.get(self.builder, self._buffer(index), "data")

    def length(self, index: int, axis: int) -> Value:
        """Of one axis of an array."""
        lengths = _BUFFER.get(self.builder, self._buffer(index), "lengths")
        return self.builder.load(element(self.builder, i64, lengths, i64(axis)), typ=i64)

    def _buffer(self, index: int) -> Value:
        side, place = ("arguments", index) if index < self._arguments else ("results", index - self._arguments)
        buffers = _FRAME.get(self.builder, self._frame, f"{side}_all")
        return self.builder.load(element(self.builder, pointer, buffers, i64(place)), typ=pointer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What is computed, without threads."""

    name: str
    arguments: int
    job: dict[str, Type]  # what its units need to know
    read: Callable[[Call], tuple[dict[str, Value], Value, Value]]  # the job's fields, the number of units, and of multiplications
    define_unit: Callable[[ir.Module, Structure], ir.Function]  # `void unit(job, index)`


def define(module: ir.Module, kernel: Kernel) -> None:
    """`error* NAME(frame)`: what XLA calls, and asks for its version first."""
    structure = Structure({**kernel.job, **_SHARED})
    work = _define_work(module, structure, kernel.define_unit(module, structure))
    share = _define_share(module, structure, work)
    made, builder = function(module, kernel.name, pointer, pointer, public=True)
    (frame,) = made.args
    extension = _FRAME.get(builder, frame, "extension")
    with builder.if_then(builder.icmp_unsigned("!=", extension, NULL)):
        metadata = _METADATA_EXTENSION.get(builder, extension, "metadata")
        _METADATA.set(builder, metadata, major=i32(API_VERSION[0]), minor=i32(API_VERSION[1]))
        builder.ret(NULL)
    fields, units, multiplications = kernel.read(Call(builder, frame, kernel.arguments))
    fields |= {"units": units, "next": i64(0), "done": i64(0), "holders": i64(1)}
    with builder.if_then(builder.icmp_unsigned("<", multiplications, i64(WORTH_SHARING))):
        own = builder.alloca(structure.kind)
        structure.set(builder, own, **fields)
        builder.call(work, [own])
        builder.ret(NULL)
    job = builder.call(declared(module, "malloc", pointer, i64), [structure.size])  # a helper may come after this call has returned
    structure.set(builder, job, **fields)
    builder.ret(builder.call(share, [frame, job]))


def _define_work(module: ir.Module, structure: Structure, unit: ir.Function) -> ir.Function:
    """`void work(job)`: take units until none is left."""
    made, builder = function(module, "work", nothing, pointer)
    (job,) = made.args
    head, body, after = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.atomic_rmw("add", structure.at(builder, job, "next"), i64(1), "monotonic")
    builder.cbranch(builder.icmp_unsigned("<", index, structure.get(builder, job, "units")), body, after)
    builder.position_at_end(body)
    builder.call(unit, [job, index])
    builder.atomic_rmw("add", structure.at(builder, job, "done"), i64(1), "release")
    builder.branch(head)
    builder.position_at_end(after)
    builder.ret_void()
    return made


def _define_share(module: ir.Module, structure: Structure, work: ir.Function) -> ir.Function:
    """`error* share(frame, job)`: the job by all threads that XLA has."""
    leave = _define_leave(module, structure)
    made, builder = function(module, "share", pointer, pointer, pointer)
    frame, job = made.args
    api, context = _FRAME.get(builder, frame, "api"), _FRAME.get(builder, frame, "context")
    threads, asked, scheduled = builder.alloca(i64), builder.alloca(_COUNT_THREADS.kind), builder.alloca(_SCHEDULE.kind)
    _COUNT_THREADS.set(builder, asked, struct_size=_COUNT_THREADS.size, extension=NULL, context=context, threads=threads)
    unknown = builder.call(API.get(builder, api, "count_threads"), [asked])
    with builder.if_then(builder.icmp_unsigned("!=", unknown, NULL)):
        builder.call(leave, [job])
        builder.ret(unknown)
    units = structure.get(builder, job, "units")
    holders = least(builder, builder.load(threads, typ=i64), units)
    structure.set(builder, job, holders=holders)
    help_ = _define_help(module, work, leave)
    _SCHEDULE.set(builder, scheduled, struct_size=_SCHEDULE.size, extension=NULL, context=context, task=help_, data=job)
    refused = builder.alloca(pointer)
    builder.store(NULL, refused)
    with counting(builder, i64(1), holders):
        error = builder.call(API.get(builder, api, "schedule"), [scheduled])
        with builder.if_then(builder.icmp_unsigned("!=", error, NULL)):
            builder.store(error, refused)
            builder.call(leave, [job])  # for the helper that will not come
    builder.call(work, [job])
    head, wait, after = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    done = builder.load_atomic(structure.at(builder, job, "done"), "acquire", 8, typ=i64)
    builder.cbranch(builder.icmp_unsigned("<", done, units), wait, after)
    builder.position_at_end(wait)
    builder.call(declared(module, "sched_yield", i32), [])
    builder.branch(head)
    builder.position_at_end(after)
    builder.call(leave, [job])
    builder.ret(builder.load(refused, typ=pointer))
    return made


def _define_help(module: ir.Module, work: ir.Function, leave: ir.Function) -> ir.Function:
    """`void help(job)`: what a helping thread does."""
    made, builder = function(module, "help", nothing, pointer)
    builder.call(work, made.args)
    builder.call(leave, made.args)
    builder.ret_void()
    return made


def _define_leave(module: ir.Module, structure: Structure) -> ir.Function:
    """`void leave(job)`: the last holder frees it."""
    made, builder = function(module, "leave", nothing, pointer)
    (job,) = made.args
    holders = builder.atomic_rmw("sub", structure.at(builder, job, "holders"), i64(1), "acq_rel")
    with builder.if_then(builder.icmp_unsigned("==", holders, i64(1))):
        builder.call(declared(module, "free", nothing, pointer), [job])
    builder.ret_void()
    return made
