"""`slipstream generate`: a file of prompts to a file of samples."""

import json
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.precision import PrecisionOption


def generate_command(
    model: Annotated[Path, typer.Option(help="Model directory in Hugging Face layout.")],
    prompts: Annotated[Path, typer.Option(help="JSONL: rows with id and one of messages, prompt, prompt_ids (ids win).")],
    out: Annotated[Path, typer.Option(help="JSONL to write, in the order of the prompts; a whole file or none.")],
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many likeliest tokens; -1: from all.")] = -1,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that reach this probability together.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw from tokens at least this share as likely as the likeliest.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed, id and sample give the same tokens, whatever else is in the file.")] = 0,
    n: Annotated[int, typer.Option(help="Samples a prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Most new tokens of a sample.")] = 256,
    slots: Annotated[int, typer.Option(help="Samples drawn at a time.")] = 8,
    precision: Annotated[PrecisionOption, typer.Option(help="Of weights and products.")] = PrecisionOption.F32,
    exact: Annotated[bool, typer.Option("--exact", help="Log-probs equal to the learner's, bit for bit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print counts and speed as one JSON object.")] = False,
) -> None:
    """Sample completions of prompts: token ids, log-probs, text.

    Example: slipstream generate --model models/SmolLM2-135M-Instruct --prompts prompts.jsonl --out samples.jsonl --n 4
    """
    from slipstream.runtime.devices import configure_jax
    from slipstream.runtime.generate import GenerateSettings, generate

    configure_jax()
    settings = GenerateSettings(
        model=model,
        prompts=prompts,
        out=out,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        n=n,
        max_tokens=max_tokens,
        slots=slots,
        precision=precision.value,
        exact=exact,
        quiet=quiet,
    )
    try:
        made = generate(settings)
    except KeyboardInterrupt:
        typer.echo("slipstream: stopped; nothing was written", err=True)
        raise typer.Exit(130) from None
    if as_json:
        found = {"out": str(out), "rows": made.rows, "tokens": made.tokens, "tokens_per_second": round(made.tokens_per_second, 1)}
        typer.echo(json.dumps(found))
