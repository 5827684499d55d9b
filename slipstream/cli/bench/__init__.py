"""`slipstream bench NAME`: each benchmark prints one JSON object with its figures and the machine, and exits 1 when a threshold fails."""

import typer

from slipstream.cli.bench.models import models_command
from slipstream.cli.bench.quickstart import quickstart_command
from slipstream.cli.bench.staleness import staleness_command

bench_app = typer.Typer(help="Benchmarks; each prints one JSON object with its figures and the machine.", no_args_is_help=True)
bench_app.command("models")(models_command)
bench_app.command("quickstart")(quickstart_command)
bench_app.command("staleness")(staleness_command)

__all__ = ["bench_app"]
