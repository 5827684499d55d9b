"""`slipstream export`: a run's checkpoint as a model directory in Hugging Face layout."""

import json
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.dtype import Dtype


def export_command(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write; absent or empty.")],
    step: Annotated[int | None, typer.Option(help="Learner step of the checkpoint; default the newest.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="bfloat16 halves the files and rounds; float32 keeps every bit.")] = Dtype.BFLOAT16,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write a checkpoint of a run as a model directory that other programs load: config, safetensors, tokenizer, chat template.

    Example: slipstream export runs/sums-1 --out models/sums-1
    """
    from slipstream.runtime.export import export

    made = export(run, out, step=step, dtype=dtype.value)
    if as_json:
        found = {"out": str(out), "run": str(run), "step": made.step, "dtype": dtype.value}
        typer.echo(json.dumps(found | {"architecture": made.architecture, "parameters": made.parameters}))
    else:
        typer.echo(f"{out}: step {made.step}, {made.architecture}, {made.parameters:,} parameters as {dtype.value}", err=True)
