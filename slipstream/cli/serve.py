"""`slipstream serve`: an OpenAI-compatible server for a model directory."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.precision import PrecisionOption
from slipstream.core.errors import UsageError

_LOCAL = ("127.0.0.1", "::1", "localhost")


def serve_command(
    model: Annotated[Path, typer.Option(help="Model directory in Hugging Face layout.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one, which is printed.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name for clients; default the directory's.")] = None,
    slots: Annotated[int, typer.Option(help="Samples drawn at a time.")] = 8,
    max_waiting: Annotated[int, typer.Option(help="Samples that may wait for a slot; beyond that requests get status 429.")] = 256,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest prompt plus completion; default the model's context, at most 2048.")
    ] = None,
    precision: Annotated[PrecisionOption, typer.Option(help="Of weights and products.")] = PrecisionOption.F32,
    tokens_per_dispatch: Annotated[int, typer.Option(help="Tokens drawn between two looks at requests; fewer are shown sooner.")] = 4,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the key that clients must send; default the environment's SLIPSTREAM_API_KEY.")
    ] = None,
    drain: Annotated[float, typer.Option(help="Seconds that running requests have to end after SIGTERM or Ctrl-C.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON object.")] = False,
) -> None:
    """Serve a model: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics. See docs/serving.md.

    Example: slipstream serve --model models/SmolLM2-135M-Instruct --port 8000
    """
    key = _api_key(api_key_file)
    if host not in _LOCAL and key is None:
        print(f"slipstream: anyone who reaches {host} can use this server; --api-key-file asks for a key", file=sys.stderr)

    from slipstream.runtime.devices import configure_jax
    from slipstream.runtime.serve.server import Address, ServeSettings, serve

    def ready(address: Address) -> None:
        told = {"url": address.url, "host": address.host, "port": address.port, "model": address.model}
        print(json.dumps(told) if as_json else f"serving {address.model} at {address.url}/v1", flush=True)

    configure_jax()
    settings = ServeSettings(
        model=model,
        name=name,
        host=host,
        port=port,
        slots=slots,
        max_waiting=max_waiting,
        max_tokens=max_tokens,
        precision=precision.value,
        tokens_per_dispatch=tokens_per_dispatch,
        api_key=key,
        drain_s=drain,
    )
    serve(settings, ready)


def _api_key(file: Path | None) -> str | None:
    """The key of the file, else of the environment, else none. Raises UsageError for one that is empty or not plain."""
    if file is None:
        key, source = os.environ.get("SLIPSTREAM_API_KEY"), "SLIPSTREAM_API_KEY"
    else:
        try:
            key, source = file.read_text().strip(), f"--api-key-file {file}"
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {file} cannot be read: {error}") from error
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise UsageError(f"{source} holds no key: one line of printable ASCII characters is needed")
    return key
