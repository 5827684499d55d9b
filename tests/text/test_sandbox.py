"""A chat template of strangers can neither reach out, nor change its input, nor run for ever, nor fill the memory."""

import copy
import enum
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from slipstream.core.errors import UsageError
from slipstream.text.chat import compile_template
from tests.text.templates import CHATML, QWEN3

USER: list[Mapping[str, Any]] = [{"role": "user", "content": "Hi", "parts": [1, 2], "none": None}]

ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for a in [1, 2, 3] recursive %}{% if loop.depth < 90 %}{{ loop([1, 2, 3]) }}{% endif %}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | sum }}{% for b in range(30) %}{{ range(99999) | list }}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set n = namespace(v=9) %}{% for a in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}",
    "{{ lipsum(n=99999999) }}",
]
HUGE = [
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'a' }}",
    "{{ [0] * 10 ** 10 }}",
    "{{ 'a' | center(10 ** 10) }}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{{ 'a'.zfill(width) }}",
    "{{ 'a\tb'.expandtabs(10 ** 10) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '%*d' % (9999999999, 1) }}",
    "{{ '%9999999999d' | format(1) }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 9999999999) }}",
    "{{ '{x:>{y}}'.format_map({'x': 1, 'y': 9999999999}) }}",
    "{{ [1] | tojson(indent=10 ** 10) }}",
    "{{ 'a\nb' | indent(10 ** 10) }}",
    "{% set b = 'a' * 60000000 %}{{ b.replace('a', b) }}",
    "{% set b = 'a' * 60000000 %}{{ b | replace('a', b) }}",
    "{% set b = 'a' * 60000000 %}{{ b.join(b) }}",
    "{% set b = 'a' * 60000000 %}{{ range(9999) | map('string') | join(b) }}",
    "{% set b = 'a' * 60000000 %}{{ [b, b, b, b] | join }}",
    "{% set b = 'a' * 60000000 %}{{ b.translate({97: b}) }}",
    "{% set n = namespace(v='a') %}{% for a in range(99) %}{% set n.v = n.v ~ n.v %}{% endfor %}",
    "{% set n = namespace(v='a') %}{% for a in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "{% set n = namespace(v=[1]) %}{% for a in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "{% set n = namespace(v='a') %}{% for a in range(99) %}{% set n.v = '%s%s' % (n.v, n.v) %}{% endfor %}",
    "{% set n = namespace(v='a') %}{% for a in range(99) %}{% set n.v = [n.v, n.v] | join %}{% endfor %}",
    "{% set b = 'a' * 60000000 %}{% for a in range(99) %}{{ b }}{% endfor %}",
    "{% set b = 'a' * 60000000 %}{% set c %}{% for a in range(99) %}{{ b }}{% endfor %}{% endset %}",
    "{% set b = 'a' * 60000000 %}{% macro f() %}{% for a in range(99) %}{{ b }}{% endfor %}{% endmacro %}{% set c = f() %}",
    "{% set c %}{% for a in range(99999) %}" + "text" * 10_000 + "{% endfor %}{% endset %}",
]
ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ ('{0.__class__}' | attr('format'))('') }}",
    "{{ ['{0.__class__}'.format] | map('attr', '__call__') | list }}{{ [''] | map('format') | map(attribute='__class__') | list }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__self__ }}",
    "{{ range.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.mro() }}",
    "{{ dict.__subclasses__() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__init__.__globals__ }}",
]
CHANGES = [
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].parts.sort() }}",
    "{{ messages[0].setdefault('x', 1) }}",
    "{% set messages[0].role = 'system' %}",
    "{% set n = namespace(__class__=1) %}",
    "{% set n = namespace() %}{% set n.__html__ = 1 %}",
    "{% set n = namespace({'_x': 1}) %}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
]
STOPPED = "steps of work|too large|maximum recursion|'lipsum' is undefined|more than 67108864 characters"
CAUSES = [(ENDLESS, STOPPED), (HUGE, "characters|too large|width|steps of work"), (CHANGES, ".")]
KINDS = [(source, cause) for sources, cause in CAUSES for source in sources]


@pytest.mark.parametrize("source", ESCAPES)
def test_nothing_of_pythons_insides_is_seen(source: str) -> None:
    """What the sandbox hides is undefined: it can be neither used (an error) nor written (no text)."""
    try:
        text = compile_template(source).render(USER)
    except UsageError as error:
        text = str(error).partition("refused the messages: ")[2]
        assert any(words in text for words in ("unsafe", "undefined", "has no attribute", "not ")), text
    else:
        assert text in ("", "[Undefined][Undefined]")


