"""Errors a person sees. Each carries the exit code of `slipstream` and one clear message, never a traceback."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


class SlipstreamError(Exception):
    """A failure with a cause that a person can act on. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(SlipstreamError):
    """The command was called wrongly: unknown recipe, missing file, a directory in use. Nothing was changed."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a configuration."""

    field: str  # dotted path of the field, e.g. "sampling.slots"
    value: str  # the value as given, shown with repr
    fix: str  # what would make it right

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.fix}"


class ConfigError(UsageError):
    """A configuration that cannot run. Holds every problem found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        count = len(self.problems)
        super().__init__(f"{count} configuration problem{'s' if count != 1 else ''}:\n{lines}")


class RunFailed(SlipstreamError):
    """A run that started and could not go on. The message names the cause and where the log is."""


class TransitionError(SlipstreamError):
    """A ledger event that the state machine does not allow in its present state: a bug, never data."""


class StaleEpoch(SlipstreamError):
    """A worker whose lease has ended, or that has joined anew since, or never did: it must join (again) before it goes on."""


class RolloutRefused(SlipstreamError):
    """Something handed in that no run takes (NaN log-probs, wrong shapes, unknown ticket, another run or lineage). Nothing changed."""


def near_names(name: str, known: Iterable[str]) -> str:
    """A hint naming the known names closest to `name`, or all of them where none is close."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
