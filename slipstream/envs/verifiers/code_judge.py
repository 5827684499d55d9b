"""The body of a cell's judge: runs the tests, with stand-ins for the answer's functions, and counts the checks that ran.

It is trusted and sees nothing of the answer but what its functions return. Called by the sandbox as `main`.
"""

import ast
import contextlib
import json
import os
import signal
import sys
from types import ModuleType
from typing import Any

from slipstream.envs.verifiers.code_faults import Cheat, FromProgram, Garbled, Gone
from slipstream.envs.verifiers.code_peer import Peer
from slipstream.envs.verifiers.code_remote import Remote
from slipstream.envs.verifiers.code_subject import run_prelude

RECURSION = 20_000  # tests compare long linked lists by recursion
COUNTED = "__counted__"


def main(text: bytes, channel: int, said: int) -> None:
    """`text` is a JSON object: token, prelude, style, setup, tests, test, entry_point, names. Writes one: reason, detail, checks."""
    task = json.loads(text)
    sys.setrecursionlimit(RECURSION)
    peer = Peer(channel, task["token"].encode(), trusting=False)
    checks = [0]

    def out_of_time(*_: object) -> None:
        _write(said, {"reason": "interrupted" if peer.waiting else "slow_test", "detail": "", "checks": checks[0]})
        os._exit(1)

    signal.signal(signal.SIGUSR1, out_of_time)
    reason, detail = _outcome(task, peer, checks)
    if isinstance(peer.fault, Cheat):
        reason, detail = "cheat", str(peer.fault)
    elif peer.fault:
        reason, detail = "gone", str(peer.fault)
    if reason == "ok" and not checks[0]:
        reason, detail = "no_check", "no check of the answer has run"
    _write(said, {"reason": reason, "detail": detail[:2000], "checks": checks[0]})
    if reason not in ("ok", "gone"):
        with contextlib.suppress(Gone):  # it is over either way
            peer.end()
    os._exit(reason != "ok")


def _outcome(task: dict[str, Any], peer: Peer, checks: list[int]) -> tuple[str, str]:
    """Load the answer and run the tests: (reason, detail)."""
    lacking: list[str] = []
    loaded = False
    try:
        peer.ask("act", 0, "__load__")
        loaded = True
        peer.calls = 0
        _run_tests(task, peer, checks, lacking)
    except FromProgram as error:
        return _program_failed(error, loaded, lacking)
    except AssertionError as error:
        return "wrong_answer", f"check {checks[0] + 1} failed" + (f": {error}" if str(error) else "")
    except (Cheat, Gone) as error:
        return "cheat", str(error)  # `Peer.fault` tells them apart
    except Garbled as error:
        return "cheat", f"the program's process sends nonsense: {error}"
    except MemoryError:
        return "memory", "the answer returned more than the judge can hold"
    except BrokenTest as error:
        return "no_check", str(error)
    except BaseException as error:  # noqa: BLE001 - tests fail in any way on a value of a wrong type
        return ("missing_name" if _names(error, lacking) else "exception"), f"{type(error).__name__}: {error}"
    return "ok", ""


def _program_failed(error: Any, loaded: bool, lacking: list[str]) -> tuple[str, str]:
    """What an exception of the program means; a syntax error while it loads is its own."""
    name = type(error).__name__
    reason = error.reason
    if not loaded and isinstance(error, SyntaxError):
        reason = "syntax"
    if _names(error, lacking):
        reason = "missing_name"
    return reason, f"{name}: {error}" + ("" if loaded else " (while it was loaded)")


def _names(error: BaseException, lacking: list[str]) -> bool:
    return isinstance(error, NameError) and any(f"'{name}'" in str(error) for name in lacking)


class BrokenTest(Exception):
    """The task's own text cannot be run: nothing can be verified with it."""


class _Names(dict[str, Any]):
    """The tests' global names: their own, then Python's, then the answer's. Entry points come before Python's names."""

    def __init__(self, peer: Peer, entry_names: set[str], builtin_names: set[str]) -> None:
        super().__init__()
        self._peer, self._entry_names, self._builtin_names = peer, entry_names, builtin_names

    def __missing__(self, name: str) -> Any:
        if name.startswith("__") or (name in self._builtin_names and name not in self._entry_names):
            raise KeyError(name)
        calls = self._peer.calls
        try:
            value = self._peer.ask("name", 0, name)
        except NameError:
            raise KeyError(name) from None
        finally:
            self._peer.calls = calls
        if type(value) is Remote:  # functions and classes; a plain value may be another one next time
            self[name] = value
        return value


def _run_tests(task: dict[str, Any], peer: Peer, checks: list[int], lacking: list[str]) -> None:
    module = ModuleType("tests")
    module.__dict__["__builtins__"] = __builtins__
    shared = ModuleType("answer")
    sys.modules |= {"tests": module, "answer": shared}
    try:
        lacking += run_prelude(task["prelude"], shared, peer)
    except (SyntaxError, ArithmeticError, LookupError, NameError, TypeError, ValueError, ImportError) as error:
        raise BrokenTest(f"the prelude cannot be run: {error!r}") from error
    builtin_names = set(vars(sys.modules["builtins"]))
    names = _Names(peer, set(task["names"]), builtin_names)
    names.update({name: value for name, value in vars(shared).items() if name not in task["names"]})
    names["__name__"] = "tests"

    def counted() -> None:
        checks[0] += bool(peer.calls)

    names[COUNTED] = counted
    for text in (task["setup"], task["test"], *task["tests"]):
        _execute(text, names)
    if task["style"] != "assert":
        check = dict.get(names, "check")
        if check is None:
            raise BrokenTest("the test defines no check")
        check(eval(task["entry_point"], names))


def _execute(text: str, names: _Names) -> None:
    """Run some lines of a test, each of its assertions followed by a count."""
    try:
        tree = ast.fix_missing_locations(_Count().visit(ast.parse(text)))
        code = compile(tree, "test", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BrokenTest(f"a test is no Python: {error}") from error
    exec(code, names)


class _Count(ast.NodeTransformer):
    """Puts a count behind each assertion, except those about constants, which check nothing."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        speaks = any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(node.test))
        return [node, _count_here()] if speaks else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node)
        function = node.value.func if isinstance(node.value, ast.Call) else None
        name = function.attr if isinstance(function, ast.Attribute) else ""
        return [node, _count_here()] if name.startswith("assert") else node


def _count_here() -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name(COUNTED, ast.Load()), [], []))


def _write(said: int, verdict: dict[str, Any]) -> None:
    os.write(said, json.dumps(verdict).encode())
