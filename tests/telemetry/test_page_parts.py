"""The numbers behind the page against slow and obvious ways to get them."""

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.records import Fate
from slipstream.telemetry.columns import packed, rounded
from slipstream.telemetry.lanes import chosen, joined, lanes
from slipstream.telemetry.page_data import age_histogram, page_data
from slipstream.telemetry.reading import samples, version_segments
from slipstream.telemetry.rollouts import write_rollouts
from slipstream.telemetry.run_data import RunData, load_run
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.throughput import binned_rate
from tests.ledger.rollouts import make_rollout
from tests.loop.tickets import ticket
from tests.telemetry.synthetic import Shape, make_run

RAMP = st.tuples(st.floats(0, 50), st.floats(0.01, 30), st.floats(0, 100))  # start, length, amount


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return load_run(make_run(tmp_path_factory.mktemp("parts") / "run", Shape(steps=10, rollouts_per_step=32, slots=4)).path)


def unpack(column: dict[str, str]) -> np.ndarray:
    kinds = {"u1": "u1", "u4": "<u4", "i4": "<i4", "f4": "<f4"}
    return np.frombuffer(base64.b64decode(column["base64"]), kinds[column["kind"]])


@given(st.lists(RAMP, max_size=8))
def test_binned_rate_is_the_overlap_of_every_ramp_with_every_bin(ramps: list[tuple[float, float, float]]) -> None:
    edges = np.linspace(0.0, 100.0, 21)
    expected = np.zeros(20)
    for start, length, amount in ramps:
        for place in range(20):
            overlap = max(0.0, min(start + length, edges[place + 1]) - max(start, edges[place]))
            expected[place] += amount * overlap / length / 5.0
    starts, lengths, amounts = (np.array([ramp[k] for ramp in ramps], dtype=float) for k in range(3))
    np.testing.assert_allclose(binned_rate(starts, starts + lengths, amounts, edges), expected, rtol=1e-6, atol=1e-6)


def test_age_histogram_counts_every_trained_token(run: RunData) -> None:
    counts: dict[int, int] = {}
    steps = run.rollouts.column("step")
    for row in range(len(run.rollouts)):
        for version in run.rollouts.versions.row(row).tolist():
            lag = int(steps[row]) - version
            counts[lag] = counts.get(lag, 0) + 1
    histogram = age_histogram(run)
    assert dict(zip(histogram["lag"], histogram["tokens"], strict=True)) == counts


def test_boxes_say_what_the_rollouts_say(run: RunData) -> None:
    data = lanes(run)
    rollouts = run.rollouts
    counts = unpack(data["segment_count"])
    versions, tokens = unpack(data["segment_version"]), unpack(data["segment_tokens"])
    starts = unpack(data["start"]) * (data["duration_s"] / data["ticks"])
    index, place = unpack(data["texts"]["index"]), 0
    by_start = {
        (name, slot, round(start, 4)): row
        for row, (name, slot, start) in enumerate(zip(*(rollouts.column(c) for c in ("sampler_id", "slot", "started_s")), strict=True))
    }
    for row, (sampler, slot) in enumerate(data["rows"]):
        for box in range(data["row_bounds"][row], data["row_bounds"][row + 1]):
            rollout = by_start[data["samplers"][sampler], slot, round(float(starts[box]), 4)]
            own = np.repeat(versions[place : place + counts[box]], tokens[place : place + counts[box]])
            assert own.tolist() == rollouts.versions.row(rollout).tolist()
            assert unpack(data["age"])[box] == rollouts.ages[rollout]
            assert data["fates"][unpack(data["fate"])[box]] == rollouts.column("fate")[rollout]
            assert data["texts"]["completions"][index[box]] == rollouts.texts("completion_text")[rollout]
            place += counts[box]
    assert place == len(versions)
    assert any(counts > 1)


def test_boxes_of_a_row_follow_each_other(run: RunData) -> None:
    data = lanes(run)
    starts, ends = unpack(data["start"]), unpack(data["end"])
    for first, last in zip(data["row_bounds"], data["row_bounds"][1:], strict=False):
        assert all(ends[first : last - 1] <= starts[first + 1 : last])


