"""The body of a cell's program where functions are tested: loads the answer, then does what the judge asks of it.

It shares its interpreter with the answer, so nothing it says is believed: it knows no test and no expected value. Called by the
sandbox as `main`.
"""

import ast
import builtins
import os
import sys
from json import loads
from types import ModuleType
from typing import Any

from slipstream.envs.verifiers import code_peer, code_remote, code_values
from slipstream.envs.verifiers.code_faults import Garbled, Gone
from slipstream.envs.verifiers.code_finish import finish, new_module
from slipstream.envs.verifiers.code_peer import Peer

__builtins__ = dict(vars(builtins))
LOOKED = b"looked"  # said when the answer, while it is called, looks for what calls it
RESERVE_BYTES = 4 << 20
_OURS = {code_peer.__file__, code_remote.__file__, code_values.__file__, __file__}
_LOOKS = {"glob.glob", "os.listdir", "os.scandir"}


def main(text: bytes, channel: int, said: int) -> None:
    task = loads(text)
    module = new_module("answer")
    peer = Peer(channel, task["token"].encode(), trusting=True)
    peer.names = module.__dict__
    loaded = []

    def load() -> None:
        reserve = bytearray(RESERVE_BYTES)
        try:
            run_prelude(task["prelude"], module, peer)
            exec(compiled(task["code"]), module.__dict__)
        finally:
            del reserve
            loaded.append(True)

    module.__dict__["__load__"] = load
    _watch(said, loaded)
    try:
        peer.serve()
    except (Gone, Garbled):
        os._exit(1)
    finish(module, AssertionError("a check has failed"))


def run_prelude(text: str, module: ModuleType, peer: Peer) -> list[str]:
    """Run the task's own opening lines one by one; its classes are then shared. Returns names that imports of absent modules lack."""
    lacking = []
    for statement in ast.parse(text).body:
        try:
            exec(compile(ast.Module([statement], []), "prelude", "exec", dont_inherit=True), module.__dict__)
        except ModuleNotFoundError:
            if not isinstance(statement, (ast.Import, ast.ImportFrom)):
                raise
            lacking += [alias.asname or alias.name for alias in statement.names]
    peer.shared = {name: value for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__}
    return lacking


def compiled(code: str) -> Any:
    """The answer, compiled; every way in which that fails is a SyntaxError."""
    try:
        return compile(code + "\n\n", "answer.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(f"{type(error).__name__}: {error}") from None


def _watch(said: int, loaded: list[bool]) -> None:
    """Say so when the answer's functions look at their callers or search directories. A hint for a wrong answer's reason, no more."""
    told = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if told or not loaded or not (event == "sys._getframe" or event in _LOOKS):
            return
        if event == "sys._getframe":
            frame = arguments[0] if arguments else None
            target = frame.f_code.co_filename if frame is not None and hasattr(frame, "f_code") else ""
            if target not in _OURS and not _asked_by_inspect():
                return
        told.append(event)
        os.write(said, LOOKED)

    sys.addaudithook(hook)


def _asked_by_inspect() -> bool:
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__.tb_frame if error.__traceback__ else None
    above = frame.f_back.f_back if frame and frame.f_back else None  # past the hook
    return above is not None and above.f_code.co_filename.endswith("inspect.py")
