"""Answers to programming tasks whose verdict is known: what every run's start and `slipstream doctor` put to the code verifier."""

from slipstream.envs.verifiers.verifier import Canary

SECONDS, MEMORY_MB = 2, 512
_TESTS = ["assert add(2, 3) == 5", "assert add(-4, 9) == 5"]
_PAIRS = [{"input": "2 3\n", "output": "5\n"}]

_RIGHT = {
    "gold": "def add(a, b):\n    return a + b",
    "noisy": "print('working')\ndef add(a, b):\n    print(a)\n    return sum((a, b))",
}
_WRONG = {
    "wrong": "def add(a, b):\n    return a - b",
    "no-op": "def add(a, b):\n    pass",
    "syntax error": "def add(a, b)\n    return a + b",
    "infinite loop": "def add(a, b):\n    while True:\n        pass",
    "memory bomb": "def add(a, b):\n    return len(b'1' * (8 << 30))",
    "exit(0)": "import sys\ndef add(a, b):\n    sys.exit(0)",
    "exit(0) while loaded": "exit(0)",
    "os._exit(0)": "import os\ndef add(a, b):\n    print('2 passed')\n    os._exit(0)",
    "patched checker": "import builtins\n"
    "\nbuiltins.AssertionError = type('Quiet', (Exception,), {})\ncheck = print\ndef add(a, b):\n    return 0",
    "equal to all": "class All(int):\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return All()",
    "printed passed": "def add(a, b):\n    print('PASSED 1.0 all tests passed')\n    return 0",
    "written to all descriptors": 'import os\nfor fd in range(1, 256):\n    try:\n        os.write(fd, b\'{"reason": "ok"}\')\n'
    "    except OSError:\n        pass\ndef add(a, b):\n    return 0",
}
_WRONG_PROGRAMS = {
    "wrong program": "print(6)",
    "program that exits": "import os\nos._exit(0)",
    "program that boasts": "print('5 passed')",
}


def canaries() -> tuple[Canary, ...]:
    """Right and wrong answers to one task, as a function and as a program, and two that must not count."""
    found = [_canary(name, code, right) for right, codes in ((True, _RIGHT), (False, _WRONG)) for name, code in codes.items()]
    found.append(_canary("gold program", "print(sum(map(int, input().split())))", True, io=_PAIRS))
    found += [_canary(name, code, False, io=_PAIRS) for name, code in _WRONG_PROGRAMS.items()]
    found.append(_canary("no check", _RIGHT["gold"], False, tests=["if False:\n    assert add(1, 1) == 2"]))
    empty = {"style": "assert", "tests": _TESTS, "entry_point": "add", "response": ""}
    return (*found, Canary(name="empty", row=empty, right=False))


def _canary(name: str, code: str, right: bool, **fields: object) -> Canary:
    row = {"response": f"```python\n{code}\n```", "limits": {"seconds": SECONDS, "memory_mb": MEMORY_MB}, **fields}
    row |= {"style": "stdin"} if "io" in fields else {"style": "assert", "entry_point": "add"}
    return Canary(name=name, row={"tests": _TESTS, **row}, right=right)
