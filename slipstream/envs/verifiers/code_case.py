"""A programming task as the verifier needs it, from a row of data. Pure."""

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slipstream.envs.sandbox.records import Limits

SECONDS, MEMORY_MB = 10.0, 1024


class Style(StrEnum):
    """How an answer is checked."""

    ASSERT = "assert"  # load the answer, then run each line of `tests`
    CHECK = "check"  # load it, run `test`, then check(<entry point>)
    COMPLETE = "complete"  # as CHECK; the response continues `prompt`
    STDIN = "stdin"  # run it as a program for each pair of input and output


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCase:
    """One task. Worked example: style assert, tests ("assert add(2, 3) == 5",), entry_point "add"."""

    style: Style
    tests: tuple[str, ...] = ()  # Python text each
    test: str = ""  # Python text that defines check(candidate)
    io: tuple[tuple[str, str], ...] = ()  # (input, output)
    entry_point: str = ""  # an expression, e.g. "add" or "Solution().add"; "" where it follows from the tests
    prompt: str = ""  # what the response continues
    prelude: str = ""  # runs before answer and tests; its classes are known to both
    setup: str = ""  # runs between answer and tests
    limits: Limits

    @property
    def names(self) -> tuple[str, ...]:
        """Names the answer is to define, as far as they are known."""
        if self.entry_point:
            return (self.entry_point.split("(")[0].split(".")[0],)
        return called_names("\n".join((self.setup, *self.tests)))


def case_problem(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a row, naming the field and the fix; None where nothing is."""
    if not isinstance(row.get("response"), str):
        return "field 'response' is no text; give the model's answer"
    style = _style(row)
    if style is None:
        styles = ", ".join(Style)
        return f"field 'style' = {row.get('style')!r}: give one of {styles}, or the fields of one (tests, test + entry_point, io)"
    needed = {
        Style.ASSERT: ("tests",),
        Style.CHECK: ("test", "entry_point"),
        Style.COMPLETE: ("test", "entry_point", "prompt"),
        Style.STDIN: (),
    }
    for name in needed[style]:
        if name not in row:
            return f"field {name!r} is missing; style {style} needs it"
    for name in ("test", "entry_point", "prompt", "prelude", "test_setup"):
        if not isinstance(row.get(name) or "", str):
            return f"field {name!r} is no text"
    tests = row.get("tests") or []
    if style is Style.ASSERT and not (isinstance(tests, list) and all(isinstance(test, str) for test in tests)):
        return "field 'tests' is no list of texts"
    if style is Style.STDIN and not _pairs_fit(row):
        return "field 'io' is no list of objects with the texts 'input' and 'output'"
    return _limit_problem(row.get("limits") or {})


def case_of(row: Mapping[str, Any]) -> CodeCase:
    """The task of a row without problem; fields as in the data sets of mbpp, humaneval, leetcode and stdin programs."""
    style = _style(row)
    assert style is not None
    limits = row.get("limits") or {}
    return CodeCase(
        style=style,
        tests=tuple(row["tests"]) if style is Style.ASSERT else (),
        test=row.get("test") or "",
        io=tuple((pair["input"], pair["output"]) for pair in _pairs(row)) if style is Style.STDIN else (),
        entry_point=row.get("entry_point") or "",
        prompt=row.get("prompt") or "",
        prelude=row.get("prelude") or "",
        setup="\n".join((*(row.get("test_imports") or ()), row.get("test_setup") or "")),
        limits=Limits(seconds=float(limits.get("seconds", SECONDS)), memory_mb=int(limits.get("memory_mb", MEMORY_MB))),
    )


def called_names(tests: str) -> tuple[str, ...]:
    """What tests call and do not define: Python's own names only where nothing else is called."""
    try:
        tree = ast.parse(tests)
    except SyntaxError:
        return ()
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    stored |= {
        (alias.asname or alias.name).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    free = tuple(dict.fromkeys(name for name in called if name not in stored))
    return tuple(name for name in free if not hasattr(builtins, name)) or free


def _style(row: Mapping[str, Any]) -> Style | None:
    if "style" in row:
        return Style(row["style"]) if row["style"] in set(Style) else None
    if "test" in row:
        return Style.CHECK
    if "io" in row or (row.get("tests") and isinstance(row["tests"][0], dict)):
        return Style.STDIN
    return Style.ASSERT if "tests" in row else None


def _pairs(row: Mapping[str, Any]) -> Any:
    return row.get("io", row.get("tests")) or []


def _pairs_fit(row: Mapping[str, Any]) -> bool:
    pairs = _pairs(row)
    return isinstance(pairs, list) and all(
        isinstance(pair, dict) and all(isinstance(pair.get(name), str) for name in ("input", "output")) for pair in pairs
    )


def _limit_problem(limits: Any) -> str | None:
    if not isinstance(limits, dict):
        return "field 'limits' is no object with seconds and memory_mb"
    for name in ("seconds", "memory_mb"):
        value = limits.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            return f"field 'limits.{name}' = {value!r}: give a number above 0"
    return None
