"""`slipstream bench models`: prefill, decode and forward + backward of a real model, against the machine's own limits."""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.precision import PrecisionOption


def models_command(
    model: Annotated[Path, typer.Option("--model", help="Model directory.")] = Path("models/SmolLM2-135M-Instruct"),
    precision: Annotated[
        list[PrecisionOption] | None, typer.Option(help="Of prefill and decoding; repeatable; default f32 and bf16.")
    ] = None,
    slots: Annotated[list[int] | None, typer.Option(help="Sequences decoded at once; repeatable; default 8 and 32.")] = None,
) -> None:
    """Tokens/s, compile seconds and memory of prefill, decode and training, and each one's share of what the machine could do.

    Example: slipstream bench models --model models/SmolLM2-135M-Instruct
    """
    from slipstream.cli.bench.limits import measure_limits
    from slipstream.cli.bench.machine import machine
    from slipstream.weights.files import read_params
    from slipstream.weights.hf_config import read_spec

    spec = read_spec(model)
    params = read_params(model, spec)
    limits = measure_limits()
    rows = []
    for kind in [choice.value for choice in precision or (PrecisionOption.F32, PrecisionOption.BF16)]:
        rows.append(tell_row(_prefill(spec, params, limits, kind)))
        rows += [tell_row(_decode(spec, params, limits, kind, count)) for count in slots or [8, 32]]
    rows += [tell_row(_training(spec, params, limits, scan)) for scan in (True, False)]
    print(json.dumps({"benchmark": "models", "model": str(model), "limits": limits.figures(), "rows": rows, "machine": machine()}))


def _prefill(spec, params, limits, precision: str, tokens: int = 128, calls: int = 4) -> dict[str, Any]:
    import numpy as np

    from slipstream.engine.plan import Chunk
    from slipstream.engine.programs import prefill
    from slipstream.engine.units import prefill_calls
    from slipstream.models.numerics import SAMPLING

    weights, dtype = _prepared(spec, params, precision)
    shapes, pages = _cache(spec, dtype, rows=1, context=tokens)
    chunk = Chunk(key=("", 0), row=0, start=0, token_ids=(1,) * tokens, table=tuple(range(shapes.table_pages)))
    (units,) = prefill_calls([chunk], shapes)
    compiled, seconds = _compiled(prefill, (weights, spec, pages, units), numerics=SAMPLING)
    state = {"pages": pages}

    def run():
        for _ in range(calls):
            state["pages"] = compiled(weights, state["pages"], units)
        return state["pages"]

    counted = int(np.prod(units.token_ids.shape)) * calls
    least = limits.seconds(2 * layer_parameters(spec) * counted, tree_bytes(weights) * calls, _name(dtype))
    return _row("prefill", precision, f"{calls} x {tokens} tokens", counted, run, seconds, compiled, least)


def _decode(spec, params, limits, precision: str, slots: int, context: int = 256, steps: int = 8) -> dict[str, Any]:
    import jax.numpy as jnp
    import numpy as np

    from slipstream.engine.programs import Rows, decode
    from slipstream.engine.sampling import plain_rows
    from slipstream.models.numerics import SAMPLING

    weights, dtype = _prepared(spec, params, precision)
    shapes, pages = _cache(spec, dtype, rows=slots, context=context)
    rows = Rows(
        token=jnp.ones(slots, jnp.int32),
        position=jnp.full(slots, context - steps - 2, jnp.int32),
        last_position=jnp.full(slots, context, jnp.int32),
        active=jnp.ones(slots, bool),
        tables=jnp.asarray(np.arange(shapes.scratch, dtype=np.int32).reshape(slots, -1)),
        sampling=plain_rows(slots),
    )
    compiled, seconds = _compiled(decode, (weights, spec, pages, rows), steps=steps, numerics=SAMPLING)
    state = {"pages": pages}

    def run():
        state["pages"], drawn = compiled(weights, state["pages"], rows)
        return drawn

    operations = 2 * (layer_parameters(spec) + spec.vocab * spec.d_model) * slots * steps
    least = limits.seconds(operations, (tree_bytes(weights) + tree_bytes(pages)) * steps, _name(dtype))
    return _row("decode", precision, f"{slots} rows, context {context}", slots * steps, run, seconds, compiled, least)


