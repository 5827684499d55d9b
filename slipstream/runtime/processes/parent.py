"""A supervised process ends when its supervisor does, however that dies. Called by the command line of each role."""

import ctypes
import os
import signal
import sys

PARENT = "SLIPSTREAM_SUPERVISOR"  # environment: process id of the supervisor
_PR_SET_PDEATHSIG = 1


def end_with_supervisor() -> None:
    """Where there is one: SIGTERM when it is gone. Linux only; elsewhere a supervisor that is killed leaves its roles at work."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it was gone before
        os.kill(os.getpid(), signal.SIGTERM)
