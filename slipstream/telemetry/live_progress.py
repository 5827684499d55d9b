"""The live terminal view of a run: a bar with the time left, and what matters now in three lines. One of `progress`'s faces."""

from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slipstream.core.clock import Clock
from slipstream.core.records import EvaluationResult
from slipstream.telemetry import figures
from slipstream.telemetry.pace import Pace
from slipstream.telemetry.progress import Metrics, evaluation_line

_Figure = tuple[str, str]  # name, value


class RichProgress:
    """Redraws in place; notes and evaluations scroll up above it and stay."""

    def __init__(self, stream: TextIO, clock: Clock, console: Console | None = None) -> None:
        self._console = console or Console(file=stream)
        self._clock = clock
        self._pace = Pace(clock)
        self._title = ""
        self._phase = ""
        self._begun_s = 0.0
        self._done, self._total = 0, 1
        self._counting = "step"
        self._total_steps = 1
        self._loss: float | None = None
        self._metrics: Metrics = {}
        self._rewards: list[float] = []
        self._evaluations: list[EvaluationResult] = []
        self._live = Live(console=self._console, get_renderable=self.view, refresh_per_second=4)

    def start(self, title: str, total_steps: int) -> None:
        self._title = title
        self._total = self._total_steps = total_steps
        self._begun_s = self._clock.now_s()
        self._live.start()

    def phase(self, text: str) -> None:
        self._phase = text

    def warm_start(self, step: int, total: int, loss: float) -> None:
        if self._counting != "warm start":
            self._pace = Pace(self._clock)
        self._counting, self._done, self._total, self._loss = "warm start", step, total, loss
        self._pace.mark(step)

    def step(self, metrics: Metrics) -> None:
        if self._counting != "step":
            self._pace = Pace(self._clock)
        self._counting, self._done, self._total = "step", metrics["step"], self._total_steps
        self._pace.mark(self._done)
        self._metrics = metrics
        if metrics.get("reward_mean") is not None:
            self._rewards.append(metrics["reward_mean"])

    def evaluation(self, result: EvaluationResult) -> None:
        self._evaluations.append(result)
        self._console.print(Text(evaluation_line(result), style="dim"))

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def finish(self) -> None:
        self._phase = ""
        self._live.stop()

    def view(self) -> Group:
        """The whole picture, as it stands."""
        title = Text(self._title, style="bold")
        if self._phase:
            title.append(f"  {self._phase}", style="dim not bold")
        return Group(title, self._bar(), self._figures())

    def _bar(self) -> Table:
        row = Table.grid(padding=(0, 2))
        left_s = self._pace.left_s(self._total)
        times = f"{figures.duration(self._clock.now_s() - self._begun_s)} gone"
        if left_s is not None and self._done < self._total:
            times += f", {figures.duration(left_s)} left"
        bar = ProgressBar(total=self._total, completed=self._done, width=max(10, min(40, self._console.width - 44)))
        row.add_row(bar, Text(f"{self._counting} {self._done}/{self._total}"), Text(times, style="dim"))
        return row

    def _figures(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for label, row in (("learning", self._learning()), ("speed", self._speed()), ("freshness", self._freshness())):
            if row:
                table.add_row(label, _line(row))
        return table

    def _learning(self) -> list[_Figure]:
        metrics = self._metrics
        row: list[_Figure] = []
        if self._loss is not None and not metrics:
            row.append(("warm-start loss", figures.decimal(self._loss, 3)))
        if metrics:
            row.append(("reward", f"{figures.decimal(metrics.get('reward_mean'))} {figures.bars(self._rewards)}"))
        if self._evaluations:
            row.append(("held-out greedy", _first_to_last([result.pass_at_1 for result in self._evaluations])))
        if metrics.get("style_share") is not None:
            row.append(("worked", figures.percent(metrics["style_share"])))
        if metrics.get("completion_tokens_mean") is not None:
            row.append(("tokens a completion", figures.decimal(metrics["completion_tokens_mean"], 1)))
        return row

    def _speed(self) -> list[_Figure]:
        metrics = self._metrics
        if not metrics:
            return []
        return [
            ("samplers", f"{figures.count(metrics.get('sampler_tokens_per_second'))} tok/s"),
            ("learner", f"{figures.count(metrics.get('tokens_per_second'))} tok/s"),
            ("idle samplers", figures.percent(metrics.get("sampler_idle"))),
            ("idle learner", figures.percent(metrics.get("learner_idle"))),
        ]

    def _freshness(self) -> list[_Figure]:
        metrics = self._metrics
        if not metrics:
            return []
        return [
            ("age mean", figures.decimal(metrics.get("age_mean"), 1)),
            ("max", figures.count(metrics.get("age_max"))),
            ("of mixed versions", figures.percent(metrics.get("mixed_version_share"))),
            ("effective samples", figures.percent(metrics.get("ess"))),
        ]


def _line(row: list[_Figure]) -> Text:
    """The figures beside each other; a narrow terminal breaks between them, never inside one."""
    text = Text()
    for place, (name, value) in enumerate(row):
        text.append("   " if place else "")
        text.append(_unbroken(f"{name} "), style="dim")
        text.append(_unbroken(value), style="bold")
    return text


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _first_to_last(values: list[Any]) -> str:
    last = figures.decimal(values[-1], 2)
    return last if len(values) == 1 else f"{figures.decimal(values[0], 2)} → {last}"
