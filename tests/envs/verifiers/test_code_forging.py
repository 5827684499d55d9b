"""Answers that try to decide their own verdict: every one fails, and for its own reason."""

from collections.abc import Iterator

import pytest

from slipstream.envs.sandbox.records import Limits
from slipstream.envs.sandbox.sandbox import Sandbox
from slipstream.envs.verifiers.code import Reason
from tests.envs.verifiers.code_rows import sandbox, verdict

CHEATS = {
    "exit": ("import sys\ndef add(a, b): sys.exit(0)", {Reason.CHEAT}),
    "exit-loaded": ("quit()", {Reason.CHEAT}),
    "os-exit": ("import os\ndef add(a, b): os._exit(0)", {Reason.CHEAT}),
    "exec": ("import os\ndef add(a, b): os.execvp('true', ['true'])", {Reason.CHEAT}),
    "abort": ("import os\ndef add(a, b): os.abort()", {Reason.CRASH}),
    "atexit": ("import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0", {Reason.CHEAT}),
    "excepthook": ("import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef add(a, b): return 0", {Reason.CHEAT}),
    "finaliser": ("class C:\n def __del__(s):\n  import os\n  os._exit(0)\nc = C()\ndef add(a, b): return 0", {Reason.CHEAT}),
    "thread": (
        "import os, threading, time\ndef late():\n time.sleep(0.05)\n os._exit(0)\nthreading.Thread(target=late).start()\n"
        "def add(a, b):\n time.sleep(3)\n return 5",
        {Reason.CHEAT},
    ),
    "equal-to-all": ("class A:\n def __eq__(s, o): return True\ndef add(a, b): return A()", {Reason.CHEAT}),
    "equal-int": ("class A(int):\n def __eq__(s, o): return True\n __hash__ = int.__hash__\ndef add(a, b): return A(5)", {Reason.CHEAT}),
    "near-to-all": (
        "class A:\n def __sub__(s, o): return 0\n __rsub__ = __sub__\n def __abs__(s): return 0\ndef add(a, b): return A()",
        {Reason.EXCEPTION, Reason.WRONG_ANSWER},
    ),
    "mock": ("from unittest.mock import ANY, MagicMock\ndef add(a, b): return MagicMock(__eq__=lambda s, o: True)", {Reason.CHEAT}),
    "patched-builtins": (
        "import builtins\nfor n in ('len', 'isinstance', 'type', 'set', 'map', 'getattr', 'all', 'any', 'abs', 'exec'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\nbuiltins.AssertionError = Exception\ndef add(a, b): return 0",
        {Reason.WRONG_ANSWER},
    ),
    "patched-os": (
        "import os\nos.read = os.write = lambda *a: b'ok'\nos.getpid = lambda: 1\ndef add(a, b): return 0",
        {Reason.WRONG_ANSWER},
    ),
    "patched-json": (
        "import json, json.decoder\njson.loads = json.dumps = lambda *a, **k: {'passed': True}\ndef add(a, b): return 0",
        {Reason.WRONG_ANSWER},
    ),
    "printed": ('print(\'2 passed\')\ndef add(a, b):\n print(\'{"reason": "ok", "checks": 2}\')\n return 0', {Reason.WRONG_ANSWER}),
    "descriptors": (
        'import os\nfor fd in range(1, 256):\n try: os.write(fd, b\'{"reason": "ok", "detail": "", "checks": 9}\')\n'
        " except OSError: pass\ndef add(a, b): return 0",
        {Reason.WRONG_ANSWER, Reason.CHEAT},
    ),
    "descriptors-closed": ("import os\nos.closerange(3, 4096)\ndef add(a, b): return 5", {Reason.CRASH}),
    "own-end": (
        "import gc\ndef add(a, b):\n peer = next(o for o in gc.get_objects() if type(o).__name__ == 'Peer')\n"
        " for name in ('tests', 'checks', 'names', '__counted__', 'wanted'):\n  try: return peer.ask('name', 0, name)\n"
        "  except NameError: pass\n"
        " return peer.ask('call', 0)",
        {Reason.EXCEPTION, Reason.WRONG_ANSWER, Reason.CHEAT},
    ),
    "frames": (
        "import gc, sys\ndef add(a, b):\n text = repr(gc.get_objects())\n f = sys._getframe()\n"
        " while f:\n  text += repr(f.f_locals); f = f.f_back\n"
        " return 5 if 'add(2, 3)' in text else 0",
        {Reason.WRONG_ANSWER, Reason.CHEAT},
    ),
    "memory": (
        "def add(a, b):\n for line in open('/proc/self/maps'):\n  low, _, rest = line.partition('-')\n  if ' rw' not in rest: continue\n"
        "  with open('/proc/self/mem', 'rb') as f:\n   f.seek(int(low, 16))\n"
        "   if b'add(2,' + b' 3) ==' in f.read(int(rest.split()[0], 16) - int(low, 16)): return 5\n return 0",
        {Reason.WRONG_ANSWER, Reason.EXCEPTION, Reason.TIMEOUT},  # there is much to read, and a busy machine may not get through
    ),
    "files": (
        "import os\ndef add(a, b):\n for root, _, names in os.walk('/tmp'):\n  for name in names:\n"
        "   if 'add(2' in open(os.path.join(root, name)).read():\n"
        "    return 5\n return 0",
        {Reason.CHEAT},
    ),
    "kill-all": (
        "import os\ndef add(a, b):\n try: os.kill(-1, 9)\n except OSError: pass\n return 0",
        {Reason.CHEAT, Reason.WRONG_ANSWER, Reason.CRASH},
    ),
    "signal-all": (
        "import os\ndef add(a, b):\n for pid in range(1, 64):\n  for number in (10, 19, 9):\n   if pid != os.getpid():\n"
        "    try: os.kill(pid, number)\n    except OSError: pass\n return 0",
        {Reason.CHEAT, Reason.WRONG_ANSWER},
    ),
    "forked-answers": ("import os\ndef add(a, b):\n for n in range(20):\n  if os.fork() == 0: return n\n return 0", {Reason.WRONG_ANSWER}),
}
TESTS = ("assert add(2, 3) == 5", "try:\n    assert abs(add(1, 1) - 2) < 1e-9\nexcept ArithmeticError:\n    raise")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with sandbox() as box:
        yield box


