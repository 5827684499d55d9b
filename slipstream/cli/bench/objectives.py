"""`slipstream bench objectives`: the learning curve of every objective on the toy task, and adapters beside full fine-tuning."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

LAG = 2
EVALUATED = (0, 2, 4, 7, 10, 15, 20, 30, 40)
OBJECTIVES = ("decoupled_ppo", "ppo", "dapo", "reinforce_is", "cispo", "gspo", "dppo")
LEARNT = 0.5  # held-out greedy that every objective must reach from a warm start near 0


def objectives_command(
    seed: Annotated[int, typer.Option(help="Of the warm start and the data.")] = 1,
    objective: Annotated[list[str] | None, typer.Option(help="Which; repeatable; default all, and decoupled_ppo with adapters.")] = None,
    picture: Annotated[Path | None, typer.Option(help="SVG file to draw the curves to.")] = None,
) -> None:
    """Held-out greedy accuracy by version, at a lag of 2; exit 1 where an objective does not learn.

    Example: slipstream bench objectives --picture curves.svg
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.toy import toy_config, toy_run
    from slipstream.cli.bench.warm import warm_policy
    from slipstream.runtime.devices import configure_jax

    configure_jax()
    policy = warm_policy(toy_config({}, 0, seed))
    rows: list[dict[str, Any]] = []
    for name in objective or [*OBJECTIVES, "decoupled_ppo + LoRA"]:
        adapters = ("model.lora.rank=16", "optimizer.learning_rate=4e-4") if name.endswith("LoRA") else ()
        config = toy_config({"name": name.split(" ")[0]}, LAG, seed, *adapters)
        rows.append(_tell({"objective": name} | toy_run(config, policy, EVALUATED)))
    if picture:
        picture.write_text(_picture(rows))
    failures = [f"{row['objective']}: {row['greedy']['40']}, want {LEARNT}" for row in rows if row["greedy"]["40"] < LEARNT]
    print(json.dumps({"benchmark": "objectives", "seed": seed, "lag": LAG, "rows": rows, "failures": failures, "machine": machine()}))
    if failures:
        print(f"slipstream: held-out greedy at version 40: {'; '.join(failures)}", file=sys.stderr)
        raise typer.Exit(1)


def _picture(rows: list[dict[str, Any]]) -> str:
    from slipstream.telemetry.picture import Line, Panel, picture

    versions = tuple(str(version) for version in EVALUATED)
    lines = tuple(Line(name=row["objective"], values=tuple(row["greedy"][version] for version in versions)) for row in rows)
    title = "Held-out accuracy by objective, three-digit sums"
    axes = {"x_name": "version", "x_values": versions, "y_name": "greedy", "y_range": (0.0, 1.0)}
    return picture(title, [Panel(title=f"lag {LAG}, four optimizer steps a batch", lines=lines, **axes)])


def _tell(row: dict[str, Any]) -> dict[str, Any]:
    curve = "  ".join(f"v{version} {value:.3f}" for version, value in row["greedy"].items())
    print(f"{row['objective']:<22} {curve}  {row['seconds']:.0f} s", file=sys.stderr)
    return row
