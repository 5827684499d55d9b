"""`slipstream doctor`: what this machine offers, and whether everything that runs on it can be trusted."""

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slipstream.runtime.doctor.line import Line

NAME = 18  # columns of a finding's name
INDENT = NAME + 12
COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "failed": typer.colors.RED}


def doctor_command(
    model: Annotated[Path | None, typer.Option(help="Model directory to examine; default a tiny fresh model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as one JSON object.")] = False,
) -> None:
    """Examine this machine: versions, isolation, verifiers, weight files, the sampler's self-test, exactness. Exit code 1 on a failure.

    Example: slipstream doctor --model models/SmolLM2-135M-Instruct
    """
    from slipstream.runtime.devices import configure_jax
    from slipstream.runtime.doctor.doctor import diagnose
    from slipstream.runtime.doctor.line import Grade

    configure_jax()
    lines: list[Line] = []
    for line in diagnose(model):
        if not as_json:
            _print(line, first=not lines or lines[-1].part != line.part)
        lines.append(line)
    failed = [f"{line.part}, {line.name}" for line in lines if line.grade is Grade.FAILED]
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "lines": [asdict(line) for line in lines]}))
    else:
        warnings = sum(line.grade is Grade.WARNING for line in lines)
        typer.echo(f"\n{len(lines) - len(failed) - warnings} ok, {warnings} warning{'s' * (warnings != 1)}, {len(failed)} failed")
    if failed:
        print(f"slipstream: failed: {'; '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def _print(line: "Line", *, first: bool) -> None:
    """A finding in columns, its fix below it; `first`: of its part, whose name stands above."""
    if first:
        typer.secho(f"\n{line.part}", bold=True)
    width = max(60, min(shutil.get_terminal_size().columns, 140)) - INDENT
    told = textwrap.wrap(line.detail, width) + textwrap.wrap(f"-> {line.fix}" if line.fix else "", width, subsequent_indent="   ")
    head = f"{line.name:{NAME}} " if len(line.name) <= NAME else f"{line.name}\n{'':{INDENT}}"
    typer.echo(f"  {typer.style(f'{line.grade.value:8}', fg=COLOURS[line.grade.value])} {head}" + f"\n{'':{INDENT}}".join(told))
