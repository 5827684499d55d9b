"""Tests run in another interpreter than the answer, and notice nothing of it: values, changes, objects, errors come across."""

from collections.abc import Iterator

import pytest

from slipstream.envs.sandbox.sandbox import Sandbox
from slipstream.envs.verifiers.code import Reason
from tests.envs.verifiers.code_rows import sandbox, verdict

ANSWER = """
import collections, datetime, decimal, fractions, functools
from dataclasses import dataclass

class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next

@dataclass
class Point:
    x: int
    y: int

class Words(list): pass
class Account:
    total = 0
    def pay(self, n): self.total += n; return self
    def __len__(self): return self.total
    def __getitem__(self, key): return key * 2
    def __iter__(self): return iter(range(self.total))

Pair = collections.namedtuple("Pair", "a b")
class Own(ValueError): pass

def same(x): return x
def sorts(xs): xs.sort()
def grow(d): d["k"] = [1]; d.setdefault("xs", []).append(2); return d["xs"]
def apply(f, /, *xs, **named): return f(*xs, **named)
def count(n): yield from range(n)
def fails(kind): raise {"own": Own, "value": ValueError, "key": KeyError, "stop": StopIteration}[kind]("because")
def adder(n): return lambda m: n + m
def chain(n): return functools.reduce(lambda node, value: Node(value, node), range(n), None)
def first(node): return node.value
def loop(): xs = []; xs.append(xs); return xs
def big(): return 10 ** 1_000_000
async def later(x): return x + 1
def sum(a, b): return a + b
"""
TESTS = [
    "for x in [0, -1, 2**70, True, None, 1.5, float('inf'), 'é\\ud800', b'\\xff', 1j, [], [1, [2, (3,)]], {1: {2}}, {(1, 2): 'a'},\n"
    "        frozenset([1])]:\n"
    "    assert same(x) == x and type(same(x)) is type(x)",
    "import collections, datetime, decimal, fractions\nfor x in [collections.Counter('aab'), collections.deque([1, 2], 5), \n"
    "        collections.OrderedDict(a=1),\n"
    "        collections.defaultdict(list, a=[1]), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3), datetime.timedelta(1, 2),\n"
    "        decimal.Decimal('0.1'), fractions.Fraction(1, 3), range(1, 9, 2), bytearray(b'ab'), slice(1, 2)]:\n"
    "    assert same(x) == x and type(same(x)) is type(x), x",
    "assert same(float('nan')) != same(float('nan'))",
    "import numpy as np\nassert (same(np.arange(6).reshape(2, 3)) == np.arange(6).reshape(2, 3)).all()\n"
    "assert same(np.float32(2)).dtype == np.float32",
    "xs = [3, 1, 2]\nassert sorts(xs) is None and xs == [1, 2, 3]",
    "d = {'k': 0}\nys = grow(d)\nassert d == {'k': [1], 'xs': [2]} and d['xs'] is ys",
    "xs = [1]\nassert same(xs) is xs and same([xs, xs])[0] is xs",
    "assert apply(lambda a, b=0: a * b, 3, b=4) == 12 and apply(max, [1, 5]) == 5 and apply(sorted, 'ba') == ['a', 'b']",
    "calls = []\napply(lambda x: calls.append(x), 7)\nassert calls == [7]",
    "assert list(count(4)) == [0, 1, 2, 3] and next(count(1)) == 0 and 2 in count(5) and tuple(map(str, count(2))) == ('0', '1')",
    "assert adder(3)(4) == 7",
    "names = dict.fromkeys(('target', 'operation', 'value', 'remote', 'self', 'name'), 1)\n"
    "assert apply(lambda **named: named, **names) == names",
    "assert Pair(1, 2) == (1, 2) and Pair(1, 2).b == 2",
    "a = Account()\nassert a.pay(3).pay(4).total == 7 and len(a) == 7 and a[4] == 8\n"
    "assert list(a) == list(range(7)) and isinstance(a, Account)",
    "a = Account()\na.total = 9\nassert a.total == 9 and a is not Account() and a == a and a != 9",
    "assert Point(1, 2) == Point(1, 2) and Point(1, 2) != Point(1, 3) and str(Point(1, 2)) == 'Point(x=1, y=2)'",
    "assert first(Node(Node(1))).value == 1",
    "n = chain(50)\nseen = []\nwhile n:\n    seen.append(n.value)\n    n = n.next\nassert seen == list(range(50))[::-1]",
    "xs = loop()\nassert xs[0] is xs\nfor x in (big(), [big(), -1], [(1, -big())], {big(): 2.0, None: 1}):\n    assert same(x) == x"
    "\nassert big() == 10 ** 1_000_000",
    "import asyncio\nasync def both(): return await asyncio.gather(later(1), later(2))\nassert asyncio.run(both()) == [2, 3]",
    "for kind, error in (('value', ValueError), ('own', ValueError), ('key', LookupError),\n"
    "        ('stop', StopIteration)):\n"
    "    try:\n        fails(kind)\n    except error as caught:\n"
    "        assert 'because' in str(caught)\n    else:\n        assert same(False)",
    "try:\n    same(Point)(1)\nexcept TypeError:\n    pass\nassert same(1) == 1",
    "assert [sum(a, 1) for a in [1, 2]] == [2, 3]",
    "assert same([(n, str(n)) for n in range(3)]) == [(0, '0'), (1, '1'), (2, '2')] and type(same([(1,)])[0]) is tuple",
    "class Mine:\n    x = 3\n    def __init__(self): self.y = 4\nm = Mine()\nassert apply(lambda o: o.x + o.y, m) == 7 and same(m) is m",
]


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with sandbox() as box:
        yield box