def _cache(spec, dtype, rows: int, context: int, page_tokens: int = 64):
    """Shapes of an engine for `rows` sequences of `context` tokens, and its empty pool."""
    from slipstream.engine.engine import PREFILL_TOKENS
    from slipstream.engine.units import Shapes
    from slipstream.models.decoder import empty_pages
    from slipstream.models.numerics import FAST

    table, unit = context // page_tokens, FAST.query_tile
    shapes = Shapes(
        rows=rows,
        units=PREFILL_TOKENS // unit,
        unit_tokens=unit,
        table_pages=table,
        page_tokens=page_tokens,
        scratch=rows * table,
    )
    return shapes, empty_pages(spec, rows * table + 1, page_tokens, dtype)


def _training(spec, params, limits, scan: bool, rows: int = 4, tokens: int = 128) -> dict[str, Any]:
    import jax.numpy as jnp
    import numpy as np

    from slipstream.models.numerics import FAST
    from slipstream.train.columns import Columns
    from slipstream.train.objectives.sft import sft
    from slipstream.train.packing import Microbatch
    from slipstream.train.update import Layout, accumulate, zero_gradient

    ids = np.ones((rows, tokens), np.int32)
    numbers = {name: np.ones((rows, tokens), np.float32) for name in ("loss_mask", "advantages", "behaviour_logprobs")}
    places = ids * np.arange(tokens, dtype=np.int32)
    batch = Microbatch(
        token_ids=ids,
        positions=places,
        segment_ids=ids,
        parent_ids=ids,
        targets=ids,
        versions=ids,
        **numbers,
    )
    layout = Layout(scan=scan, remat=True)
    columns, temperature = Columns(weights=batch.loss_mask), jnp.float32(1.0)
    arguments = (params, spec, layout, sft, zero_gradient(params), batch, columns, temperature)
    compiled, seconds = _compiled(accumulate, arguments, numerics=FAST)
    state = {"gradient": arguments[4]}

    def run():
        state["gradient"], statistics = compiled(params, state["gradient"], batch, columns, temperature)
        return statistics

    operations = 8 * (layer_parameters(spec) + spec.vocab * spec.d_model) * rows * tokens
    least = limits.seconds(operations, 4 * tree_bytes(params), "float32")
    what = f"{rows} x {tokens} tokens, {'scanned' if scan else 'unrolled'}, recomputed"
    return _row("forward + backward", "f32", what, rows * tokens, run, seconds, compiled, least)


def _row(
    work: str, precision: str, shape: str, tokens: int, run: Callable[[], Any], compile_seconds: float, compiled, least: float
) -> dict[str, Any]:
    from slipstream.cli.bench.limits import best_seconds

    seconds = best_seconds(run)
    memory = compiled.memory_analysis()
    peak = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "work": work,
        "precision": precision,
        "shape": shape,
        "tokens_per_second": round(tokens / seconds, 1),
        "share_of_limit": round(least / seconds, 3),
        "compile_seconds": round(compile_seconds, 1),
        "peak_megabytes": round(peak / 1e6),
    }


def _prepared(spec, params, precision):
    from slipstream.models.panels import laid_out
    from slipstream.models.quant import COMPUTE, at_precision

    return laid_out(at_precision(params, spec, precision), spec), COMPUTE[precision]


def _compiled(function, arguments: tuple, **static: Any):
    """The compiled program and the seconds that tracing and compiling took; no persistent cache is set in this command."""
    started = time.perf_counter()
    compiled = function.lower(*arguments, **static).compile()
    return compiled, time.perf_counter() - started


def layer_parameters(spec) -> int:
    """Parameters of layers that each token is multiplied with: of experts only those visited."""
    from slipstream.models.parameters import declarations

    total = 0
    for declaration in declarations(spec):
        if declaration.fan_in and declaration.path[0] == "layers":
            visited = spec.experts.per_token / spec.experts.count if "expert" in declaration.stack else 1
            total += int(math.prod(declaration.shape(spec)) * visited)
    return total


def tree_bytes(tree) -> int:
    """Memory of all leaves."""
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _name(dtype) -> str:
    import jax.numpy as jnp

    return jnp.dtype(dtype).name


def tell_row(row: dict[str, Any]) -> dict[str, Any]:
    """The row, shown on standard error."""
    print("  ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr)
    return row
