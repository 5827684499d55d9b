"""What all commands of one role have in common: options, and how they end."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slipstream.runtime.stop import StopFlag

JoinOption = Annotated[str, typer.Option("--join", metavar="URL", help="The coordinator, e.g. http://host:8700.")]
TokenOption = Annotated[Path | None, typer.Option("--token-file", help="File with the token that the coordinator asks for.")]
CaOption = Annotated[Path | None, typer.Option("--tls-ca", help="Certificates to trust, for a coordinator with one of its own making.")]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Who this is: a process that comes again under its name takes its place again at once.")
]
HostOption = Annotated[
    str | None, typer.Option("--host", help="Address to serve weights to others at; default the one on the way to the coordinator.")
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where others reach this role's weights, if not where it listens: behind a forwarded port."),
]
PortOption = Annotated[int, typer.Option("--port", help="Port to serve weights at; 0 takes any free one.")]
CertOption = Annotated[Path | None, typer.Option("--tls-cert", help="Certificate to serve under (PEM); needs --tls-key.")]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", help="Its private key (PEM).")]


def until_it_leaves(job: "Callable[[StopFlag], None]") -> None:
    """Run a role until its run is over. SIGTERM or Ctrl-C, which `job` sees by the flag, ends the command with the code of a stop."""
    from slipstream.runtime.join.caller import Ending
    from slipstream.runtime.stop import STOPPED, StopFlag, installed

    with installed(StopFlag(), "leaving; once more to stop at once") as stop:
        try:
            job(stop)
        except Ending as ending:
            print(f"slipstream: {ending}", file=sys.stderr)
    if stop.is_set():
        raise typer.Exit(STOPPED)
