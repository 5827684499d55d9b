"""Kernels compiled for this processor when they are first wanted, and known to XLA by a name."""

import platform
import sys
from collections.abc import Callable, Hashable
from functools import cache

import jax
import llvmlite.binding as llvm
from llvmlite import ir

from slipstream.models.cpu.amx import granted
from slipstream.models.cpu.handler import Kernel, define
from slipstream.models.cpu.tile import Registers, registers_of

_KEPT: list[llvm.ExecutionEngine] = []  # compiled code lives as long as they do


@cache
def held_here() -> Registers | None:
    """What a tile holds in this processor's registers; None where no kernel of ours can run."""
    if sys.platform == "win32":  # another C library
        return None
    _initialise()
    return registers_of(dict(llvm.get_host_cpu_features()), platform.machine().lower())


@cache
def tiles_here() -> bool:
    """Whether this processor multiplies tiles of bfloat16 (AMX), looks bytes up in tables of 128 (VBMI), and lets this process do so."""
    held, features = held_here(), llvm.get_host_cpu_features()
    return held is not None and all(features.get(name) for name in ("amx-tile", "amx-bf16", "avx512vbmi")) and granted()


@cache
def known(make: Callable[..., Kernel], *of: Hashable) -> str:
    """The name by which XLA knows the kernel `make(*of, registers)` for this processor, compiled when first wanted."""
    held = held_here()
    assert held, "no kernels of ours on this processor"
    kernel = make(*of, held)
    name = f"slipstream_{kernel.name}"
    register(name, kernel)
    return name


def register(name: str, kernel: Kernel, processor: str | None = None) -> None:
    """Compile a kernel for a processor, by LLVM's name (default: this one), and make it known to XLA by `name`."""
    _initialise()
    features = _features_here() if processor is None else ""
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=processor or llvm.get_host_cpu_name(), features=features, opt=3, jit=True)
    engine = llvm.create_mcjit_compiler(optimised(kernel, machine), machine)
    engine.finalize_object()
    _KEPT.append(engine)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(engine.get_function_address(kernel.name)), platform="cpu")


def optimised(kernel: Kernel, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """A kernel's module after LLVM's passes for a machine."""
    module = ir.Module(kernel.name)
    module.triple = machine.triple
    define(module, kernel)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(parsed, passes)
    return parsed


def _features_here() -> str:
    features = llvm.get_host_cpu_features().flatten()
    narrow = platform.machine().lower() in ("x86_64", "amd64")  # LLVM shuns the widest registers of some x86 processors that have them
    return f"{features},-prefer-256-bit" if narrow else features


def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