@given(steps=st.integers(1, 60), each=st.integers(1, 40), budget=st.integers(2, 600))
def test_a_choice_of_rollouts_keeps_the_budget_and_the_middle(steps: int, each: int, budget: int) -> None:
    column = np.repeat(np.arange(steps), each)
    kept, note = chosen(column, budget, "boxes")
    assert len(kept) == len(set(kept.tolist())) <= budget
    assert kept.tolist() == chosen(column, budget, "boxes")[0].tolist()
    if steps * each <= budget:
        assert (len(kept), note) == (steps * each, "")
    else:
        assert f"{len(kept):,} of {steps * each:,}" in note
        if each * 3 <= budget // 2:
            middle = column[len(column) // 2]
            assert np.isin(np.flatnonzero(column == middle), kept).all()


def test_spans_that_touch_become_one() -> None:
    spans = [{"role": "s", "phase": "wait", "start": k * 0.1, "end": k * 0.1 + 0.0995} for k in range(5)]
    spans += [{"role": "s", "phase": "load", "start": 0.5, "end": 0.6}, {"role": "s", "phase": "wait", "start": 0.9, "end": 1.0}]
    assert [(span["phase"], round(span["start"], 4), round(span["end"], 4)) for span in joined(spans)] == [
        ("wait", 0.0, 0.4995),
        ("load", 0.5, 0.6),
        ("wait", 0.9, 1.0),
    ]
    assert spans[0]["end"] == 0.0995


def test_text_is_cut_at_the_version_by_letter_by_decoder_or_in_proportion() -> None:
    versions, ids = np.array([3, 3, 3, 4, 4]), np.arange(5)
    assert version_segments("abcd", versions, ids, None) == ([[3, "abc"], [4, "d"]], False)
    assert version_segments("aabbcd", versions, ids, lambda part: "aabbcd"[: 2 * len(part)]) == ([[3, "aabbcd"], [4, ""]], False)
    assert version_segments("0123456789", versions, ids, None) == ([[3, "012345"], [4, "6789"]], True)
    assert version_segments("0123456789", np.array([3, 3]), ids[:2], None) == ([[3, "0123456789"]], False)


def test_what_an_environment_wrote_is_told_apart(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "")
    mask = np.array([True, True, False, False, True])
    spoken = replace(make_rollout(ticket(0), 0, [3, 3, 3, 3, 4]), loss_mask=mask, completion_text="ab=7#")
    write_rollouts(run.rollouts, 4, [spoken], Fate.TRAINED, [0.5])
    (shown,) = samples(load_run(run.path), lambda ids: "ab=7#"[: len(ids)])
    assert shown["segments"] == [[3, "ab"], [-1, "=7"], [4, "#"]]
    assert shown["age"] == 1


def test_outcomes_are_counted_by_step_and_scores_by_k(run: RunData) -> None:
    data = page_data(run, None, None)
    assert set(data["outcomes"]) == {"value", "wrong", "timeout", "infrastructure"} | ({"unparseable"} & set(data["outcomes"]))
    assert data["outcomes"]["timeout"] == [step % 3 for step in range(10)]
    judged = np.sum([data["outcomes"].get(kind, [0] * 10) for kind in ("value", "wrong", "unparseable")], axis=0)
    assert judged.tolist() == [32] * 10
    assert list(data["evaluations"]["pass_at_k"]) == [4]
    assert len(data["evaluations"]["pass_at_k"][4]) == len(data["evaluations"]["step"])


def test_columns_refuse_what_does_not_fit() -> None:
    assert unpack(packed(np.array([1, 2**31]), "u4")).tolist() == [1, 2**31]
    assert rounded([1.23456789, None, float("nan"), 0], 3) == [1.23, None, None, 0]
    with pytest.raises(ValueError, match="do not fit u2"):
        packed(np.array([70_000]), "u2")


def test_a_run_without_rollouts_is_read_as_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Shape(steps=2, rollouts_per_step=8, slots=2))
    for path in run.rollouts.iterdir():
        path.unlink()
    data = load_run(run.path)
    assert len(data.rollouts) == 0
    assert lanes(data)["rollouts"] == 0
    assert age_histogram(data) == {"lag": [], "tokens": [], "bound": 2}
