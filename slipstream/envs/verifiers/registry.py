"""Every verifier by the name that `--task` takes. A new one is one line here."""

from slipstream.core.errors import UsageError, near_names
from slipstream.envs.verifiers.code_verifier import CODE
from slipstream.envs.verifiers.math_verifier import MATH
from slipstream.envs.verifiers.verifier import Verifier

VERIFIERS: dict[str, Verifier] = {verifier.name: verifier for verifier in (MATH, CODE)}


def find_verifier(name: str) -> Verifier:
    """The verifier of that name. Raises UsageError, with near names, where there is none."""
    if name not in VERIFIERS:
        raise UsageError(f"--task {name}: no such verifier; {near_names(name, VERIFIERS)}")
    return VERIFIERS[name]
