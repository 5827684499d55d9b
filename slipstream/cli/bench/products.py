"""`slipstream bench products`: a model's matrix products by rows, by our own code and by XLA's, against what memory and products allow."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.bench.models import tell_row
from slipstream.core.errors import RunFailed

if TYPE_CHECKING:
    from slipstream.models.spec import ModelSpec

ROWS = (1, 8, 32, 128, 1024)
STORED = ("float32", "bfloat16", "int8")


def products_command(
    model: Annotated[Path | None, typer.Option("--model", help="Model directory whose shapes to take; default SmolLM2-135M's.")] = None,
    rows: Annotated[list[int] | None, typer.Option("--rows", min=1, help="Rows of each product; repeatable.")] = None,
) -> None:
    """All products of all layers, one after another, as a decode step has them: milliseconds, and the share of the limit.

    Example: slipstream bench products --rows 8 --rows 32
    """
    from slipstream.cli.bench.limits import measure_limits
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.shape import spec_or_default
    from slipstream.models.cpu import packed

    if not packed.available():
        raise RunFailed("this device has no products of ours to compare with XLA's")
    spec = spec_or_default(model)
    shapes, limits = _shapes(spec), measure_limits()
    found = []
    for system in ("xla float32", *(f"own {stored}" for stored in STORED)):
        for count in rows or ROWS:
            found.append(tell_row(_measure(spec.layers, shapes, system, count, limits)))
    print(json.dumps({"benchmark": "products", "limits": limits.figures(), "rows": found, "machine": machine()}))


def _shapes(spec: "ModelSpec") -> list[tuple[int, int]]:
    """Inputs and outputs of a dense layer's matrices."""
    from slipstream.models.panels import has_panels
    from slipstream.models.parameters import declarations

    shapes = []
    for one in declarations(spec):
        if one.path[0] == "layers" and has_panels(one):
            inputs = math.prod(spec.axis_size(axis) for axis in one.fan_in)
            shapes.append((inputs, math.prod(one.shape(spec)[1:]) // inputs))
    return shapes


def _measure(layers: int, shapes: list[tuple[int, int]], system: str, rows: int, limits) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from slipstream.cli.bench.limits import best_seconds
    from slipstream.models.cpu.packed import pack, product

    own, stored = system.startswith("own"), system.split()[1]
    key = jax.random.key(0)
    plain = [(jax.random.normal(key, shape) * 20).astype(stored) for _ in range(layers) for shape in shapes]
    matrices = [pack(matrix) for matrix in plain] if own else plain
    given_in = "float32" if stored == "float32" else "bfloat16"  # as the engine has it
    x = {inputs: jax.random.normal(key, (rows, inputs)).astype(given_in) for inputs, _ in shapes}

    def all_of_them(x, matrices):
        """Each waits for the one before it."""
        carried = jnp.zeros((), given_in)
        for index, matrix in enumerate(matrices):
            given = x[shapes[index % len(shapes)][0]] + carried
            carried = (1e-30 * (product(given, matrix) if own else given @ matrix)[0, 0]).astype(given_in)
        return carried

    run = jax.jit(all_of_them)
    seconds = best_seconds(lambda: run(x, matrices))
    numbers = layers * sum(inputs * outputs for inputs, outputs in shapes)
    least = limits.seconds(2 * rows * numbers, numbers * jnp.dtype(stored).itemsize, given_in)
    return {
        "system": system,
        "rows": rows,
        "milliseconds": round(seconds * 1e3, 3),
        "gflops_per_second": round(2 * rows * numbers / seconds / 1e9, 1),
        "share_of_limit": round(least / seconds, 3),
    }
