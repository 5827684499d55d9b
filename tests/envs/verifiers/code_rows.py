"""Rows for the tests of the code verifier: the shared data, gold solutions as answers, small cases."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.core.errors import RunFailed
from slipstream.envs.sandbox.records import Limits
from slipstream.envs.sandbox.sandbox import Sandbox
from slipstream.envs.verifiers.code import BODIES, Verdict, grade_response
from slipstream.envs.verifiers.code_case import CodeCase, Style

DATA = Path(os.environ.get("SLIPSTREAM_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
LIMITS = Limits(seconds=5.0, memory_mb=512)


def read(name: str) -> list[dict[str, Any]]:
    """The rows of a shared file, plain or packed; skips the test where it is absent."""
    for path in (DATA / f"{name}.jsonl", DATA / f"{name}.jsonl.gz"):
        if path.exists():
            with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
                return [json.loads(line) for line in file]
    pytest.skip(f"{DATA / name}.jsonl is absent; set SLIPSTREAM_DATA")


def gold_rows(name: str) -> Iterator[dict[str, Any]]:
    """Each row with its solution as the answer, and once more with its extra tests where it has some."""
    for row in read(name):
        complete = name.startswith("humaneval")
        answer = row["solution"] if complete else f"```python\n{row['solution']}\n```"
        found = row | {"response": answer} | ({"style": "complete"} if complete else {})
        yield found
        if "plus_test" in row:
            yield found | {"id": row["id"] + "+", "tests": [row["plus_test"]]}


def sandbox(at_once: int = 4) -> Sandbox:
    try:
        return Sandbox(bodies=BODIES, at_once=at_once)
    except RunFailed as error:
        pytest.skip(str(error))


def verdict(box: Sandbox, code: str, *tests: str, entry_point: str = "", limits: Limits = LIMITS, **fields: Any) -> Verdict:
    """The verdict on a function's code."""
    case = CodeCase(style=Style.ASSERT, tests=tests, entry_point=entry_point, limits=limits, **fields)
    return grade_response(f"```python\n{code}\n```", case, box.run)
