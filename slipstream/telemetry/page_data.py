"""The data inside a report page, as one JSON-ready dict: what the page's scripts draw. Pure; the drawing is in web/."""

from typing import Any

import numpy as np

from slipstream.core.records import OutcomeKind
from slipstream.telemetry import headline
from slipstream.telemetry.columns import rounded
from slipstream.telemetry.evaluations import sampled_ks
from slipstream.telemetry.lanes import lanes
from slipstream.telemetry.reading import Decode, samples
from slipstream.telemetry.run_data import RunData
from slipstream.telemetry.throughput import throughput

_CURVES = (
    *("step", "time", "reward_mean", "loss", "tokens", "tokens_per_second", "sampler_tokens_per_second"),
    *("style_share", "completion_tokens_mean", "format_ok", "truncated_share", "zero_variance_groups"),
    *("entropy", "kl", "grad_norm", "update_norm", "lr", "ratio_mean", "ratio_std", "ess", "clip_fraction", "mismatch_abs_max"),
    *("age_mean", "age_max", "lag_mean", "mixed_version_share", "sampler_idle", "learner_idle"),
    *("turns_mean", "call_share", "failed_call_share", "environment_token_share", "refilled_groups"),
    *("side_turns_mean", "reused_token_share"),
)
_PHASES = ("wait", "pack", "step", "audit", "publish", "checkpoint")


def page_data(run: RunData, compare: RunData | None, decode: Decode | None) -> dict[str, Any]:
    """Everything on the page; `compare` adds what the side-by-side part needs of a second run."""
    return {
        **_overview(run),
        "warm_start": _warm_start(run),
        "phases": _phases(run),
        "outcomes": _outcomes(run),
        "samplers": _samplers(run),
        "lanes": lanes(run),
        "samples": samples(run, decode),
        "config": run.config_text,
        "compare": _overview(compare) if compare is not None else None,
    }


def _overview(run: RunData) -> dict[str, Any]:
    """What two runs are compared by."""
    return {
        "title": headline.title(run),
        "tiles": headline.tiles(run),
        "metrics": {key: rounded(run.figures(key), 6) for key in _CURVES},
        "evaluations": _evaluations(run),
        "throughput": throughput(run),
        "ages": age_histogram(run),
    }


def _evaluations(run: RunData) -> dict[str, Any]:
    """Each list has an entry for each evaluation; `pass_at_k` has a list for each k above 1."""
    rows = [row for row in run.evaluations if row.get("pass@1") is not None]
    bounds = [row.get("ci") or [None, None] for row in rows]
    return {
        "step": [row["step"] for row in rows],
        "time": rounded(row.get("time") for row in rows),
        "pass_at_1": rounded(row["pass@1"] for row in rows),
        "low": rounded(low for low, _ in bounds),
        "high": rounded(high for _, high in bounds),
        "pass_at_k": {k: rounded(row.get(f"pass@{k}") for row in rows) for k in sorted({k for row in rows for k in sampled_ks(row)})},
    }


def _warm_start(run: RunData) -> dict[str, list[Any]]:
    rows = [row for row in run.events if row.get("kind") == "warm_start"]
    return {"step": [row.get("step") for row in rows], "loss": rounded(row.get("loss") for row in rows)}


def _phases(run: RunData) -> dict[str, list[Any]]:
    """Seconds of each phase, a list a phase."""
    rows = [row.get("phase_seconds") or {} for row in run.metrics]
    names = [*_PHASES, *sorted({name for row in rows for name in row} - set(_PHASES))]
    return {name: rounded([row.get(name, 0.0) for row in rows], 4) for name in names if any(row.get(name) for row in rows)}


def _outcomes(run: RunData) -> dict[str, list[int]]:
    """Samples a step by kind of outcome, for the kinds that there were."""
    rows = [row.get("outcomes") or {} for row in run.metrics]
    kinds = [kind.value for kind in OutcomeKind]
    return {kind: [row.get(kind, 0) for row in rows] for kind in kinds if any(row.get(kind) for row in rows)}


def _samplers(run: RunData) -> dict[str, Any]:
    """Of runs of several processes: each sampler's importance ratios at equal weights over time, and whoever was put in quarantine."""
    rows = [row for row in run.events if row.get("kind") == "ratio"]
    names = sorted({str(row.get("worker")) for row in rows})
    own = {name: [row for row in rows if row.get("worker") == name] for name in names}
    return {
        "ratios": {
            name: {"time": rounded(row.get("time") for row in found), "ratio": rounded(row.get("ratio") for row in found)}
            for name, found in own.items()
        },
        "quarantined": [
            {key: row.get(key) for key in ("time", "worker", "version", "cause")} for row in run.events if row.get("kind") == "quarantined"
        ],
    }


def age_histogram(run: RunData) -> dict[str, Any]:
    """Trained tokens by lag (version that trained on the token minus version that drew it), and the bound."""
    rollouts = run.rollouts
    counts = rollouts.versions.counts
    mask = np.repeat(rollouts.trained, counts) & rollouts.tokens("loss_mask").flat
    lags = np.repeat(rollouts.column("step"), counts)[mask] - rollouts.versions.flat[mask]
    values, tokens = np.unique(lags, return_counts=True)
    return {"lag": values.tolist(), "tokens": tokens.tolist(), "bound": headline.bound(run)}
