"""`slipstream report`: one self-contained page about a run, or about two side by side."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    out: Annotated[Path | None, typer.Option(help="File to write; default report.html in the run directory.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Directory of a second run to set beside it.")] = None,
) -> None:
    """Write the report of a run as one HTML file.

    Example: slipstream report runs/quickstart-1 --compare runs/quickstart-sync
    """
    from slipstream.telemetry.report import write_report

    typer.echo(write_report(run, out, compare))
