"""`slipstream bench NAME`: benchmarks; each prints one JSON object with its figures and the machine."""

from typing import Annotated

import typer


def bench_command(name: Annotated[str, typer.Argument(help="Which benchmark.")]) -> None:
    """Run a benchmark."""
    raise typer.Exit(2)
