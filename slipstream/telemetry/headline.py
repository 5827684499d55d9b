"""The first thing a reader of the report sees: what ran, for how long, and the handful of numbers that matter. Pure."""

from collections.abc import Sequence
from typing import Any

from slipstream.telemetry import figures
from slipstream.telemetry.run_data import RunData

Tile = dict[str, Any]


def title(run: RunData) -> dict[str, Any]:
    """Recipe, mode, bound, seed, time and state of the run."""
    kinds = [row.get("kind") for row in run.events]
    started = next((row for row in reversed(run.events) if row.get("kind") == "run_started"), {})
    return {
        "name": run.name,
        "recipe": run.setting("run", "recipe") or run.name,
        "mode": run.setting("mode", "kind"),
        "eta": bound(run),
        "seed": run.setting("run", "seed"),
        "run_id": started.get("run_id"),
        "duration": figures.duration(run.duration_s()),
        "duration_s": run.duration_s(),
        "steps": run.metrics[-1]["step"] if run.metrics else 0,
        "planned": run.setting("run", "steps"),
        "resumes": kinds.count("resume"),
        "finished": "run_finished" in kinds,
    }


def bound(run: RunData) -> int | None:
    """The greatest age allowed: 0 in sync mode, else eta."""
    return 0 if run.setting("mode", "kind") == "sync" else run.setting("mode", "eta")


def tiles(run: RunData) -> list[Tile]:
    """Headline numbers: {"label", "first" (or None), "last", "note"}; those the run has no data for say so."""
    return [
        _held_out(run),
        _change("Sampled reward", run.figures("reward_mean"), figures.decimal, "mean of a step's rollouts"),
        _change("Worked share", run.figures("style_share"), figures.percent, "rollouts that show their working"),
        _age(run),
        _rate(run),
        {"label": "Steps", "first": None, "last": figures.count(len(run.metrics)), "note": f"in {figures.duration(run.duration_s())}"},
    ]


def _held_out(run: RunData) -> Tile:
    scored = [row for row in run.evaluations if row.get("pass@1") is not None]
    if not scored:
        return {"label": "Held-out greedy", "first": None, "last": figures.ABSENT, "note": "no evaluation yet"}
    first, last = scored[0], scored[-1]
    note = f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{last.get('n', '?')}"
    if last.get("ci"):
        note = f"95 % {figures.interval(*last['ci'])}, {note}"
    values = [figures.decimal(row["pass@1"]) for row in (first, last)]
    return {"label": "Held-out greedy", "first": values[0] if last is not first else None, "last": values[1], "note": note}


def _change(label: str, values: Sequence[float | None], text: Any, note: str) -> Tile:
    present = [value for value in values if value is not None]
    if not present:
        return {"label": label, "first": None, "last": figures.ABSENT, "note": "not recorded in this run"}
    return {"label": label, "first": text(present[0]) if len(present) > 1 else None, "last": text(present[-1]), "note": note}


def _age(run: RunData) -> Tile:
    ages = [value for value in run.figures("age_max") if value is not None]
    limit = bound(run)
    note = f"bound η = {limit}" if limit is not None else "no bound known"
    return {"label": "Greatest age", "first": None, "last": figures.count(max(ages, default=None)), "note": note}


def _rate(run: RunData) -> Tile:
    """Trained tokens a second, over the time that the steps took, waiting included."""
    times = [row.get("time") for row in run.metrics]
    tokens = sum(row.get("tokens") or 0 for row in run.metrics[1:])
    seconds = times[-1] - times[0] if len(times) > 1 and times[0] is not None and times[-1] is not None else 0.0
    value = tokens / seconds if seconds > 0 else None
    return {"label": "Tokens a second", "first": None, "last": figures.count(value), "note": "trained, waiting included"}
