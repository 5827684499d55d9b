"""Who worked on what, when, with which weights: the boxes and spans of the page's lanes, compact enough for 10^5 rollouts. Pure."""

from typing import Any

import numpy as np

from slipstream.core.records import Fate
from slipstream.telemetry.columns import packed, rounded
from slipstream.telemetry.jsonl import Row
from slipstream.telemetry.run_data import RunData, TokenColumn

BOX_BUDGET = 200_000  # boxes drawn at most
TEXT_BUDGET = 20_000  # rollouts whose texts are in the page at most
PROMPT_LETTERS, COMPLETION_LETTERS = 160, 320  # of each text shown on hover
_TICKS = 2**31  # times are integers of (duration / 2^31) seconds: exact to a microsecond over half an hour
_JOIN_S = 0.002
_PHASES = ("wait", "pack", "step", "audit", "publish", "checkpoint", "evaluate", "load", "judge")
_FATES = tuple(fate.value for fate in Fate)
_MARKS = ("publish", "load", "resume")


def lanes(run: RunData) -> dict[str, Any]:
    """All that the lanes need; {"rollouts": 0} without rollouts. "notes" says what was left out, in words."""
    steps = run.rollouts.column("step")
    drawn, box_note = chosen(steps, BOX_BUDGET, "boxes")
    texted, text_note = chosen(steps, TEXT_BUDGET, "texts on hover")
    texted = texted[np.isin(texted, drawn, assume_unique=True)]
    duration_s = max(run.duration_s(), 1e-9)
    return {
        "duration_s": duration_s,
        "ticks": _TICKS,
        "rollouts": len(drawn),
        "window_s": opening_window(run, duration_s),
        "notes": [note for note in (box_note, text_note) if note],
        "spans": _spans(run.spans()),
        "marks": [[row.get("role"), row["kind"], row.get("time"), row.get("version")] for row in run.events if row.get("kind") in _MARKS],
        **(_boxes(run, drawn, texted, duration_s) if len(drawn) else {"samplers": [], "texts": {}}),
    }


