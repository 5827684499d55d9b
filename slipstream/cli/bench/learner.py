"""`slipstream bench learner`: tokens/s and model FLOP utilisation of learner steps, and the memory of the log-prob operation."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.bench.models import tell_row

LOGPROB_POSITIONS, LOGPROB_VOCABULARY, LOGPROB_WIDTH = 4_096, 32_768, 64  # full logits: 512 MiB, and as much again for their gradient


def learner_command(
    model: Annotated[Path | None, typer.Option("--model", help="Model directory; random weights of SmolLM2-135M's shape without.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="Samples a step, in groups of 8.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Steps measured after one that compiles; the best counts.")] = 2,
) -> None:
    """Steps of the whole learner on rollouts of mixed lengths: layers scanned and unrolled, recomputed or kept; full and adapters.

    Example: slipstream bench learner --model models/SmolLM2-135M-Instruct
    """
    from slipstream.cli.bench.limits import measure_limits
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.shape import model_or_random

    spec, params = model_or_random(model)
    limits = measure_limits()
    sequences = _rollouts(spec, samples)
    settings = [("scan", True), ("unroll", True), ("unroll", False)]
    rows = [tell_row(_measure(spec, params, sequences, layers, remat, repeats, limits)) for layers, remat in settings]
    memory = [tell_row(_memory(whole)) for whole in (False, True)]
    found = {"limits": limits.figures()["gflops_per_second"], "rows": rows, "logprobs": memory, "machine": machine()}
    print(json.dumps({"benchmark": "learner", "model": str(model)} | found))


def _rollouts(spec, samples: int, prompt_tokens: int = 48):
    """Groups of 8 with answers of lognormal length (median 48, at most 192), as a step gets them."""
    import numpy as np

    from slipstream.core.records import TrainingSequence
    from slipstream.core.rng import generator

    draw = generator(0, "bench learner")
    lengths = np.clip(draw.lognormal(np.log(48), 0.7, samples).round(), 8, 192).astype(int)
    prompts = draw.integers(0, spec.known_tokens or spec.vocab, (-(-samples // 8), prompt_tokens)).astype(np.int32)
    found = []
    for index, length in enumerate(lengths):
        own = draw.integers(0, spec.known_tokens or spec.vocab, length).astype(np.int32)
        mask = np.arange(prompt_tokens + length) >= prompt_tokens
        found.append(
            TrainingSequence(
                token_ids=np.concatenate([prompts[index // 8], own]),
                loss_mask=mask,
                advantages=np.where(mask, np.float32(1 - 2 * (index % 2)), np.float32(0)),
                behaviour_logprobs=np.where(mask, np.float32(-np.log(spec.vocab)), np.float32(0)),
                versions=np.where(mask, 0, -1).astype(np.int32),
            )
        )
    return found


def _measure(spec, params, sequences, layers: str, remat: bool, repeats: int, limits) -> dict[str, Any]:
    from slipstream.config.schema import BatchSection, ModelSection, RunConfig
    from slipstream.train.learner import Learner

    longest = max(len(sequence.token_ids) for sequence in sequences)
    batch = BatchSection(prompts_per_step=len(sequences) // 8, group_size=8, row_tokens=max(256, longest), rows_per_microbatch=2)
    config = RunConfig(model=ModelSection.model_validate({"learner_layers": layers, "remat": remat}), batch=batch)
    learner = Learner(config, spec, params)
    learner.begin_reinforcement()
    seconds, metrics = [], {}
    for _ in range(repeats + 1):
        started = time.perf_counter()
        metrics = learner.step(sequences)
        seconds.append(time.perf_counter() - started)
    tokens = sum(len(sequence.token_ids) for sequence in sequences)
    best = min(seconds[1:])
    return {
        "layers": layers,
        "remat": remat,
        "tokens_per_second": round(tokens / best, 1),
        "mfu": round(metrics["model_flops"] / best / limits.flops_per_second["float32"], 3),
        "padding_waste": round(metrics["padding_waste"], 3),
        "compile_seconds": round(seconds[0] - best, 1),
    }


def _memory(whole: bool) -> dict[str, Any]:
    """Temporary memory of value and gradient of log-probs: in chunks as the learner does it, and with all logits at once."""
    import jax
    import jax.numpy as jnp

    from slipstream.models.logprobs import selected_logprobs

    hidden = jax.ShapeDtypeStruct((LOGPROB_POSITIONS, LOGPROB_WIDTH), jnp.float32)
    output = jax.ShapeDtypeStruct((LOGPROB_WIDTH, LOGPROB_VOCABULARY), jnp.float32)
    tokens = jax.ShapeDtypeStruct((LOGPROB_POSITIONS,), jnp.int32)

    def chunked(hidden, output, tokens):
        return selected_logprobs(hidden, output, tokens, jnp.float32(1.0)).logprob.sum()

    def at_once(hidden, output, tokens):
        return jnp.take_along_axis(jax.nn.log_softmax(hidden @ output), tokens[:, None], axis=1).sum()

    compiled = jax.jit(jax.value_and_grad(at_once if whole else chunked, argnums=(0, 1))).lower(hidden, output, tokens).compile()
    name, used = "full logits" if whole else "in chunks", compiled.memory_analysis()
    return {"logprobs": name, "temporary_mebibytes": round(used.temp_size_in_bytes / 2**20) if used else None}
