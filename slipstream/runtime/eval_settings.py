"""What a person chooses of `slipstream eval`, judged before anything is opened. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from slipstream.core.errors import UsageError
from slipstream.loop.evaluate import Draw
from slipstream.models.weight import Precision

MAX_TOKENS = 256  # of an answer, where neither the call nor the run says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """None: not given."""

    model: Path | None = None
    run: Path | None = None
    step: int | None = None  # of the run's checkpoint; None: the newest
    task: str | None = None  # None: the run's own
    data: Path | None = None
    overrides: tuple[str, ...] = ()  # task.FIELD=VALUE
    k: tuple[int, ...] = (1,)
    n: int | None = None  # answers a problem; None: the largest k
    temperature: float | None = None  # None: greedy where n is 1, else 1
    greedy: bool = False
    limit: int | None = None  # problems; None: all, where they are counted
    seed: int | None = None
    max_tokens: int | None = None
    slots: int = 8
    precision: Precision = "f32"
    out: Path | None = None
    quiet: bool = False

    @property
    def answers(self) -> int:
        """Drawn for each problem."""
        return self.n if self.n is not None else max(self.k)

    def draw(self, max_tokens: int) -> Draw:
        """How answers are drawn; `max_tokens` is the task's own, where none is given."""
        temperature = self.temperature if self.temperature is not None else float(self.answers > 1)
        return Draw(
            samples=self.answers,
            temperature=0.0 if self.greedy else temperature,
            max_new_tokens=self.max_tokens or max_tokens,
            seed=self.seed or 0,
        )


def check_settings(settings: EvalSettings) -> None:
    """Raises UsageError naming everything that is wrong."""
    problems = [*_source_problems(settings), *_number_problems(settings)]
    if not problems:
        problems = [*_draw_problems(settings)]
    if problems:
        raise UsageError("; ".join(problems))


def _source_problems(settings: EvalSettings) -> Iterator[str]:
    if (settings.model is None) == (settings.run is None):
        yield "give one of --model DIR (a model directory) and --run RUN (a run, whose checkpoint is evaluated)"
    if settings.step is not None and settings.run is None:
        yield f"--step {settings.step}: there is no --run of whose checkpoints it is one"
    if settings.task is None and settings.run is None:
        yield "--task is missing: a kind (arithmetic, sums, rows) or a name of the catalogue (gsm8k)"


def _number_problems(settings: EvalSettings) -> Iterator[str]:
    if not settings.k:
        yield "--k names no number; e.g. --k 1,8"
    bounds = [("k", k, 1) for k in settings.k]
    bounds += [(name, getattr(settings, name), 1) for name in ("n", "limit", "max_tokens", "slots")]
    bounds += [(name, getattr(settings, name), 0) for name in ("seed", "step", "temperature")]
    for name, value, least in bounds:
        if value is not None and not (value >= least and isfinite(value)):
            yield f"--{name.replace('_', '-')} {value}: must be at least {least}"


def _draw_problems(settings: EvalSettings) -> Iterator[str]:
    yield from (f"--k {k} with --n {settings.answers}: pass@{k} needs at least {k} answers" for k in settings.k if k > settings.answers)
    if settings.greedy and settings.temperature:
        yield f"--greedy with --temperature {settings.temperature:g}: greedy is temperature 0; give one of them"
    greedy = settings.draw(1).temperature == 0
    if greedy and settings.answers > 1:
        yield f"--n {settings.answers} with greedy answers: they are all the same; use --n 1 or a --temperature above 0"
    if greedy and settings.seed is not None:
        yield f"--seed {settings.seed} has no effect on greedy answers; leave it out"
