"""`slipstream bench NAME`: each benchmark prints one JSON object with its figures and the machine, and exits 1 when a threshold fails."""

import typer

from slipstream.cli.bench.chaos import chaos_command
from slipstream.cli.bench.engine import engine_command
from slipstream.cli.bench.grading import grading_command
from slipstream.cli.bench.learner import learner_command
from slipstream.cli.bench.ledger import ledger_command
from slipstream.cli.bench.models import models_command
from slipstream.cli.bench.objectives import objectives_command
from slipstream.cli.bench.overlap import overlap_command
from slipstream.cli.bench.packing import packing_command
from slipstream.cli.bench.products import products_command
from slipstream.cli.bench.quickstart import quickstart_command
from slipstream.cli.bench.rows import rows_command
from slipstream.cli.bench.staleness import staleness_command
from slipstream.cli.bench.turns import turns_command
from slipstream.cli.bench.weights import weights_command

bench_app = typer.Typer(help="Benchmarks; each prints one JSON object with its figures and the machine.", no_args_is_help=True)
bench_app.command("chaos")(chaos_command)
bench_app.command("engine")(engine_command)
bench_app.command("grading")(grading_command)
bench_app.command("learner")(learner_command)
bench_app.command("ledger")(ledger_command)
bench_app.command("models")(models_command)
bench_app.command("overlap")(overlap_command)
bench_app.command("packing")(packing_command)
bench_app.command("objectives")(objectives_command)
bench_app.command("products")(products_command)
bench_app.command("quickstart")(quickstart_command)
bench_app.command("rows")(rows_command)
bench_app.command("staleness")(staleness_command)
bench_app.command("turns")(turns_command)
bench_app.command("weights")(weights_command)

__all__ = ["bench_app"]
