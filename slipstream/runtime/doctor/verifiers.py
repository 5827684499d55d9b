"""Canaries of everything that gives rewards: a right answer must be rewarded, a wrong or empty one must not. Called by `doctor`."""

from collections.abc import Callable
from functools import partial

from slipstream.config.schema import ArithmeticTask, ProductsTask
from slipstream.envs.arithmetic import arithmetic
from slipstream.envs.canaries import TEXT_GRADERS, Canaries
from slipstream.envs.products import products
from slipstream.envs.verifiers.verifier import Verifier, lasting_failures
from slipstream.runtime.doctor.line import Grade, Line, examined

PART = "verifiers"
_FIX = "rewards of this verifier cannot be trusted here; reinstall, and report it if it stays"


GRADERS: dict[str, Callable[[], Canaries]] = {
    "arithmetic": lambda: arithmetic(ArithmeticTask(), 0).canaries(),
    "products": lambda: products(ProductsTask(), 0).canaries(),
    **{name: partial(TEXT_GRADERS.__getitem__, name) for name in TEXT_GRADERS},
}


def grader_lines() -> list[Line]:
    """The graders of tasks that judge by text alone."""
    return [_told(name, made.failed(), made.count) for name, made in ((name, make()) for name, make in GRADERS.items())]


def verifier_lines() -> list[Line]:
    """Every registered verifier by its own canaries, in its own processes."""
    from slipstream.envs.verifiers.registry import VERIFIERS  # here, so that one whose packages are broken is a finding

    return [line for name, verifier in VERIFIERS.items() for line in examined(PART, name, partial(_judged, verifier))]


def _judged(verifier: Verifier) -> list[Line]:
    with verifier.open(1) as judge:
        failures = lasting_failures(verifier, judge)
    return [_told(verifier.name, failures, len(verifier.canaries()))]


def _told(name: str, failures: list[str], canaries: int) -> Line:
    if failures:
        return Line(part=PART, name=name, grade=Grade.FAILED, detail="; ".join(failures), fix=_FIX)
    return Line(part=PART, name=name, grade=Grade.OK, detail=f"{canaries} canaries judged as they must be")
