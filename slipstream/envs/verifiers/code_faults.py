"""What can go wrong between judge and program, and how exceptions cross from one interpreter to the other. Imported by `code_peer`."""

import builtins

__builtins__ = dict(vars(builtins))


class Garbled(Exception):
    """A message that no sender of ours makes."""


class Gone(BaseException):
    """The other end is closed. A test that catches it changes nothing: `Peer.fault` stays."""


class Cheat(BaseException):
    """The program's own code would decide whether a check holds. As `Gone`."""


class FromProgram(BaseException):
    """Mixed into exceptions that were raised on the other side; `reason` is what the program's end made of it."""

    reason = "exception"


def told(error: BaseException) -> list[str]:
    """An exception as [reason, class, nearest builtin class, message]."""
    known = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    try:
        message = str(error)
    except BaseException as second:  # noqa: BLE001 - the program's own __str__ may raise anything
        message = f"(no message: {type(second).__name__})"
    return [reason_of(error), type(error).__name__, known, message[:2000]]


def reason_of(error: BaseException) -> str:
    """Why a program failed, from what it raised."""
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, ModuleNotFoundError):
        return "missing_module"
    if isinstance(error, OSError) and error.errno in (27, 28, 122):  # EFBIG, ENOSPC, EDQUOT
        return "disk"
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "cheat"
    return "exception"


def exception_of(reason: str, name: str, known: str, message: str) -> BaseException:
    base = vars(builtins).get(known)
    if not (isinstance(base, type) and issubclass(base, BaseException)) or issubclass(base, BaseExceptionGroup):
        base = Exception
    bases = (FromProgram,) if base is BaseException else (base, FromProgram)
    error = base.__new__(type(str(name), bases, {"reason": reason}), message)
    error.args = (message,)
    if isinstance(error, SyntaxError):
        error.msg = message
    return error