@pytest.mark.parametrize(("source", "cause"), KINDS, ids=range(len(KINDS)))
def test_it_ends_soon_with_an_error_and_leaves_the_messages(source: str, cause: str) -> None:
    """Compiling is part of it: jinja2 works out constants then."""
    messages, started = copy.deepcopy(USER), time.monotonic()
    with pytest.raises(UsageError, match=cause):
        compile_template(source).render(messages, width=10**10)
    assert time.monotonic() - started < 20
    assert messages == USER


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 9999 + ")" * 9999 + " }}", "{% if 1 %}" * 300 + "{% endif %}" * 300, "{% for a in b %}" * 30]
)
def test_a_template_too_deep_for_python_is_not_valid(source: str) -> None:
    with pytest.raises(UsageError, match="not valid"):
        compile_template(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 3 * 4 }} {{ 2 ** 10 }} {{ 7 % 4 }} {{ 1.5 * 2 }} {{ [1] * 2 }} {{ 'ab' * 2 }}", "12 1024 3 3.0 [1, 1] abab"),
        (
            "{{ '%05d|%s' % (42, 'x') }} {{ '%s' | format(10 ** 12) }} {{ '{}-{:>4}'.format(10 ** 12, 7) }}",
            "00042|x 1000000000000 1000000000000-   7",
        ),
        ("{{ (10 ** 12) | tojson }} {{ {'a': 10 ** 12} | tojson(indent=2) }}", '1000000000000 {\n  "a": 1000000000000\n}'),
        ("{{ 'a' ~ 1 ~ none }} {{ 'a-b' | replace('-', '+') }} {{ ['x', 'y'] | join(', ') }}", "a1None a+b x, y"),
        (
            "{% for a in 'xyz' %}{{ loop.index }}/{{ loop.length }}{{ loop.nextitem }}{{ ';' if not loop.last }}{% endfor %}",
            "1/3y;2/3z;3/3",
        ),
        ("{% for a in [] %}x{% else %}none{% endfor %}{% for a in nothing %}x{% endfor %}", "none"),
        ("{% for a in [[1, [2]], 3] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}", "123"),
        ("{% for k, v in messages[0].items() if k != 'parts' %}{{ k }}={{ v }};{% endfor %}", "role=user;content=Hi;"),
        ("{% set n = namespace(a=1) %}{% for i in range(3) %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}{{ dict(x=1).x }}", "41"),
        ("{{ [3, 1] | sort | map('string') | list }} {{ messages | map(attribute='role') | first }}", "['1', '3'] user"),
        ("{{ dict.fromkeys(['a']) }} {{ messages[0].none is defined }}", "{'a': None} False"),
    ],
)
def test_bounds_change_nothing_in_what_templates_do(source: str, text: str) -> None:
    assert compile_template(source).render(USER) == text


def test_a_long_conversation_is_within_bounds() -> None:
    """1,000 turns of 1,000 characters each, in a template that looks at all of them twice."""
    messages = [{"role": role, "content": "word " * 200} for _ in range(1000) for role in ("user", "assistant")]
    for source in (CHATML, QWEN3):
        assert len(compile_template(source).render(messages)) > 2_000_000
    assert len(compile_template("{{ messages[0].content.replace('a', 'b') }}").render([{"content": "a" * 8_000_000}])) == 8_000_000


class Role(str, enum.Enum):  # noqa: UP042 - the kind whose str() is not its value
    USER = "user"


class Count(enum.IntEnum):
    TWO = 2


class Text(str):
    def shout(self) -> str:
        return "out"


def test_values_reach_the_template_as_plain_data() -> None:
    messages = [MappingProxyType({"role": Role.USER, "n": Count.TWO, "text": Text("x"), "list": ("a", True, 1.5)})]
    template = compile_template("{{ messages[0].role }} {{ messages[0].n }} {{ messages[0].list }} {{ messages[0].text.shout is defined }}")
    assert template.render(messages) == "user 2 ['a', True, 1.5] False"


@pytest.mark.parametrize("value", [np.arange(3), Path("x"), object(), open, b"x", {1, 2}, np.int64(3)])
@pytest.mark.parametrize("place", ["message", "nested", "variable", "tool"])
def test_an_object_with_methods_is_refused(value: object, place: str) -> None:
    """A template could call them: `ids.tofile(...)`, `path.unlink()`."""
    template = compile_template("{{ messages }}{{ tools }}{{ x }}")
    given: dict[str, Any] = {
        "message": {"messages": [{"role": "user", "content": value}]},
        "nested": {"messages": [{"role": "user", "content": [{"image": value}]}]},
        "variable": {"messages": USER, "x": value},
        "tool": {"messages": USER, "tools": [{"f": value}]},
    }[place]
    with pytest.raises(UsageError, match="a chat template takes only texts, numbers, lists and mappings"):
        template.render(**given)


def test_the_place_of_a_value_is_told() -> None:
    with pytest.raises(UsageError, match=r"^messages\[0\]\.content\[1\]\.image is a bytes;"):
        compile_template("x").render([{"role": "user", "content": ["a", {"image": b""}]}])
    with pytest.raises(UsageError, match=r"^messages\[0\]\.content holds half of a surrogate pair"):
        compile_template("x").render([{"role": "user", "content": "\ud83d"}])


def test_each_rendering_has_its_own_budget_in_any_thread() -> None:
    template = compile_template("{% for a in range(99999) %}{% for b in range(3) %}{% endfor %}{% endfor %}done")
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(template.render(USER))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [*texts, template.render(USER)] == ["done"] * 4
