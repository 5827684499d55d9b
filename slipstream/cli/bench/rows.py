"""`slipstream bench rows`: what is done to each row between matrix products, by our own kernels and by XLA's operations."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.bench.models import tell_row
from slipstream.core.errors import RunFailed

if TYPE_CHECKING:
    from slipstream.models.spec import ModelSpec

ROWS = (8, 32, 128)
Operation = tuple[str, Callable[..., Any], tuple[Any, ...]]  # its name, a function of (*arrays, numerics=...), and the arrays


def rows_command(
    model: Annotated[Path | None, typer.Option("--model", help="Model directory whose shapes to take; default SmolLM2-135M's.")] = None,
    rows: Annotated[list[int] | None, typer.Option("--rows", min=1, help="Rows of each operation; repeatable.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or bfloat16: of the rows.")] = "bfloat16",
) -> None:
    """Norms, rotary turns, gates, log-probs and draws: microseconds by XLA's operations and by ours, and how many times as fast.

    Example: slipstream bench rows --rows 32
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.shape import spec_or_default
    from slipstream.models.cpu import packed

    if not packed.available():
        raise RunFailed("this device has no kernels of ours to compare with XLA's operations")
    if dtype not in ("float32", "bfloat16"):
        raise typer.BadParameter(f"{dtype!r}: must be float32 or bfloat16", param_hint="--dtype")
    spec = spec_or_default(model)
    found = [tell_row(_measure(operation, count)) for count in rows or ROWS for operation in _operations(spec, count, dtype)]
    print(json.dumps({"benchmark": "rows", "dtype": dtype, "rows": found, "machine": machine()}))


def _operations(spec: "ModelSpec", rows: int, dtype: str) -> Iterator[Operation]:
    import jax
    import jax.numpy as jnp

    from slipstream.engine.sampling import draw
    from slipstream.models import layers
    from slipstream.models.logprobs import log_distribution, vocabulary_rule

    def drawn(*shape: int) -> jax.Array:
        return jax.random.normal(jax.random.key(0), shape).astype(dtype)

    x, wide, positions = drawn(rows, spec.d_model), drawn(rows, spec.d_ff), jnp.arange(rows)
    tables, logits = layers.rope_tables(positions, spec.head_dim, spec.rope), drawn(rows, spec.vocab).astype(jnp.float32)
    keys, rule = jnp.zeros((rows, 2), jnp.uint32), vocabulary_rule(spec)

    def add_norm(x, y, weight, numerics):
        return layers.add_norm(x, y, weight, spec.norm_eps, spec.norm_plus_one, numerics)

    def gate(x, y, numerics):
        return layers.gated(x, y, spec.activation, numerics)

    def log_probs(logits, numerics):
        return log_distribution(logits, 0.7, rule, numerics)

    yield "sum and norm", add_norm, (x, x, drawn(spec.d_model))
    yield "turn", layers.rotate, (drawn(rows, spec.heads, spec.head_dim), *tables)
    yield "gate", gate, (wide, wide)
    yield "log-probs", log_probs, (logits,)
    yield "draw", draw, (log_distribution(logits, 0.7, rule), keys, positions)


def _measure(operation: Operation, rows: int) -> dict[str, Any]:
    import jax

    from slipstream.cli.bench.limits import best_seconds
    from slipstream.models.numerics import FAST, SAMPLING

    name, function, arrays = operation
    run = jax.jit(function, static_argnames="numerics")
    xla, own = (best_seconds(lambda numerics=numerics: run(*arrays, numerics=numerics)) for numerics in (FAST, SAMPLING))
    return {
        "operation": name,
        "rows": rows,
        "xla_microseconds": round(xla * 1e6, 1),
        "own_microseconds": round(own * 1e6, 1),
        "times_as_fast": round(xla / own, 2),
    }
