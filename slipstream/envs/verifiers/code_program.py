"""The body of a cell that runs a whole program: standard input to standard output. Called by the sandbox as `main`."""

import builtins
import os
import sys

from slipstream.envs.verifiers.code_faults import reason_of
from slipstream.envs.verifiers.code_finish import finish, new_module

__builtins__ = dict(vars(builtins))
RESERVE_BYTES = 4 << 20  # given free when memory has run out, to tell of it


def main(text: bytes, channel: int, said: int) -> None:
    """`text` is the program. What it raised, if anything, is said as "reason Class: message"."""
    os.close(channel)
    reserve = bytearray(RESERVE_BYTES)
    module = new_module("__main__")
    sys.argv = ["program.py"]
    module.__dict__["__file__"] = "program.py"
    failure: BaseException | None = None
    try:
        code = compile(text.decode(), "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        failure = error
        _say(said, f"syntax {type(error).__name__}: {error}")
    else:
        try:
            exec(code, module.__dict__)
        except BaseException as error:  # noqa: BLE001 - programs raise anything; how they end is what is asked
            del reserve
            failure = error
            if not isinstance(error, SystemExit):
                _say(said, f"{reason_of(error)} {type(error).__name__}: {error}")
    finish(module, failure)


def _say(said: int, words: str) -> None:
    os.write(said, words[:1000].encode(errors="replace"))
    os.close(said)
