"""Rollouts to read on the page: a few whole steps of them, each completion cut where another policy version wrote it. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from slipstream.telemetry.columns import rounded
from slipstream.telemetry.lanes import clipped
from slipstream.telemetry.run_data import RunData

Decode = Callable[[Sequence[int]], str]

STEPS = 8  # first, last and six between
PER_STEP = 64
LETTERS = 4_000  # of a completion
_SHOWN = ("outcome", "style", "detail", "sampler_id", "answer")


def samples(run: RunData, decode: Decode | None) -> list[dict[str, Any]]:
    """Up to `PER_STEP` rollouts of up to `STEPS` steps, oldest first.

    "segments" is [version, text] in turn, with version -1 for what an environment wrote. `decode` (token ids to text) makes the cuts
    exact; without it they are exact where a token is a letter, and else in proportion ("approximate" is then true).
    """
    steps = run.rollouts.column("step")
    present = np.unique(steps)
    wanted = present[np.unique(np.linspace(0, len(present) - 1, STEPS).round().astype(int))] if len(present) else present
    rows = [row for step in wanted for row in np.flatnonzero(steps == step)[:PER_STEP]]
    columns = {name: run.rollouts.column(name) for name in (*_SHOWN, "step", "reward", "advantage", "prompt_text", "completion_text")}
    tokens = run.rollouts.tokens("completion_ids")
    return [_sample(run, columns, tokens.row(row), int(row), decode) for row in rows]


def _sample(run: RunData, columns: dict[str, np.ndarray], ids: np.ndarray, row: int, decode: Decode | None) -> dict[str, Any]:
    reward, advantage = rounded([columns["reward"][row], columns["advantage"][row]])
    writers = np.where(run.rollouts.tokens("loss_mask").row(row), run.rollouts.versions.row(row), -1)
    segments, approximate = version_segments(columns["completion_text"][row], writers, ids, decode)
    return {
        **{name: columns[name][row] for name in _SHOWN},
        "step": int(columns["step"][row]) + 1,
        "age": int(run.rollouts.ages[row]),
        "prompt": clipped(columns["prompt_text"][row], LETTERS),
        "reward": reward,
        "advantage": advantage,
        "segments": segments,
        "approximate": approximate,
    }


def version_runs(versions: np.ndarray) -> list[int]:
    """Where each stretch of equal version begins."""
    return [0, *(int(place) for place in np.flatnonzero(np.diff(versions)) + 1)]


def version_segments(text: str, versions: np.ndarray, ids: np.ndarray, decode: Decode | None) -> tuple[list[list[Any]], bool]:
    """`text` cut where the version changes, and whether the cuts are only approximate."""
    first = version_runs(versions)
    if decode is not None and len(first) > 1:
        ends = [*(len(decode(ids[:place].tolist())) for place in first[1:]), len(text)]
        exact = True
    else:
        exact = len(text) in (len(versions), len(versions) - 1)  # a letter a token, with or without a stop token
        letters_a_token = 1.0 if exact else len(text) / len(versions)
        ends = [*(round(place * letters_a_token) for place in first[1:]), len(text)]
    segments, begin = [], 0
    for version, end in zip(versions[first], ends, strict=True):
        end = max(begin, min(end, len(text), LETTERS))
        segments.append([int(version), text[begin:end]])
        begin = end
    if len(text) > LETTERS:
        segments[-1][1] += "…"
    return segments, not exact and len(first) > 1
