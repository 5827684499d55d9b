"""Tokens a second over time: of each sampler from its rollouts, of the learner from its steps. Pure."""

from typing import Any

import numpy as np

from slipstream.telemetry.columns import rounded
from slipstream.telemetry.run_data import RunData

BINS = 240


def throughput(run: RunData) -> dict[str, Any]:
    """Rates in equal bins over the whole run: {"edges_s", "samplers": {id: tokens/s}, "learner": tokens/s, "warm_start_s": its
    first and last moment or None}. A rollout's tokens are spread evenly over its time, a step's over the time its arithmetic took.
    """
    duration_s = run.duration_s()
    if not duration_s or not (len(run.rollouts) or run.metrics):
        return {"edges_s": [], "samplers": {}, "learner": [], "warm_start_s": None}
    edges = np.linspace(0.0, duration_s, BINS + 1)
    warm_s = [row["time"] for row in run.events if row.get("kind") == "warm_start" and isinstance(row.get("time"), int | float)]
    return {
        "edges_s": rounded(edges),
        "samplers": _samplers(run, edges),
        "learner": rounded(_learner(run, edges), 4),
        "warm_start_s": rounded([min(warm_s), max(warm_s)]) if warm_s else None,
    }


def _samplers(run: RunData, edges: np.ndarray) -> dict[str, list[float]]:
    rollouts = run.rollouts
    names, starts, ends = rollouts.column("sampler_id"), rollouts.column("started_s"), rollouts.column("finished_s")
    counts = rollouts.versions.counts
    bands = {}
    for name in sorted(set(names)):
        own = names == name
        bands[name] = rounded(binned_rate(starts[own], ends[own], counts[own], edges), 4)
    return bands


def _learner(run: RunData, edges: np.ndarray) -> np.ndarray:
    rows = [row for row in run.metrics if row.get("tokens") and isinstance(row.get("time"), int | float)]
    ends = np.array([row["time"] for row in rows], dtype=float)
    seconds = [float((row.get("phase_seconds") or {}).get("step") or 0.0) for row in rows]
    return binned_rate(ends - np.array(seconds, dtype=float), ends, np.array([row["tokens"] for row in rows], dtype=float), edges)


def binned_rate(starts: np.ndarray, ends: np.ndarray, amounts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Amount a second in each bin, where each amount flows evenly from its start to its end.

    What has flowed by time t is a sum of ramps, so its slope changes by +rate at each start and -rate at each end; the value at
    each edge follows from two sorted cumulative sums: no loop over bins.
    """
    lengths = np.maximum(ends - starts, 1e-9)
    rates = amounts / lengths
    risen = _ramps_at(edges, starts, rates) - _ramps_at(edges, starts + lengths, rates)
    return np.maximum(0.0, np.diff(risen) / np.diff(edges))


def _ramps_at(times: np.ndarray, begins: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Sum of rate * (time - begin) over the ramps that have begun by each time."""
    order = np.argsort(begins, kind="stable")
    begun = np.searchsorted(begins[order], times, side="right")
    slope = np.concatenate([[0.0], np.cumsum(rates[order])])
    shift = np.concatenate([[0.0], np.cumsum(rates[order] * begins[order])])
    return slope[begun] * times - shift[begun]
