"""Kernels compiled for this processor when they are first wanted, and known to XLA by a name."""

import platform
import sys
from functools import cache

import jax
import llvmlite.binding as llvm
from llvmlite import ir

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


def register(name: str, kernel: Kernel, processor: str | None = None, features: str | None = None) -> None:
    """Compile a kernel for a processor, by LLVM's name and features (default: this one), and make it known to XLA by `name`."""
    _initialise()
    if processor is None:
        processor = llvm.get_host_cpu_name()
        features = f"{llvm.get_host_cpu_features().flatten()},-prefer-256-bit"  # LLVM shuns the widest registers of some that have them
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=processor, features=features or "", opt=3, jit=True)
    module = ir.Module(kernel.name)
    module.triple = machine.triple
    define(module, kernel)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(parsed, passes)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    _KEPT.append(engine)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(engine.get_function_address(kernel.name)), platform="cpu")


def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
