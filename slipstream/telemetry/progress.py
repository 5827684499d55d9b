"""What `slipstream train` shows while it runs, on standard error: a live view on a terminal, plain lines elsewhere, or nothing.

An actor's face, not its logic: it is told what happened and keeps only what it shows.
"""

from typing import Any, Protocol, TextIO

from slipstream.core.clock import Clock, SystemClock
from slipstream.core.records import EvaluationResult, OutcomeKind
from slipstream.telemetry import figures
from slipstream.telemetry.pace import Pace

Metrics = dict[str, Any]


class Progress(Protocol):
    """Where a run says how it is getting on."""

    def start(self, title: str, total_steps: int) -> None:
        """The run begins; `total_steps` learner steps are planned."""
        ...

    def phase(self, text: str) -> None:
        """What is being done now, in a few words."""
        ...

    def warm_start(self, step: int, total: int, loss: float) -> None:
        """One supervised step before reinforcement learning is done."""
        ...

    def step(self, metrics: Metrics) -> None:
        """One learner step is done; `metrics` is its row of metrics.jsonl."""
        ...

    def evaluation(self, result: EvaluationResult) -> None:
        """A held-out evaluation is done."""
        ...

    def note(self, text: str) -> None:
        """Something a person should read; it stays on the screen."""
        ...

    def finish(self) -> None:
        """Nothing more will come. May be called again."""
        ...


class QuietProgress:
    """Shows nothing."""

    def start(self, title: str, total_steps: int) -> None:
        pass

    def phase(self, text: str) -> None:
        pass

    def warm_start(self, step: int, total: int, loss: float) -> None:
        pass

    def step(self, metrics: Metrics) -> None:
        pass

    def evaluation(self, result: EvaluationResult) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass


class PlainProgress:
    """One line now and then: for logs, pipes and CI. The first and the last step are always shown."""

    def __init__(self, stream: TextIO, clock: Clock, every_s: float = 5.0) -> None:
        self._stream = stream
        self._clock = clock
        self._every_s = every_s
        self._pace = Pace(clock)
        self._total_steps = 0
        self._shown_s: dict[str, float] = {}  # when a line of each kind was last shown

    def start(self, title: str, total_steps: int) -> None:
        self._total_steps = total_steps
        self._line(title)

    def phase(self, text: str) -> None:
        self._line(text)

    def warm_start(self, step: int, total: int, loss: float) -> None:
        if self._due("warm start") or step >= total:
            self._line(f"warm start {step}/{total}  loss {figures.decimal(loss, 3)}")

    def step(self, metrics: Metrics) -> None:
        self._pace.mark(metrics["step"])
        if self._due("step") or metrics["step"] >= self._total_steps:
            self._line(step_line(metrics, self._total_steps, self._pace.left_s(self._total_steps)))

    def evaluation(self, result: EvaluationResult) -> None:
        self._line(evaluation_line(result))

    def note(self, text: str) -> None:
        self._line(text)

    def finish(self) -> None:
        self._stream.flush()

    def _due(self, kind: str) -> bool:
        """Whether a line of this kind is wanted now; saying yes starts the next wait."""
        now = self._clock.now_s()
        due = kind not in self._shown_s or now - self._shown_s[kind] >= self._every_s
        if due:
            self._shown_s[kind] = now
        return due

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def step_line(metrics: Metrics, total_steps: int, left_s: float | None) -> str:
    """One learner step in one line; figures that the row lacks are left out."""
    parts = [f"step {metrics['step']}/{total_steps}", f"reward {figures.decimal(metrics.get('reward_mean'))}"]
    if metrics.get("style_share") is not None:
        parts.append(f"worked {figures.percent(metrics['style_share'])}")
    parts += [
        f"{figures.decimal(metrics.get('completion_tokens_mean'), 1)} tok/completion",
        f"sampler {figures.count(metrics.get('sampler_tokens_per_second'))} tok/s",
        f"learner {figures.count(metrics.get('tokens_per_second'))} tok/s",
        f"age {figures.decimal(metrics.get('age_mean'), 1)} mean {figures.count(metrics.get('age_max'))} max",
    ]
    if left_s is not None:
        parts.append(f"{figures.duration(left_s)} left")
    return "  ".join(parts)


def evaluation_line(result: EvaluationResult) -> str:
    """One evaluation in one line."""
    interval = f"95 % {figures.interval(*result.ci)}, n = {result.n}"
    text = f"held-out after step {result.step}: {result.task} greedy {figures.decimal(result.pass_at_1, 3)} ({interval})"
    text += "".join(f", pass@{score.k} {figures.decimal(score.value, 3)} ({figures.interval(*score.ci)})" for score in result.pass_at_k)
    if failed := sum(result.outcomes.get(kind, 0) for kind in (OutcomeKind.TIMEOUT, OutcomeKind.INFRASTRUCTURE)):
        text += f", {failed} answers without a verdict left out"
    if "style_share" in result.extra:
        text += f", worked {figures.percent(result.extra['style_share'])}"
    return text


def make_progress(stream: TextIO, quiet: bool) -> Progress:
    """The view that fits: none when `quiet`, live when `stream` is a terminal, else plain lines."""
    if quiet:
        return QuietProgress()
    if stream.isatty():
        from slipstream.telemetry.live_progress import RichProgress

        return RichProgress(stream, SystemClock())
    return PlainProgress(stream, SystemClock())