@pytest.mark.parametrize("name", CHEATS)
def test_a_forged_verdict_does_not_count(box: Sandbox, name: str) -> None:
    code, reasons = CHEATS[name]
    found = verdict(box, code, *TESTS, entry_point="add")
    assert found.reason in reasons, found
    assert found.outcome().reward == 0.0


def test_a_cheat_is_not_forgotten_when_the_test_swallows_it(box: Sandbox) -> None:
    code = "class A:\n def __eq__(s, o): return True\ndef add(a, b): return A() if a else b"
    swallowing = "try:\n    assert add(2, 3) == 5\nexcept BaseException:\n    pass"
    assert verdict(box, code, swallowing, "assert add(0, 1) == 1").reason is Reason.CHEAT
    gone = "import os\ndef add(a, b):\n if a: os._exit(0)\n return b"
    assert verdict(box, gone, swallowing, "assert True").reason is Reason.CHEAT


def test_nothing_is_verified_without_a_check_of_the_answer(box: Sandbox) -> None:
    gold = "def add(a, b): return a + b"
    for tests in (
        (),
        ("pass",),
        ("assert True", "assert 1 + 1 == 2"),
        ("for a in []:\n    assert add(a, a) == 2 * a",),
        ("add(1, 1)",),
        ("def check(",),
    ):
        found = verdict(box, gold, *tests, entry_point="add")
        assert found.reason is Reason.NO_CHECK, (tests, found)
        assert found.outcome().reward is None
    assert verdict(box, gold, "total = add(1, 1)", "assert total == 2").checks == 1


def test_a_slow_test_is_not_the_answers_fault(box: Sandbox) -> None:
    limits = Limits(seconds=0.5, memory_mb=512)
    found = verdict(box, "def add(a, b): return a + b", "while add(1, 1) == 2:\n    pass\n    while True: pass", limits=limits)
    assert found.reason is Reason.SLOW_TEST
    assert found.outcome().reward is None
    assert verdict(box, "def add(a, b):\n while True: pass", "assert add(1, 1) == 2", limits=limits).outcome().reward == 0.0
