"""The programs' half of `slipstream bench grading`: answers a second that the code verifier judges, each in a cell of its own."""

import time
from typing import Any

ANSWERS = 100
WORKERS = (1, 2, 4)
_LIMITS = {"seconds": 10, "memory_mb": 512}
_FUNCTION = {
    "response": "```python\ndef add(a, b):\n    return a + b\n```",
    "entry_point": "add",
    "tests": ["assert add(2, 3) == 5", "assert add(-4, 9) == 5", "assert add(0, 0) == 0"],
    "limits": _LIMITS,
}
_PROGRAM = {
    "response": "```python\nprint(sum(map(int, input().split())))\n```",
    "io": [{"input": "2 3\n", "output": "5\n"}],
    "limits": _LIMITS,
}


def code_figures() -> list[dict[str, Any]]:
    """Answers a second, by kind and by how many run at once; all of them are right, so that none waits for a limit."""
    from slipstream.envs.verifiers.code_verifier import CODE

    figures = []
    for at_once in WORKERS:
        with CODE.open(at_once) as judge:
            for kind, row in (("function", _FUNCTION), ("program", _PROGRAM)):
                judge.submit(row).result()
                started = time.perf_counter()
                rewards = [future.result().reward for future in [judge.submit(row) for _ in range(ANSWERS)]]
                seconds = time.perf_counter() - started
                figures.append(
                    {
                        "verifier": f"code, {kind}",
                        "how": f"{at_once} at once",
                        "judged": ANSWERS,
                        "rows_per_second": round(ANSWERS / seconds, 1),
                        "as_expected": rewards.count(1.0),
                        "with_expected": ANSWERS,
                    }
                )
    return figures