def chosen(steps: np.ndarray, budget: int, what: str) -> tuple[np.ndarray, str]:
    """Which rollouts to keep within `budget`, and a sentence about it ("" when all are kept).

    Half the budget goes to whole steps around the middle of the run, so that the opening view lacks nothing; the rest takes
    every k-th of the others. The same run always gives the same choice.
    """
    total = len(steps)
    if total <= budget:
        return np.arange(total), ""
    distance = np.abs(steps - steps[total // 2])
    whole = distance < np.sort(distance)[budget // 2]
    others = np.flatnonzero(~whole)
    stride = -(-len(others) // (budget - np.count_nonzero(whole)))
    kept = np.sort(np.concatenate([np.flatnonzero(whole), others[::stride]]))
    inside = steps[whole]
    part = f"all of steps {inside.min() + 1} to {inside.max() + 1} and " if len(inside) else ""
    return kept, f"{what}: {len(kept):,} of {total:,} rollouts are in this file, {part}one in {stride} of the others"


def opening_window(run: RunData, duration_s: float) -> list[float]:
    """A stretch of about three learner steps in the middle of the run, where the page opens its lanes."""
    times = [row["time"] for row in run.metrics if isinstance(row.get("time"), int | float)]
    if len(times) < 8:
        return [0.0, duration_s]
    centre = times[len(times) // 2]
    half = 1.5 * float(np.median(np.diff(times)))
    return rounded([max(0.0, centre - half), min(duration_s, centre + half)], 7)


def _boxes(run: RunData, drawn: np.ndarray, texted: np.ndarray, duration_s: float) -> dict[str, Any]:
    """Boxes ordered by sampler, slot and start, so that each row of the picture is one stretch of every array."""
    rollouts = run.rollouts
    names, slots, starts = rollouts.column("sampler_id"), rollouts.column("slot"), rollouts.column("started_s")
    samplers = sorted(set(names))
    sampler = np.searchsorted(np.array(samplers, dtype=object), names)
    order = drawn[np.lexsort((starts[drawn], slots[drawn], sampler[drawn]))]
    changes = np.flatnonzero(np.diff(sampler[order]) | np.diff(slots[order])) + 1
    bounds = np.concatenate([[0], changes, [len(order)]])
    rows = [[int(sampler[order[first]]), int(slots[order[first]])] for first in bounds[:-1]]
    segments, segment_counts = _segments(rollouts.versions, order)
    scale = _TICKS / duration_s
    return {
        "samplers": samplers,
        "rows": rows,  # [sampler index, slot] of each row
        "row_bounds": [int(bound) for bound in bounds],
        "start": packed(np.clip(starts[order] * scale, 0, _TICKS), "u4"),
        "end": packed(np.clip(rollouts.column("finished_s")[order] * scale, 0, _TICKS), "u4"),
        "step": packed(rollouts.column("step")[order], "i4"),
        "age": packed(rollouts.ages[order], "i4"),
        "fates": list(_FATES),
        "fate": packed(np.array([_FATES.index(fate) for fate in rollouts.column("fate")[order]]), "u1"),
        "reward": packed(rollouts.column("reward")[order], "f4"),
        "segment_count": packed(segment_counts, "u4"),
        "segment_version": packed(segments[0], "i4"),
        "segment_tokens": packed(segments[1], "u4"),
        "texts": _texts(run, order, texted),
    }


def _segments(versions: TokenColumn, order: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Stretches of equal version in each rollout: ((version, tokens), stretches of each rollout), rollouts in `order`."""
    flat, offsets = versions.flat, versions.offsets
    begins = np.ones(len(flat), bool)
    begins[1:] = flat[1:] != flat[:-1]
    begins[offsets[:-1]] = True
    first = np.flatnonzero(begins)
    lengths = np.diff(np.concatenate([first, [len(flat)]]))
    bounds = np.searchsorted(first, offsets)
    counts = np.diff(bounds)[order]
    ends = np.cumsum(counts)
    places = np.arange(counts.sum()) - np.repeat(ends - counts, counts) + np.repeat(bounds[:-1][order], counts)
    return (flat[first[places]], lengths[places]), counts


def _texts(run: RunData, order: np.ndarray, texted: np.ndarray) -> dict[str, Any]:
    """Texts for hovering: "index" is a box's place in "completions" or -1; prompts are stored once each."""
    prompts, completions = run.rollouts.texts("prompt_text"), run.rollouts.texts("completion_text")
    has_text = np.isin(order, texted)
    known: dict[str, int] = {}
    prompt_index = [known.setdefault(clipped(prompts[row], PROMPT_LETTERS), len(known)) for row in order[has_text]]
    return {
        "index": packed(np.where(has_text, np.cumsum(has_text) - 1, -1), "i4"),
        "prompts": list(known),
        "prompt": prompt_index,
        "completions": [clipped(completions[row], COMPLETION_LETTERS) for row in order[has_text]],
    }


def clipped(text: str, letters: int) -> str:
    """`text`, or its first `letters` with an ellipsis."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _spans(rows: list[Row]) -> dict[str, Any]:
    """Spans by column. A sampler's own generate spans are left out: its boxes show them better."""
    timed = [row for row in rows if isinstance(row.get("start"), int | float) and isinstance(row.get("end"), int | float)]
    kept = joined([row for row in timed if row.get("phase") in _PHASES])
    roles = sorted({row["role"] for row in kept})
    return {
        "roles": roles,
        "phases": list(_PHASES),
        "role": [roles.index(row["role"]) for row in kept],
        "phase": [_PHASES.index(row["phase"]) for row in kept],
        "start": rounded([row["start"] for row in kept], 8),
        "end": rounded([row["end"] for row in kept], 8),
        "step": [row.get("step", row.get("version")) for row in kept],
    }


def joined(spans: list[Row]) -> list[Row]:
    """Spans of one role, phase and step that follow each other within `_JOIN_S` made one: an idle sampler asks often."""
    whole: list[Row] = []
    latest: dict[str, Row] = {}
    for span in spans:
        before = latest.get(span["role"])
        same = before is not None and (before["phase"], before.get("step")) == (span["phase"], span.get("step"))
        if before is not None and same and 0 <= span["start"] - before["end"] <= _JOIN_S:
            before["end"] = span["end"]
        else:
            latest[span["role"]] = dict(span)
            whole.append(latest[span["role"]])
    return whole
