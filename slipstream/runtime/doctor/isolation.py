"""What keeps untrusted programs in on this machine: the sandbox is started and says. Called by `doctor`."""

from slipstream.envs.sandbox.records import Isolation
from slipstream.envs.sandbox.sandbox import Sandbox
from slipstream.runtime.doctor.line import Grade, Line

PART = "sandbox"
_FIX = "allow user namespaces (sysctl user.max_user_namespaces; kernel.apparmor_restrict_unprivileged_userns=0), or run as root"


def isolation_lines() -> list[Line]:
    """Without namespaces the code verifier is refused, which is a warning here: other tasks need none."""
    with Sandbox(bodies=(), weak=True) as box:
        confinement = box.confinement
    first, *rest = confinement.lines()
    isolated = confinement.isolation is not Isolation.NONE
    detail = "; ".join([first.partition(": ")[2], *rest])
    return [
        Line(
            part=PART,
            name="isolation",
            grade=Grade.OK if isolated else Grade.WARNING,
            detail=detail,
            fix="" if isolated else _FIX,
        )
    ]
