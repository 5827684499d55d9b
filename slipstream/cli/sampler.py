"""`slipstream sampler`: draws samples for a run that is somewhere else."""

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
    until_it_leaves,
)
from slipstream.cli.precision import PrecisionOption


def sampler_command(
    join: JoinOption,
    token_file: TokenOption = None,
    precision: Annotated[PrecisionOption | None, typer.Option(help="Of weights and products; default the run's.")] = None,
    name: NameOption = None,
    host: HostOption = None,
    port: PortOption = 0,
    advertise: AdvertiseOption = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve figures for Prometheus here; 0 takes any free port; default: none.")
    ] = None,
    tls_ca: CaOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
) -> None:
    """Join a run and sample for it, until it is over. SIGTERM or Ctrl-C: claims nothing more, hands over what it has, leaves.

    Example: slipstream sampler --join http://127.0.0.1:8700
    """
    from slipstream.runtime.join.address import Address, JoinSettings, secret
    from slipstream.runtime.processes.parent import end_with_supervisor

    end_with_supervisor()
    address = Address(url=join, token=secret(token_file), ca_file=tls_ca)
    settings = JoinSettings(address=address, name=name, host=host, port=port, advertise=advertise, tls_cert=tls_cert, tls_key=tls_key)

    from slipstream.runtime.processes.sampler import sample

    until_it_leaves(lambda stop: sample(settings, precision.value if precision else None, stop, metrics_port))
