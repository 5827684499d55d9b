"""What workers of the pool do in tests: jobs that answer, wait, die, print and grow. Named by import path; runs in processes of its own."""

import os
import sys
import time

GROWN: list[bytes] = []


def act(payload: dict) -> object:
    """Do what the payload says."""
    name, value = payload["do"], payload.get("value")
    if name == "echo":
        return value
    if name == "pid":
        return [os.getpid(), os.getsid(0)]
    if name == "sleep":
        time.sleep(value)
    elif name == "count":  # holds the interpreter, so that no signal handler of Python's could run
        return sum(range(10**12))
    elif name == "exit":
        os._exit(value)
    elif name == "raise":
        raise ValueError(value)
    elif name == "print":
        print(value)
        os.write(1, b"straight to the descriptor\n")
        print(value, file=sys.stderr)
    elif name == "grow":
        GROWN.append(bytes(value))
    elif name == "fork":
        child = os.fork()
        if not child:
            time.sleep(3600)
        return child
    return None


def stall(payload: dict) -> None:
    """Never answer."""
    time.sleep(3600)
