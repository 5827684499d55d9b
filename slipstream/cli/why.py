"""`slipstream why`: who waits for whom in a run, since when, and at whose end it hangs."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def why_command(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Say who works on what, who waits for whom, and the root cause; of a run that has ended, how.

    Example: slipstream why runs/quickstart-1
    """
    from slipstream.runtime.why import reasons

    found = reasons(run, time.time())
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    _tables(found)
    for event in found.events:
        fields = ", ".join(f"{name} {value}" for name, value in event.items() if name not in ("time", "role", "kind"))
        typer.echo(f"  {event['time']:8.1f} s  {event['role']}: {event['kind']}{', ' if fields else ''}{fields}"[:200])
    typer.echo(found.verdict)


def _tables(found) -> None:
    from rich.console import Console
    from rich.table import Table

    if found.status is None or found.process is None:
        return
    console = Console(width=None if Console().is_terminal else 120)
    age = f"{found.age_s:.0f} s ago" if found.age_s >= 1 else "now"
    roles = Table("role", "phase", "for, s", "heard of, s ago", title=f"process {found.process}, {age}", title_justify="left")
    for role in found.status.roles:
        roles.add_row(role.role, role.phase, f"{role.phase_s:.1f}", f"{role.heard_s:.0f}" if role.heard_s else "-")
    console.print(roles)
    if flow := found.status.flow:
        states = ", ".join(f"{count} {state}" for state, count in flow.tickets.items() if count)
        console.print(f"version {flow.version} of {flow.steps}; tickets: {states or 'none yet'}")
    if found.explanation and found.explanation.waits:
        waits = Table("who waits", "for", "since, s", "why")
        for wait in found.explanation.waits:
            waits.add_row(wait.who, wait.on, f"{wait.since_s:.1f}", wait.why)
        console.print(waits)
