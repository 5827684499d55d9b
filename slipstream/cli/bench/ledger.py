"""`slipstream bench ledger`: tickets a second with the journal on disk, restarts, and a fleet of samplers; or a soak of bad luck."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

AIM_TICKETS_PER_SECOND = 5_000.0
PROMPTS_PER_STEP = 64
SMALL_TICKETS = 8_000


def ledger_command(
    tickets: Annotated[int, typer.Option(min=1_000, help="In the journal that is opened again.")] = 100_000,
    samplers: Annotated[int, typer.Option(min=1, help="Simulated, on a virtual clock.")] = 10_000,
    group_size: Annotated[list[int] | None, typer.Option(min=1, help="Samples a ticket; repeatable; default 1 and 8.")] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated samplers and of the soak.")] = 1,
    soak: Annotated[int, typer.Option(min=0, help="Random schedules of crashes and other troubles, nothing else; of each mode.")] = 0,
    directory: Annotated[Path | None, typer.Option(help="Where the journals are written; default: a temporary directory.")] = None,
) -> None:
    """Tickets a second through claim, submit, batch and commit; restarts; 10,000 samplers; or a soak. Exit 1 where a promise breaks.

    Example: slipstream bench ledger --soak 100000
    """
    from slipstream.cli.bench.machine import machine

    if soak:
        found: dict[str, Any] = {"soak": _soak(seed, soak)}
        failures = found["soak"]["broken"]
    else:
        with tempfile.TemporaryDirectory(dir=directory) as made:
            found = _figures(Path(made), tickets, samplers, group_size or [1, 8], seed)
        failures = found["samplers"]["broken"]
    print(json.dumps({"benchmark": "ledger", "seed": seed, **found, "machine": machine()}))
    if failures:
        print(f"slipstream: promises of the ledger did not hold: {failures[0]}", file=sys.stderr)
        raise typer.Exit(1)


def _figures(directory: Path, tickets: int, samplers: int, group_sizes: list[int], seed: int) -> dict[str, Any]:
    from slipstream.cli.bench.ledger_fleet import fleet
    from slipstream.cli.bench.ledger_speed import restarts, speed

    rates = [_tell(speed(directory / f"group-{size}.sqlite", SMALL_TICKETS // size, size, PROMPTS_PER_STEP)) for size in group_sizes]
    best = max(rate["tickets_per_second"] for rate in rates)
    return {
        "aim_tickets_per_second": AIM_TICKETS_PER_SECOND,
        "reached": best >= AIM_TICKETS_PER_SECOND,
        "speed": rates,
        "restart": _tell(restarts(directory / "long.sqlite", tickets, PROMPTS_PER_STEP)),
        "samplers": _tell(fleet(directory / "fleet.sqlite", samplers, seed)),
    }


def _soak(seed: int, schedules: int) -> dict[str, Any]:
    """So many random schedules in flight, and so many pinned."""
    import time

    from slipstream.core.errors import TransitionError
    from slipstream.ledger.promises import Broken
    from slipstream.ledger.schedules import random_schedule

    broken: list[str] = []
    events, started = 0, time.perf_counter()
    for number in range(seed * 10_000_000, seed * 10_000_000 + schedules):
        for pinned in (False, True):
            schedule = random_schedule(number, pinned=pinned)
            try:
                schedule.run()
            except (Broken, TransitionError) as error:
                broken.append(f"schedule {number} ({'pinned' if pinned else 'in flight'}): {error}")
                print(broken[-1], file=sys.stderr, flush=True)
            events += len(schedule.journal)
    seconds = time.perf_counter() - started
    return {"schedules": 2 * schedules, "events": events, "seconds": round(seconds, 1), "broken": broken}


def _tell(row: dict[str, Any]) -> dict[str, Any]:
    print("  ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr, flush=True)
    return row
