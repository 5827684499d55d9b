"""The entry point `slipstream`: registers the commands and maps failures to exit codes (2 usage, 1 failed run, 130 stopped)."""

import sys

import typer

from slipstream import __version__
from slipstream.cli.bench import bench_app
from slipstream.cli.coordinator import coordinator_command
from slipstream.cli.data import data_app
from slipstream.cli.doctor import doctor_command
from slipstream.cli.eval import eval_command
from slipstream.cli.export import export_command
from slipstream.cli.generate import generate_command
from slipstream.cli.grade import grade_command
from slipstream.cli.grader import grader_command
from slipstream.cli.import_gguf import import_gguf_command
from slipstream.cli.learner import learner_command
from slipstream.cli.replay import replay_command
from slipstream.cli.report import report_command
from slipstream.cli.sampler import sampler_command
from slipstream.cli.score import score_command
from slipstream.cli.serve import serve_command
from slipstream.cli.train import train_command
from slipstream.cli.why import why_command
from slipstream.core.errors import SlipstreamError

app = typer.Typer(
    name="slipstream",
    help="Asynchronous reinforcement learning of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train_command)
app.command("coordinator")(coordinator_command)
app.command("learner")(learner_command)
app.command("sampler")(sampler_command)
app.command("grader")(grader_command)
app.command("generate")(generate_command)
app.command("score")(score_command)
app.command("eval")(eval_command)
app.command("grade")(grade_command)
app.command("serve")(serve_command)
app.command("doctor")(doctor_command)
app.command("report")(report_command)
app.command("why")(why_command)
app.command("replay")(replay_command)
app.command("export")(export_command)
app.command("import-gguf")(import_gguf_command)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; never shows a traceback for a failure that has a cause."""
    try:
        app()
    except SlipstreamError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
