"""`slipstream bench engine`: tokens/s of the engine by batch and precision, against the machine's limits and other systems."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from slipstream.cli.bench.workload import Workload, mixed, uniform
from slipstream.cli.precision import PrecisionOption
from slipstream.core.errors import RunFailed

if TYPE_CHECKING:
    from slipstream.models.weight import Precision

TOKENS_PER_DISPATCH = 8
PEERS = Path("benchmarks/peers")


def engine_command(
    model: Annotated[Path | None, typer.Option("--model", help="Model directory; random weights of SmolLM2-135M's shape without.")] = None,
    precision: Annotated[list[PrecisionOption] | None, typer.Option(help="Repeatable; default f32 and bf16.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Samples at once; repeatable; default 1, 8, 32 and 128.")] = None,
    exact: Annotated[bool, typer.Option(help="Float32 and bfloat16 in exact numerics too.")] = True,
    hf: Annotated[Path | None, typer.Option(help="Python with transformers, to compare with (benchmarks/peers).")] = None,
    vllm: Annotated[Path | None, typer.Option(help="Python with vLLM, to compare with (benchmarks/peers).")] = None,
    peer_dtype: Annotated[list[str] | None, typer.Option(help="float32 or bfloat16 for them; repeatable; default bfloat16.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each workload after one that warms up; the best counts.")] = 3,
) -> None:
    """Prompts of 64 and answers of 64 tokens, then RL's own workload: groups of 16 with mixed lengths.

    Example: slipstream bench engine --model models/SmolLM2-135M-Instruct --batch 32
    """
    from slipstream.cli.bench.limits import measure_limits
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.shape import model_or_random

    spec, params = model_or_random(model)
    known = spec.known_tokens or spec.vocab
    workloads = [*(uniform(count, known) for count in batch or [1, 8, 32, 128]), mixed(32, known)]
    chosen = [cast("Precision", choice.value) for choice in precision or [PrecisionOption.F32, PrecisionOption.BF16]]
    kinds: list[tuple[Any, bool]] = [(kind, False) for kind in chosen]
    kinds += [(kind, True) for kind in chosen if exact and kind in ("f32", "bf16")]
    limits = measure_limits()
    rows = []
    for workload in workloads:
        for kind, exactly in kinds:
            rows.append(_tell(_measure(spec, params, workload, kind, exactly, repeats, limits)))
        for name, python in (("hf_generate", hf), ("vllm_serve", vllm)):
            for dtype in peer_dtype or ["bfloat16"]:
                if python and model:
                    rows.append(_tell(_peer(name, python, model, workload, dtype)))
    print(json.dumps({"benchmark": "engine", "model": str(model), "limits": limits.figures(), "rows": rows, "machine": machine()}))


def _measure(spec, params, workload: Workload, precision: "Precision", exact: bool, repeats: int, limits) -> dict[str, Any]:
    from slipstream.core.clock import SystemClock
    from slipstream.core.records import WeightVersion
    from slipstream.engine.engine import Engine
    from slipstream.models.quant import at_precision

    engine = Engine(
        spec,
        id="bench",
        clock=SystemClock(),
        slots=workload.concurrency,
        max_tokens=workload.longest,
        tokens_per_dispatch=TOKENS_PER_DISPATCH,
        precision=precision,
        exact=exact,
    )
    engine.load(WeightVersion(lineage=0, version=0, params=params))
    seconds = min([_generate(engine, workload, run) for run in range(repeats + 1)][1:])
    weights = at_precision(params, spec, precision)
    least = _least_seconds(spec, weights, workload, limits, precision)
    return _row(workload, f"slipstream {precision}{' exact' if exact else ''}", seconds) | {"share_of_limit": round(least / seconds, 3)}


def _generate(engine, workload: Workload, run: int) -> float:
    """Seconds for the whole workload through the engine's own interface."""
    import numpy as np

    from slipstream.core.records import SampleRequest

    for index, (prompt, new) in enumerate(zip(workload.prompts, workload.new_tokens, strict=True)):
        key, ids = (f"{run}-{index // workload.group}", index % workload.group), np.array(prompt, np.int32)
        engine.submit(SampleRequest(key=key, prompt_ids=ids, seed=index, max_new_tokens=new, temperature=1.0, stop_ids=()))
    started, drawn = time.perf_counter(), 0
    while engine.waiting() or engine.running():
        drawn += sum(len(sample.completion_ids) for sample in engine.step())
    seconds = time.perf_counter() - started
    if drawn != sum(workload.new_tokens):
        raise RunFailed(f"{workload.name}: {drawn} tokens drawn of {sum(workload.new_tokens)}")
    return seconds


def _least_seconds(spec, weights, workload: Workload, limits, precision: "Precision") -> float:
    """What the machine needs at least: all products at its best rate, or the weights and caches read once a step."""
    import jax.numpy as jnp

    from slipstream.cli.bench.models import layer_parameters, tree_bytes
    from slipstream.models.quant import COMPUTE

    dtype, new = jnp.dtype(COMPUTE[precision]), sum(workload.new_tokens)
    head = spec.vocab * spec.d_model
    flops = 2 * layer_parameters(spec) * (workload.distinct_prompt_tokens + new) + 2 * head * new
    steps = max(max(workload.new_tokens), new / workload.concurrency)
    width = 2 * spec.layers * spec.kv_heads * spec.head_dim * dtype.itemsize
    cached = sum(new * (len(prompt) + new / 2) for prompt, new in zip(workload.prompts, workload.new_tokens, strict=True)) * width
    return limits.seconds(flops, steps * tree_bytes(weights) + cached, dtype.name)


def _peer(name: str, python: Path, model: Path, workload: Workload, dtype: str) -> dict[str, Any]:
    """The same prompts and lengths through another system, in its own environment. Raises RunFailed when it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        asked = Path(scratch) / "workload.json"
        asked.write_text(json.dumps(workload.for_peer()))
        command = [str(python), str(PEERS / f"{name}.py"), "--model", str(model), "--workload", str(asked), "--dtype", dtype]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"{name} failed with {python}: {done.stderr.strip().splitlines()[-1:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["tokens"] != (asked_for := sum(workload.new_tokens)):
        raise RunFailed(f"{name} drew {found['tokens']} tokens for {workload.name}, not the {asked_for} that it was asked for")
    return _row(workload, f"{found['peer']} {found['dtype']}", asked_for / found["tokens_per_second"])


def _row(workload: Workload, system: str, seconds: float) -> dict[str, Any]:
    tokens = sum(workload.new_tokens)
    return {"workload": workload.name, "system": system, "tokens": tokens, "tokens_per_second": round(tokens / seconds, 1)}


def _tell(row: dict[str, Any]) -> dict[str, Any]:
    share = f"  {row['share_of_limit']:.2f} of the limit" if "share_of_limit" in row else ""
    print(f"{row['workload']:<12} {row['system']:<24} {row['tokens_per_second']:>8.1f} tokens/s{share}", file=sys.stderr)
    return row