def test_values_go_both_ways(box: Sandbox) -> None:
    """All of it in one cell; the first that does not hold is named."""
    found = verdict(box, ANSWER, *TESTS, entry_point="sum")
    assert found.reason is Reason.OK, found
    assert found.checks >= len(TESTS)


@pytest.mark.parametrize(
    "test",
    [
        "assert same([1]) == (1,)",
        "assert sorts([2, 1])",
        "assert Point(1, 2) == (1, 2)",
        "assert count(2) == [0, 1]",
        "assert same('1') == 1",
    ],
)
def test_what_is_not_equal_stays_so(box: Sandbox, test: str) -> None:
    found = verdict(box, ANSWER, test, entry_point="same")
    assert found.reason in (Reason.WRONG_ANSWER, Reason.CHEAT), found


def test_classes_of_the_prelude_are_shared(box: Sandbox) -> None:
    """Linked lists go by value, a thousand long, even where the answer defines the class anew; absent packages matter only when used."""
    prelude = (
        "from absent_package import Absent\nclass ListNode:\n    def __init__(self, val=0, next=None): self.val, self.next = val, next\n"
    )
    prelude += "def listed(node): return [] if node is None else [node.val, *listed(node.next)]\n"
    prelude += "def made(values):\n    head = None\n    for v in reversed(values): head = ListNode(v, head)\n    return head\n"
    code = "{}class Solution:\n    def rev(self, node):\n        head = None\n"
    code += "        while node: node.next, head, node = head, node, node.next\n        return head"
    test = "assert listed(Solution().rev(made(list(range(1000))))) == list(range(1000))[::-1]"
    anew = "class ListNode:\n    pass\n"
    for opening in ("", anew):
        assert verdict(box, code.format(opening), test, entry_point="Solution().rev", prelude=prelude).reason is Reason.OK
    lacking = verdict(box, "def f(): return Absent()", "assert f()", entry_point="f", prelude=prelude)
    assert (lacking.reason, lacking.outcome().reward) == (Reason.LACKING, None)
    own = verdict(box, "import absent_package\ndef f(): return 1", "assert f() == 1", entry_point="f")
    assert (own.reason, own.outcome().reward) == (Reason.MISSING_MODULE, 0.0)
