"""How a program's process ends: as the interpreter would end it, with its hooks and finalisers. Runs in the cell."""

import atexit
import builtins
import gc
import os
import sys
from types import ModuleType
from typing import Any

__builtins__ = dict(vars(builtins))


def new_module(name: str) -> ModuleType:
    """An empty module for the program's code, known by its name."""
    module = ModuleType(name)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = builtins
    return module


def finish(module: ModuleType, error: BaseException | None) -> None:
    """End this process after the program's code ended or raised `error`. Does not return."""
    status = 0
    try:
        status = _status(error)
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        module.__dict__.clear()
        gc.collect()
    except BaseException:  # noqa: BLE001 - the program's own hooks may raise anything
        status = status or 120
    finally:
        os._exit(status)


def _status(error: BaseException | None) -> int:
    """The exit status an interpreter gives; says on standard error what it would say."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        code: Any = error.code
        if code is None or isinstance(code, int):
            return int(code or 0) & 0xFF
        print(code, file=sys.stderr)
        return 1
    sys.excepthook(type(error), error, error.__traceback__)
    return 1
