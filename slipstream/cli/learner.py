"""`slipstream learner`: trains the policy of a run that a coordinator keeps."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.joining import (
    AdvertiseOption,
    CaOption,
    CertOption,
    HostOption,
    JoinOption,
    KeyOption,
    NameOption,
    PortOption,
    TokenOption,
)


def learner_command(
    join: JoinOption,
    token_file: TokenOption = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where to keep checkpoints and metrics; default the coordinator's directory, where that is here.")
    ] = None,
    name: NameOption = None,
    host: HostOption = None,
    port: PortOption = 0,
    advertise: AdvertiseOption = None,
    tls_ca: CaOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
) -> None:
    """Join a run and train on its batches, from its newest checkpoint to the last step.

    Example: slipstream learner --join http://127.0.0.1:8700
    """
    from slipstream.runtime.join.address import Address, JoinSettings, secret
    from slipstream.runtime.join.caller import Ending
    from slipstream.runtime.outcome import Interrupted
    from slipstream.runtime.processes.parent import end_with_supervisor
    from slipstream.runtime.stop import STOPPED, StopFlag, installed

    end_with_supervisor()
    address = Address(url=join, token=secret(token_file), ca_file=tls_ca)
    settings = JoinSettings(address=address, name=name, host=host, port=port, advertise=advertise, tls_cert=tls_cert, tls_key=tls_key)

    from slipstream.runtime.processes.learner import learn
    from slipstream.telemetry.progress import make_progress

    progress = make_progress(sys.stderr, quiet)
    try:
        with installed(StopFlag()) as stop:
            learn(settings, run_dir, progress, stop)
    except (Interrupted, Ending) as interrupted:
        print(f"slipstream: {interrupted}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    finally:
        progress.finish()
