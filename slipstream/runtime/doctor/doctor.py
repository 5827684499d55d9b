"""All checks in order, quick ones first. Called by `slipstream doctor`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from slipstream.runtime.doctor import isolation, machine, model, verifiers
from slipstream.runtime.doctor.line import Check, Line, examined


def diagnose(directory: Path | None) -> Iterator[Line]:
    """Lines as they are found, of the machine and of the model in `directory`, or of a tiny fresh one.

    Raises UsageError, before anything is examined, where `directory` is no model.
    """
    found = model.examined_model(directory)
    checks: tuple[tuple[str, str, Check], ...] = (
        (machine.PART, "machine", machine.machine_lines),
        (isolation.PART, "isolation", isolation.isolation_lines),
        (verifiers.PART, "graders", verifiers.grader_lines),
        (verifiers.PART, "registered", verifiers.verifier_lines),
        (model.WEIGHTS, "round trip", partial(model.round_trip_lines, found)),
        (model.SAMPLER, "programs", partial(model.compiled_lines, found)),
        (model.SAMPLER, "conformance", partial(model.conformance_lines, found)),
        (model.EXACTNESS, "exactness", partial(model.exactness_lines, found)),
    )
    for part, name, check in checks:
        yield from examined(part, name, check)
