"""What everyone does at this moment, as a run keeps it in status.json: roles with their phases, and what the next batch lacks.

Written every few seconds by the process that owns the ledger, read by `slipstream why` and the page.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slipstream.core.errors import RunFailed
from slipstream.telemetry.atomic import atomic_write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """One role, as it was last heard of."""

    role: str  # "learner", "sampler-3"
    kind: str  # "learner", "sampler", "evaluator", "grader"
    phase: str
    phase_s: float  # seconds in it
    heard_s: float = 0.0  # seconds since it was heard of; 0 in the writer's own process


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """Where the samples are."""

    version: int  # the learner's; it trains batch `version` next
    steps: int  # batches of the whole run
    eta: int
    needed: int  # groups a batch
    complete: int  # groups that are whole and in no batch yet
    fixed: bool  # the next batch is fixed
    leased: Mapping[str, int] = field(default_factory=dict[str, int])  # tickets at work, by worker
    claimable: int = 0  # tickets that could be claimed now
    tickets: Mapping[str, int] = field(default_factory=dict[str, int])  # by state; the values sum to all ever issued


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingStatus:
    """Where the replies are that graders judge for the samplers."""

    waiting: Mapping[str, int] = field(default_factory=dict[str, int])  # replies without a verdict, by sampler
    held: Mapping[str, int] = field(default_factory=dict[str, int])  # those of them at work, by grader
    queued: int = 0  # those that no grader has
    oldest_s: float = 0.0  # since the first of them was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One moment of a run."""

    time: float  # run clock, seconds
    unix_s: float  # wall clock, for the age of the file
    roles: tuple[RoleStatus, ...]
    flow: FlowStatus | None  # None: the run has no samples
    supervised: bool = False  # samplers that go are started again
    grading: GradingStatus | None = None  # None: samplers judge


def write_status(path: Path, status: RunStatus) -> None:
    """Atomically; the last one wins. It is a view that is written anew in a moment, so nobody waits for the disk."""
    atomic_write_text(path, json.dumps(asdict(status)), durable=False)


def read_status(path: Path) -> RunStatus | None:
    """None where none was written. Raises RunFailed where it cannot be read."""
    try:
        found = json.loads(path.read_text())
        roles = tuple(RoleStatus(**role) for role in found.pop("roles"))
        flow, grading = found.pop("flow"), found.pop("grading", None)
        return RunStatus(roles=roles, flow=flow and FlowStatus(**flow), grading=grading and GradingStatus(**grading), **found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFailed(f"{path} cannot be read: {error!r}") from error
