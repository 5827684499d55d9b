"""Who waits for whom, and at whose end it hangs: from one moment of a run. Pure; printed by `slipstream why`.

A role in phase `wait` waits for another; every other phase is work of its own. The chain of waits ends at the root: a role at work, one
that is not heard of any more, or nobody at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.telemetry.status import FlowStatus, GradingStatus, RoleStatus, RunStatus

NOBODY = "nobody"
SILENT_S = 30.0  # a role that is not heard of for longer may be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One arrow: `who` has waited `since_s` seconds for `on`."""

    who: str
    on: str  # a role, or NOBODY
    since_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All arrows, and the sentence that ends the search."""

    waits: tuple[Wait, ...]
    root: str


def explain(status: RunStatus) -> Explanation:
    """Never empty: a run in which nobody waits says who works on what."""
    waits = tuple(wait for role in status.roles for wait in _waits(role, status))
    return Explanation(waits=waits, root=_root(waits, status))


def _waits(role: RoleStatus, status: RunStatus) -> Iterator[Wait]:
    if role.phase != "wait" or role.kind == "evaluator":  # an evaluator's rest holds nobody up
        return
    if role.kind == "learner":
        yield from _of_learner(role, status)
    elif role.kind == "sampler" and status.grading is not None and status.grading.waiting.get(role.role):
        yield from _for_verdicts(role, status, status.grading)
    elif role.kind == "sampler" and status.flow is not None:
        yield _of_sampler(role, status.flow)


def _of_learner(role: RoleStatus, status: RunStatus) -> Iterator[Wait]:
    flow = status.flow
    if flow is None or flow.fixed:
        return
    lack = f"batch {flow.version} has {flow.complete} of its {flow.needed} groups"
    for worker, tickets in sorted(flow.leased.items()):
        yield Wait(who=role.role, on=worker, since_s=role.phase_s, why=f"{lack}; it works on {tickets}")
    if not flow.leased:
        samplers = [one.role for one in status.roles if one.kind == "sampler"]
        for worker in samplers or [NOBODY]:
            why = "no sampler is here" if worker == NOBODY else f"it has claimed none of {flow.claimable} tickets that it could"
            yield Wait(who=role.role, on=worker, since_s=role.phase_s, why=f"{lack}; {why}")


def _for_verdicts(role: RoleStatus, status: RunStatus, grading: GradingStatus) -> Iterator[Wait]:
    """A sampler with nothing to draw before some verdict has come: on the graders that have replies, or that could take them."""
    wanted = f"{grading.waiting[role.role]} verdicts are wanted"
    for grader, replies in sorted(grading.held.items()):
        yield Wait(who=role.role, on=grader, since_s=role.phase_s, why=f"{wanted}; it judges {replies}")
    if not grading.held:
        graders = [one.role for one in status.roles if one.kind == "grader"]
        for grader in graders or [NOBODY]:
            why = "no grader is here" if grader == NOBODY else f"it has taken none of {grading.queued} replies"
            yield Wait(who=role.role, on=grader, since_s=role.phase_s, why=f"{wanted}; {why}")


def _of_sampler(role: RoleStatus, flow: FlowStatus) -> Wait:
    if flow.version >= flow.steps:
        return Wait(who=role.role, on=NOBODY, since_s=role.phase_s, why="the run is over")
    if flow.claimable:
        why = f"{flow.claimable} tickets can be claimed, but not with the weights it has: version {flow.version} is on its way"
        return Wait(who=role.role, on="learner", since_s=role.phase_s, why=why)
    ahead = f"all that may be sampled before version {flow.version + 1} is claimed (eta = {flow.eta})"
    return Wait(who=role.role, on="learner", since_s=role.phase_s, why=ahead)


def _root(waits: tuple[Wait, ...], status: RunStatus) -> str:
    roles = {role.role: role for role in status.roles}
    learner = next((role for role in status.roles if role.kind == "learner"), None)
    if learner is None:
        return "no learner is here: nothing is trained until one joins"
    at, seen = learner.role, [learner.role]
    while True:
        arrows = [wait for wait in waits if wait.who == at]
        if not arrows:
            return _at_work(roles[at])
        silent = [wait for wait in arrows if wait.on in roles and roles[wait.on].heard_s > SILENT_S]
        longest = max(silent or arrows, key=lambda wait: _standing(roles.get(wait.on)))
        if longest.on == NOBODY:
            return f"{at} waits: {longest.why}"
        if longest.on not in roles:
            return f"{longest.on} holds tickets and is not here; they come back when its lease ends"
        if longest.on in seen:
            return f"{' waits for '.join([*seen[seen.index(longest.on) :], longest.on])}: a deadlock, which is a bug; please report it"
        at = longest.on
        seen.append(at)


def _standing(role: RoleStatus | None) -> float:
    """How long it has done what it does; what is not here has for ever."""
    return float("inf") if role is None else max(role.phase_s, role.heard_s)


def _at_work(role: RoleStatus) -> str:
    if role.heard_s > SILENT_S:
        return f"{role.role} has not been heard of for {role.heard_s:.0f} s; it was in phase {role.phase!r}"
    return f"{role.role} is in phase {role.phase!r}, for {role.phase_s:.1f} s now"
