"""The jinja2 environment of chat templates: the switches of Hugging Face, no way out, and a bound on work and on text.

jinja2's sandbox keeps a template from Python's insides but lets it run for ever and fill the memory. Here every loop step,
call, filter and output is paid for out of one budget, and no single operation may make more text than `MAX_CHARACTERS`.
Called by `text.chat` only. Not a defence of the machine against its own owner: what a message holds reaches the template.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_WORK = 1 << 19  # loop steps, calls, filters and outputs of one rendering, each with 1 more for 256 characters it makes
MAX_CHARACTERS = 1 << 26  # of any text that a template makes
_MULTIPLYING = frozenset(
    {
        "replace",
        "join",
        "translate",
        "center",
        "ljust",
        "rjust",
        "zfill",
        "expandtabs",
        "format",
        "format_map",
        "indent",
        "wordwrap",
        "tojson",
    }
)  # methods and filters whose result can be as long as the product of their arguments
_WIDE = re.compile(r"\d{6}|%[-#0 +\d.]*\*|:[^{}]*\{")  # in a format text: a width of six digits, or one taken from the arguments
_UNSIZED_ITEMS = 100_000  # taken as the length of an iterator; a range is no longer either
_WORK: ContextVar[list[int] | None] = ContextVar("work left to the template now compiled or rendered", default=None)


@contextmanager
def bounded_work() -> Iterator[None]:
    """Within this block templates share one budget of `MAX_WORK`; past it they raise SecurityError."""
    token = _WORK.set([MAX_WORK])
    try:
        yield
    finally:
        _WORK.reset(token)


def environment(date: datetime) -> ImmutableSandboxedEnvironment:
    """A fresh environment whose `strftime_now` tells `date`."""
    made = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_paid)
    made.filters["tojson"] = _to_json
    made.filters = {name: _paid_filter(name, function) for name, function in made.filters.items()}
    made.filters |= {"_counted": _counted, "_paid": _paid}
    made.globals |= {"raise_exception": _raise_exception, "strftime_now": date.strftime, "dict": _Dict(), "namespace": _Namespace}
    del made.globals["lipsum"]
    return made


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Count the steps of each loop, with the text in its body, and the characters of each `~`."""
        for loop in list(source.find_all(nodes.For)):
            written = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
            loop.iter = _filtered(loop.iter, "_counted", written)
        for concat in list(source.find_all(nodes.Concat)):
            concat.nodes = [_filtered(nodes.Concat(concat.nodes, lineno=concat.lineno, environment=concat.environment), "_paid")]
        return super()._generate(source, *args, **kwargs)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - same calls
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)  # jinja2 wraps str.format
        if isinstance(owner, str):
            _check_growth(getattr(obj, "__name__", ""), owner, [*args, *kwargs.values()])
        return _paid(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and not (_is_number(left) and _is_number(right)):
            _check_size(_size(left) * _size(right))
        elif operator in ("**", "*") and _bits(left) * (_bits(right) if operator == "*" else abs(right)) > MAX_CHARACTERS:
            raise SecurityError("a number of the chat template grows too large")
        elif operator == "%" and isinstance(left, str):
            _check_growth("format", left, [right])
        return _paid(super().call_binop(context, operator, left, right))


def _filtered(node: nodes.Node, name: str, *constants: int) -> nodes.Filter:
    arguments = [nodes.Const(constant) for constant in constants]
    made = nodes.Filter(node, name, arguments, [], None, None, lineno=node.lineno)
    return made.set_environment(node.environment)  # type: ignore[return-value] - jinja2 types it as Node


def _counted(items: Iterable[Any], written: int) -> Iterator[Any]:
    for item in items:
        _pay(1 + (written >> 8))
        yield item


def _paid_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    takes_context = hasattr(function, "jinja_pass_arg")

    @wraps(function)  # keeps jinja2's marks
    def paid(*args: Any, **kwargs: Any) -> Any:
        value, *rest = args[1:] if takes_context else args
        _check_growth(name, value, [*rest, *kwargs.values()])
        return _paid(function(*args, **kwargs))

    return paid


def _paid(value: Any) -> Any:
    """`value`, after its cost was taken from the budget."""
    size = len(value) if isinstance(value, str | list | tuple | dict) else 0
    _check_size(size)
    _pay(1 + (size >> 8))
    return value


def _pay(cost: int) -> None:
    left = _WORK.get()
    if left is None:
        return
    left[0] -= cost
    if left[0] < 0:
        raise SecurityError(f"the chat template does more than {MAX_WORK} steps of work")


def _check_growth(name: str, value: Any, arguments: list[Any]) -> None:
    """Refuse, before it is made, a result as long as the product of two long arguments."""
    if name not in _MULTIPLYING:
        return
    lengths = [_size(argument) for argument in arguments]
    if name.startswith("format"):
        if isinstance(value, str) and (wide := _WIDE.search(value)):
            raise SecurityError(f"the chat template formats to a width that may be huge: {wide.group()}")
        lengths = [0 if _is_number(argument) else length for argument, length in zip(arguments, lengths, strict=True)]
    two = sorted([1, 0 if _is_number(value) else _size(value), *lengths])[-2:]
    _check_size(two[1])
    _check_size(two[0] * two[1] >> 2)


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError(f"the chat template makes a text of more than {MAX_CHARACTERS} characters")


def _size(value: Any, *, inside: bool = False) -> int:
    """Characters that `value` may stand for: a number as a width, a list by its texts."""
    if isinstance(value, str):
        return len(value)
    if _is_number(value):
        return 1 if inside else int(min(abs(value), MAX_CHARACTERS * MAX_CHARACTERS))
    if isinstance(value, Mapping):
        return sum(_size(item, inside=True) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return sum(1 + _size(item, inside=True) for item in value)
    return 0 if value is None else _UNSIZED_ITEMS


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON as models have seen it: no HTML escapes (jinja2's own filter writes < as \\u003c)."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Dict:
    """What templates know as `dict`: no type, so nothing of Python's type system hangs on it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """A namespace that takes no name with an underscore in front: such names mean something to Python and to jinja2."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        named = dict(*args[1:], **kwargs)
        for name in named:
            _check_name(name)
        Namespace.__init__(args[0], named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a chat template cannot keep {name!r} in a namespace")


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for other trainers; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
