"""What is printed when a run ends: how it began beside how it ended, and answers from before and after to read. Pure."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from slipstream.core.records import EvaluationResult
from slipstream.telemetry import figures
from slipstream.telemetry.jsonl import Row

PROMPT_LETTERS = 90  # of a prompt shown in the table of answers
RIGHT_REWARD = 0.5  # rewards above it read as "right"


def summary_table(metrics: Sequence[Row], evaluations: Sequence[EvaluationResult], wall_s: float | None = None) -> Table:
    """First and last step side by side, then figures of the whole run. Rows without any figure are left out."""
    table = Table(title="From first to last step", title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD)
    table.add_column("figure")
    table.add_column("first", justify="right")
    table.add_column("last", justify="right")
    rows = [_held_out(evaluations), *_steps(metrics)] if metrics else [_held_out(evaluations)]
    for name, first, last in rows:
        if (first, last) != (figures.ABSENT, figures.ABSENT):
            table.add_row(name, first, last)
    table.add_section()
    for name, value in _whole_run(metrics, wall_s):
        table.add_row(name, "", value)
    return table


def before_after(first: EvaluationResult, last: EvaluationResult, limit: int = 4) -> Table:
    """The same held-out prompts answered before and after training, those that changed from wrong to right first."""
    table = Table(title="Before and after", title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD)
    table.add_column("prompt")
    table.add_column("answer")
    table.add_column(f"step {first.step}", ratio=1)
    table.add_column(f"step {last.step}", ratio=1)
    after = {sample["prompt"]: sample for sample in last.samples}
    pairs = [(sample, after[sample["prompt"]]) for sample in first.samples if sample["prompt"] in after]
    pairs.sort(key=lambda pair: _right(pair[0]) - _right(pair[1]))
    for old, new in pairs[:limit]:
        table.add_row(Text(_end_of(str(old["prompt"]))), Text(str(old["answer"])), _judged(old), _judged(new))
    if not pairs:
        table.add_row("no prompt in common", "", "", "")
    return table


def _end_of(prompt: str) -> str:
    """The end of a long prompt, on one line: what was asked stands there, the system message before it."""
    line = prompt.strip().replace("\n", " ⏎ ")
    return line if len(line) <= PROMPT_LETTERS else f"…{line[-PROMPT_LETTERS:]}"


def _held_out(evaluations: Sequence[EvaluationResult]) -> tuple[str, str, str]:
    if not evaluations:
        return ("held-out greedy", figures.ABSENT, figures.ABSENT)
    first, last = evaluations[0], evaluations[-1]
    texts = [f"{figures.decimal(result.pass_at_1, 3)} ({figures.interval(*result.ci)})" for result in (first, last)]
    return (f"held-out greedy, n = {last.n}", texts[0], texts[1] if last is not first else figures.ABSENT)


def _steps(metrics: Sequence[Row]) -> list[tuple[str, str, str]]:
    first, last = metrics[0], metrics[-1]

    def both(name: str, text: Any) -> tuple[str, str, str]:
        return (name, text(first), text(last))

    return [
        both("sampled reward", lambda row: figures.decimal(row.get("reward_mean"), 3)),
        both("worked share", lambda row: figures.percent(row.get("style_share"))),
        both("tokens a completion", lambda row: figures.decimal(row.get("completion_tokens_mean"), 1)),
        both("age, mean and max", lambda row: f"{figures.decimal(row.get('age_mean'), 2)} and {figures.count(row.get('age_max'))}"),
        both("rollouts of several versions", lambda row: figures.percent(row.get("mixed_version_share"))),
    ]


def _whole_run(metrics: Sequence[Row], wall_s: float | None) -> list[tuple[str, str]]:
    rows = [("steps", figures.count(metrics[-1]["step"] if metrics else 0))]
    if metrics:
        ages = [row["age_max"] for row in metrics if row.get("age_max") is not None]
        mixed = [row["mixed_version_share"] for row in metrics if row.get("mixed_version_share") is not None]
        rows.append(("greatest age of the run", figures.count(max(ages, default=None))))
        rows.append(("rollouts of several versions, whole run", figures.percent(sum(mixed) / len(mixed) if mixed else None)))
    after_first_s = metrics[-1].get("time", 0.0) - metrics[0].get("time", 0.0) if metrics else 0.0
    if after_first_s > 0:  # the first step waits for programs to be compiled
        tokens = sum(row.get("tokens") or 0 for row in metrics[1:])
        rows.append(("trained tokens/s after the first step", figures.count(tokens / after_first_s)))
    if wall_s:
        rows.append(("wall seconds", figures.count(wall_s)))
    return rows


def _right(sample: dict[str, Any]) -> bool:
    return (sample.get("reward") or 0.0) > RIGHT_REWARD


def _judged(sample: dict[str, Any]) -> Text:
    mark, style = ("✓ right", "green") if _right(sample) else ("✗ wrong", "red")
    return Text.assemble((mark, style), "\n", str(sample["completion"]))
