"""`slipstream score`: the learner's log-probs of given completions."""

import json
from pathlib import Path
from typing import Annotated

import typer


def score_command(
    model: Annotated[Path, typer.Option(help="Model directory in Hugging Face layout.")],
    source: Annotated[Path, typer.Option("--in", help="JSONL: rows with id, prompt_ids, completion_ids.")],
    out: Annotated[Path, typer.Option(help="JSONL to write: id and logprobs, a row for each row, in the same order.")],
    temperature: Annotated[float, typer.Option(help="Of the distribution whose log-probs are meant.")] = 1.0,
    exact: Annotated[bool, typer.Option("--exact", help="Log-probs equal to an exact engine's, bit for bit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print counts and speed as one JSON object.")] = False,
) -> None:
    """Compute the log-probs that the learner gives to completions, in float32.

    Example: slipstream score --model models/SmolLM2-135M-Instruct --in samples.jsonl --out scores.jsonl
    """
    from slipstream.runtime.devices import configure_jax
    from slipstream.runtime.score import score_file

    configure_jax()
    made = score_file(model, source, out, temperature=temperature, exact=exact, quiet=quiet)
    if as_json:
        found = {"out": str(out), "rows": made.rows, "tokens": made.tokens, "tokens_per_second": round(made.tokens_per_second, 1)}
        typer.echo(json.dumps(found))
