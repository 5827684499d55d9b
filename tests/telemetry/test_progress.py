"""What a person sees while a run goes on and when it ends, as text."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from slipstream.core.clock import ManualClock
from slipstream.core.records import EvaluationResult
from slipstream.telemetry import figures
from slipstream.telemetry.evaluations import evaluation_from_row, evaluation_row
from slipstream.telemetry.live_progress import RichProgress
from slipstream.telemetry.pace import Pace
from slipstream.telemetry.progress import PlainProgress, Progress, QuietProgress, make_progress
from slipstream.telemetry.summary import before_after, summary_table

METRICS = {
    "step": 1,
    "reward_mean": 0.25,
    "style_share": 0.5,
    "completion_tokens_mean": 20.0,
    "sampler_tokens_per_second": 7000.0,
    "tokens_per_second": 9000.0,
    "tokens": 512,
    "age_mean": 0.5,
    "age_max": 1,
    "mixed_version_share": 0.125,
    "ess": 0.99,
}
SAMPLE = {"prompt": "1+1=", "completion": "3.", "answer": "2", "reward": 0.0}
BEFORE = EvaluationResult(step=0, task="sums", n=64, pass_at_1=0.25, ci=(0.2, 0.3), extra={"style_share": 0.5}, samples=(SAMPLE,))
AFTER = EvaluationResult(step=4, task="sums", n=64, pass_at_1=0.75, ci=(0.7, 0.8), samples=({**SAMPLE, "completion": "2.", "reward": 1.0},))


def drive(progress: Progress, clock: ManualClock) -> None:
    """A run of four steps, two seconds each, with a warm start."""
    progress.start("quickstart", 4)
    progress.phase("warm start")
    for step in range(1, 11):
        clock.advance(0.1)
        progress.warm_start(step, 10, 1.0 / step)
    progress.evaluation(BEFORE)
    for step in range(1, 5):
        clock.advance(2.0)
        progress.step({**METRICS, "step": step})
    progress.note("checkpoint written")
    progress.evaluation(AFTER)
    progress.finish()
    progress.finish()


def test_plain_lines_are_few_and_whole() -> None:
    stream, clock = io.StringIO(), ManualClock()
    drive(PlainProgress(stream, clock), clock)
    assert stream.getvalue().splitlines() == [
        "quickstart",
        "warm start",
        "warm start 1/10  loss 1.000",
        "warm start 10/10  loss 0.100",
        "held-out after step 0: sums greedy 0.250 (95 % 0.20 to 0.30, n = 64), worked 50 %",
        "step 1/4  reward 0.25  worked 50 %  20.0 tok/completion  sampler 7,000 tok/s  learner 9,000 tok/s  age 0.5 mean 1 max",
        "step 4/4  reward 0.25  worked 50 %  20.0 tok/completion  sampler 7,000 tok/s  learner 9,000 tok/s  age 0.5 mean 1 max  0:00 left",
        "checkpoint written",
        "held-out after step 4: sums greedy 0.750 (95 % 0.70 to 0.80, n = 64)",
    ]


@pytest.mark.parametrize("width", [60, 120])
def test_the_live_view_shows_the_figures_at_any_width(width: int) -> None:
    clock = ManualClock()
    console = Console(file=io.StringIO(), force_terminal=True, width=width, record=True)
    progress = RichProgress(io.StringIO(), clock, console=console)
    progress.start("quickstart", 4)
    clock.advance(2.0)
    progress.step({**METRICS, "step": 1})
    clock.advance(2.0)
    progress.step({**METRICS, "step": 2})
    progress.evaluation(BEFORE)
    progress.finish()
    text = console.export_text().replace("\N{NO-BREAK SPACE}", " ")
    for words in ("step 2/4", "0:04 gone, 0:04 left", "reward 0.25", "worked 50 %", "samplers 7,000 tok/s", "age mean 0.5", "max 1"):
        assert words in text
    assert all(len(line) <= width for line in text.splitlines())


def test_the_live_view_takes_a_whole_run_and_a_row_without_figures() -> None:
    clock = ManualClock()
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    progress = RichProgress(io.StringIO(), clock, console=console)
    drive(progress, clock)
    bare = RichProgress(io.StringIO(), clock, console=console)
    bare.start("quickstart", 4)
    bare.step({"step": 1})
    bare.finish()


def test_quiet_says_nothing_and_a_pipe_gets_plain_lines() -> None:
    stream = io.StringIO()
    quiet = make_progress(stream, quiet=True)
    drive(quiet, ManualClock())
    assert isinstance(quiet, QuietProgress)
    assert stream.getvalue() == ""
    assert isinstance(make_progress(stream, quiet=False), PlainProgress)


def test_time_left_of_a_resumed_run_counts_only_its_own_steps() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    assert pace.left_s(100) is None
    pace.mark(90)
    clock.advance(3.0)
    pace.mark(91)
    assert pace.left_s(100) == 27.0


def render(table) -> str:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(table)
    return console.export_text()


def test_the_summary_sets_first_beside_last() -> None:
    rows = [{**METRICS, "time": 10.0}, {**METRICS, "step": 2, "reward_mean": 0.875, "age_max": 2, "time": 10.0 + METRICS["tokens"] / 256}]
    text = render(summary_table(rows, [BEFORE, AFTER], wall_s=14.0))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "held-out greedy, n = 64 0.250 (0.20 to 0.30) 0.750 (0.70 to 0.80)" in lines
    assert "sampled reward 0.250 0.875" in lines
    assert "greatest age of the run 2" in lines
    assert "trained tokens/s after the first step 256" in lines


def test_the_summary_of_a_run_that_never_stepped() -> None:
    assert "steps" in render(summary_table([], []))


def test_before_and_after_show_the_same_prompt_twice() -> None:
    text = render(before_after(BEFORE, AFTER))
    assert "✗ wrong" in text
    assert "✓ right" in text
    assert "no prompt in common" in render(before_after(BEFORE, EvaluationResult(step=1, task="sums", n=1, pass_at_1=0.0, ci=(0.0, 1.0))))


def test_markup_in_a_completion_is_shown_as_it_is() -> None:
    odd = EvaluationResult(step=0, task="sums", n=1, pass_at_1=0.0, ci=(0.0, 1.0), samples=({**SAMPLE, "completion": "[red]x[/nope]"},))
    assert "[red]x[/nope]" in render(before_after(odd, odd))


def test_an_evaluation_survives_its_row(tmp_path: Path) -> None:
    assert evaluation_from_row(evaluation_row(BEFORE, 12.5)) == BEFORE
    clash = EvaluationResult(step=0, task="sums", n=1, pass_at_1=0.0, ci=(0.0, 1.0), extra={"time": 1.0})
    with pytest.raises(ValueError, match="reserved names: time"):
        evaluation_row(clash, 0.0)


def test_numbers_read_well() -> None:
    assert [figures.duration(value) for value in (None, 0.4, 75.2, 3675)] == ["–", "0:00", "1:15", "1:01:15"]  # noqa: RUF001
    assert figures.bars([0.0, 0.5, 1.0]) == "▁▅█"
    assert figures.bars([]) == ""
    assert figures.bars([1.0] * 30) == "▁" * 12


def test_of_a_long_prompt_the_end_is_shown() -> None:
    sample = {"prompt": "system " * 40 + "\nWhat is 3+4?\n3+4=", "completion": "7", "answer": "7", "reward": 1.0}
    result = EvaluationResult(step=0, task="sums", n=1, pass_at_1=1.0, ci=(0.2, 1.0), samples=(sample,))
    text = " ".join(render(before_after(result, result)).split())
    assert "system ⏎ What is 3+4? ⏎ 3+4=" in text
    assert text.count("system") < 20
