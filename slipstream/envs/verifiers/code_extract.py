"""Which part of a response is the answer's code. Pure; decides by text alone.

Fences of three or more backticks or tildes, indented or not, closed or not; thinking does not count; of several Python blocks the last
that defines what is asked; a response without a fence is code where it can be read as Python.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.envs.verifiers.code_case import CodeCase, Style

_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)  # the template had opened it
_FENCE = re.compile(r"(?P<indent>[ \t]*(?:>[ \t]?)*)(?P<marks>`{3,}|~{3,})(?P<info>[^`\n]*)")
_PYTHON = re.compile(r"\{?\.?(?:python|py|python3|py3|python[0-9.]+|ipython|sage)\b", re.IGNORECASE)
_OPENING = re.compile(r"(?:def|class|import|from|async def) |@\w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    info: str  # what stands behind the opening marks
    code: str


def extract_code(response: str, case: CodeCase) -> str | None:
    """The code to run, None where there is none. For `complete` it is the prompt with its continuation."""
    said = _THOUGHT.sub("", _THINKING.sub("", response.replace("\r\n", "\n")))
    blocks = fenced_blocks(said)
    if case.style is Style.COMPLETE:
        return _completed(said, blocks, case)
    code = _chosen(blocks, case.names) if blocks else _bare(said, case.names)
    return code if code is not None and _says_something(code) else None


def fenced_blocks(text: str) -> tuple[Block, ...]:
    """Every fenced block in order; one that is not closed goes to the end."""
    found: list[Block] = []
    lines, place = text.split("\n"), 0
    while place < len(lines):
        match = _FENCE.fullmatch(lines[place])
        place += 1
        if not match:
            continue
        marks, indent, start = match["marks"], match["indent"], place
        closing = re.compile(rf"[ \t>]*{re.escape(marks[0])}{{{len(marks)},}}[ \t]*")
        while place < len(lines) and not closing.fullmatch(lines[place]):
            place += 1
        body = "\n".join(_without_indent(line, indent) for line in lines[start:place])
        if place == len(lines):  # not closed, or closed at the end of its last line
            body = body.rstrip().removesuffix(marks)
        found.append(Block(info=match["info"].strip(), code=body))
        place += 1
    return tuple(found)


def defines(code: str, names: Sequence[str]) -> bool:
    """Whether the code gives a meaning to one of the names at its top level."""
    try:
        body = ast.parse(code.lstrip("\ufeff")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return any(
            re.search(rf"^(?:async +)?(?:def|class) +{re.escape(name)}\b|^{re.escape(name)} *=", code, re.MULTILINE) for name in names
        )
    bound: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, ast.alias):
                bound.add((node.asname or node.name).split(".")[0])
    return bool(bound & set(names))


def _chosen(blocks: Sequence[Block], names: Sequence[str]) -> str | None:
    """Python blocks before blocks without a word, and those before blocks in another language that can be read as Python."""
    python = [block.code for block in blocks if _PYTHON.match(block.info)]
    untold = [block.code for block in blocks if not block.info]
    others = [block.code for block in blocks if block.info and not _PYTHON.match(block.info) and defines(block.code, names)]
    candidates = python or untold or others
    full = [code for code in candidates if _says_something(code)]
    asked = [code for code in full if defines(code, names)]
    code = next((found[-1] for found in (asked, full, candidates) if found), None)
    return None if code is None else code.lstrip("\ufeff")


def _bare(text: str, names: Sequence[str]) -> str | None:
    """Code without a fence: all of the text, or from its first line of code to the last that can be read with it."""
    text = text.lstrip("\ufeff")
    if _parses(text):
        return text if not names or defines(text, names) else None
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if _OPENING.match(line)), None)
    if first is None:
        return None
    for last in range(len(lines), first, -1):
        code = "\n".join(lines[first:last])
        if _parses(code):
            return code if not names or defines(code, names) else None
    return None


def _completed(said: str, blocks: Sequence[Block], case: CodeCase) -> str | None:
    """The prompt and its continuation; a fenced answer that defines the function by itself follows the prompt's imports."""
    if not blocks:
        return case.prompt + said if said.strip() else None
    code = _chosen(blocks, case.names)
    if code is None or not _says_something(code):
        return None
    if not defines(code, case.names):
        return case.prompt + code
    imports = [line for line in case.prompt.split("\n") if re.match(r"(?:import|from) ", line)]
    return "\n".join((*imports, code))


def _without_indent(line: str, indent: str) -> str:
    if line.startswith(indent):
        return line[len(indent) :]
    return line.lstrip(" \t") if not line.strip() or len(line) - len(line.lstrip(" \t")) < len(indent) else line


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _says_something(code: str) -> bool:
    """More than comments; code that cannot be read says something, wrongly."""
    try:
        body = ast.parse(code.lstrip("\ufeff")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return bool(code.strip())
    return bool(body)
