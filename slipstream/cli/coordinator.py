"""`slipstream coordinator`: keeps the ledger of a run that others join."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.joining import CertOption, KeyOption, TokenOption
from slipstream.core.errors import UsageError


def coordinator_command(
    run_dir: Annotated[Path, typer.Option(help="Directory of the run, new or begun.")],
    recipe: Annotated[str | None, typer.Argument(help="A built-in recipe or a TOML file; for a new run.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a setting. Repeatable.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's need --token-file.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one, which is printed.")] = 8700,
    token_file: TokenOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
    lease: Annotated[float, typer.Option(help="Seconds after which a worker that is not heard of is gone.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON object.")] = False,
) -> None:
    """Keep a run: hand out prompts, take in samples, fix batches. Killed at any moment it goes on when started again.

    Example: slipstream coordinator quickstart --run-dir runs/first
    """
    from slipstream.config.load import load_config
    from slipstream.runtime.coordinator.server import CoordinatorSettings, coordinate
    from slipstream.runtime.join.address import secret
    from slipstream.runtime.opening import discard_run, open_run
    from slipstream.runtime.processes.parent import end_with_supervisor
    from slipstream.runtime.stop import STOPPED

    end_with_supervisor()
    if lease <= 0:
        raise UsageError(f"--lease {lease:g}: must be above 0 seconds")
    if set_ and recipe is None:
        raise UsageError(f"--set {set_[0]} needs the recipe too; or leave it out: a run keeps the configuration in its run.toml")
    begun = (run_dir / "run.toml").exists()
    if recipe is None and not begun:
        raise UsageError(f"{run_dir} holds no run; give a recipe to begin one: slipstream coordinator quickstart --run-dir {run_dir}")
    settings = CoordinatorSettings(host=host, port=port, token=secret(token_file), tls_cert=tls_cert, tls_key=tls_key, lease_s=lease)
    config, directory = open_run(load_config(recipe, set_ or []) if recipe else None, run_dir, begun)

    def ready(url: str) -> None:
        told = {"url": url, "run_dir": str(run_dir)}
        print(
            json.dumps(told) if as_json else f"coordinator of {run_dir} at {url}\njoin it with: slipstream learner --join {url}", flush=True
        )

    try:
        over = coordinate(config, directory, settings, ready)
    except UsageError:
        if not begun:
            discard_run(directory)
        raise
    finally:
        directory.release()
    if not over:
        print(f"slipstream: stopped; go on with: slipstream coordinator --run-dir {run_dir}", file=sys.stderr)
        raise typer.Exit(STOPPED)
