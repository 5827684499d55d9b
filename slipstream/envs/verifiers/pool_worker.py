"""The inside of a pool's worker: `python -m slipstream.envs.verifiers.pool_worker MODULE:FUNCTION MEMORY_BYTES`.

Reads one JSON request a line, writes one JSON reply a line. An exception of the function ends the process: the pool sees a
crash. Started by `pool` only; imports nothing but the function's module.
"""

import json
import os
import resource
import signal
import sys
from importlib import import_module

GRACE_S = 5.0  # past a job's deadline the system ends the worker even where the pool is no longer there to do it
RECURSION = 60_000  # frames of Python; they cost memory, which is bounded
READY = b"ready\n"


def main() -> None:
    target, memory_bytes = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sys.setrecursionlimit(RECURSION)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    module, _, name = target.partition(":")
    function = getattr(import_module(module), name)
    _send(replies, READY)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["deadline_s"] + GRACE_S)
        reply = function(request["payload"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(replies, json.dumps(reply).encode() + b"\n")


def _send(replies, data: bytes) -> None:
    replies.write(data)
    replies.flush()


if __name__ == "__main__":
    main()
