"""`slipstream bench staleness`: objectives against exact lags on the quickstart's task, with thresholds that see a broken correction.

Batch t is sampled wholly by version t - lag (the lagged mode), four optimizer steps a batch, 40 batches. Uncorrected
objectives decay or stall with lag, corrected ones do not: the shape of AReaL's ablation (arXiv 2505.24298) in seconds.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

EVALUATED = (5, 10, 20, 40)  # versions with a held-out evaluation
UNBOUNDED = 40  # steps of a run: every batch is sampled by version 0
LOST = 0.15  # what a corrected objective may lose at lag 16 against lag 0; measured 0.08 at most
LEARNT = 0.85  # held-out greedy that fresh data reach in 40 versions
STALLED = 0.5  # naive ppo at lag 16 is below this at version 10; measured 0.00
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "reinforce": {"name": "reinforce"},
    "ppo": {"name": "ppo"},
    "reinforce_is": {"name": "reinforce_is"},
    "decoupled_ppo": {"name": "decoupled_ppo"},
    "unclipped_is": {"name": "reinforce_is", "weight_cap": math.inf},
    "unclipped_is exact": {"name": "reinforce_is", "weight_cap": math.inf},
}
LAGS = (0, 1, 4, 16, UNBOUNDED)
QUICK = tuple((setting, lag) for lag in (0, 16) for setting in ("ppo", "reinforce_is", "decoupled_ppo"))
FULL = tuple((setting, lag) for lag in LAGS for setting in SETTINGS)


def staleness_command(
    quick: Annotated[bool, typer.Option("--quick", help="Lags 0 and 16, three objectives, one seed.")] = False,
    seed: Annotated[list[int] | None, typer.Option(help="Of the warm start and the data; repeatable; default 1, 2 and 3, quick 1.")] = None,
    picture: Annotated[Path | None, typer.Option(help="SVG file to draw the figures to.")] = None,
) -> None:
    """Objectives against staleness on the toy task; exit 1 when a threshold fails.

    Example: slipstream bench staleness --quick
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.runtime.devices import configure_jax

    configure_jax()
    started, cpu = time.monotonic(), time.process_time()
    seeds = seed or ([1] if quick else [1, 2, 3])
    rows = [_tell(row) for one in seeds for row in _settings(QUICK if quick else FULL, one)]
    table = over_seeds(rows)
    for (setting, lag), row in table.items():
        print(
            f"{setting:<18} lag {_lag_name(lag):>9}  {_spread(row, 'v10')}  {_spread(row, 'pass@1')}  age {row['age_mean']:.1f}",
            file=sys.stderr,
        )
    if picture:
        picture.write_text(_picture(table))
    failures = failed_thresholds({key: row["mean"] for key, row in table.items()})
    total = {"seconds": round(time.monotonic() - started, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    print(json.dumps({"benchmark": "staleness", "seeds": seeds, "rows": rows, "failures": failures, **total, "machine": machine()}))
    if failures:
        for failure in failures:
            print(f"slipstream: threshold failed: {failure}", file=sys.stderr)
        raise typer.Exit(1)


def over_seeds(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """For each setting and lag: the mean row, and mean, deviation, least and greatest of the two figures that are shown."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for key in dict.fromkeys((row["objective"], row["lag"]) for row in rows):
        same = [row for row in rows if (row["objective"], row["lag"]) == key]
        figures = {"v10": [row["greedy"]["10"] for row in same], "pass@1": [row["pass@1"] for row in same]}
        greedy = {version: statistics.mean(row["greedy"][version] for row in same) for version in same[0]["greedy"]}
        found[key] = {
            "mean": {"greedy": greedy, "pass@1": statistics.mean(figures["pass@1"])},
            "age_mean": statistics.mean(row["age_mean"] for row in same),
        } | {name: (statistics.mean(values), statistics.pstdev(values), min(values), max(values)) for name, values in figures.items()}
    return found


def _spread(row: dict[str, Any], figure: str) -> str:
    mean, deviation, _, _ = row[figure]
    return f"{figure} {mean:.3f} ± {deviation:.3f}"


def _lag_name(lag: int) -> str:
    return "unbounded" if lag == UNBOUNDED else str(lag)


def _picture(table: dict[tuple[str, int], dict[str, Any]]) -> str:
    from slipstream.telemetry.picture import Line, Panel, picture

    lags = sorted({lag for _, lag in table})

    def panel(title: str, figure: str) -> Panel:
        lines = []
        for setting in dict.fromkeys(setting for setting, _ in table):
            found = [table[setting, lag][figure] if (setting, lag) in table else (None,) * 4 for lag in lags]
            mean, _, low, high = zip(*found, strict=True)
            lines.append(Line(name=setting, values=mean, low=low, high=high))
        names = tuple(_lag_name(lag) for lag in lags)
        return Panel(title=title, x_name="lag, versions", x_values=names, y_name="held out", y_range=(0.0, 1.0), lines=tuple(lines))

    return picture("Objectives against staleness", [panel("greedy after 10 versions", "v10"), panel("pass@1 after 40 versions", "pass@1")])


def _tell(row: dict[str, Any]) -> dict[str, Any]:
    greedy = "  ".join(f"v{version} {value:.3f}" for version, value in row["greedy"].items())
    name = f"seed {row['seed']}  {row['objective']:<18} lag {_lag_name(row['lag']):>9}"
    print(f"{name}  greedy {greedy}  pass@1 {row['pass@1']:.3f}  age max {row['age_max']}  {row['seconds']:.1f} s", file=sys.stderr)
    return row


def failed_thresholds(rows: dict[tuple[str, int], dict[str, Any]]) -> list[str]:
    """What the figures should show and do not. Wide bounds for one seed; that naive ppo must stall proves the test can fail."""
    found = []
    for objective in ("decoupled_ppo", "reinforce_is"):
        fresh, stale = rows[objective, 0], rows[objective, 16]
        for name, new, old in (
            ("greedy at version 10", fresh["greedy"]["10"], stale["greedy"]["10"]),
            ("pass@1 at version 40", fresh["pass@1"], stale["pass@1"]),
        ):
            if old < new - LOST:
                found.append(f"{objective} at lag 16: {name} is {old:.3f}, against {new:.3f} on fresh data; at most {LOST} may be lost")
    if rows["decoupled_ppo", 0]["greedy"]["40"] < LEARNT:
        found.append(f"decoupled_ppo at lag 0: greedy {rows['decoupled_ppo', 0]['greedy']['40']:.3f} at version 40, want at least {LEARNT}")
    if rows["ppo", 16]["greedy"]["10"] > STALLED:
        found.append(f"ppo at lag 16 should stall: greedy {rows['ppo', 16]['greedy']['10']:.3f} at version 10, want at most {STALLED}")
    if rows["decoupled_ppo", 0]["greedy"] != rows["ppo", 0]["greedy"]:
        found.append("decoupled_ppo and ppo differ at lag 0, where they are the same loss")
    return found


def _settings(settings: tuple[tuple[str, int], ...], seed: int) -> Iterator[dict[str, Any]]:
    from slipstream.cli.bench.toy import toy_config, toy_run
    from slipstream.cli.bench.warm import warm_policy

    policy = warm_policy(toy_config({}, 0, seed))
    for setting, lag in settings:
        exact = ("model.numerics=exact", "sampling.page_tokens=8") if setting.endswith("exact") else ()
        found = toy_run(toy_config(SETTINGS[setting], lag, seed, *exact), policy, EVALUATED)
        yield {"objective": setting, "seed": seed, "lag": lag} | found
