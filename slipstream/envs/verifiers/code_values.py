"""Values between the judge's interpreter and the program's: by value where the type is known, else as a handle that stays where it is.

Nothing of the sender's runs in the receiver: a list subclass that equals everything arrives as a plain list or as a handle, never
as code. A message is a table of nodes, so shared and circular structures keep their shape and depth costs no stack. Its numbers
are kept for the reply, which tells what the callee changed in the caller's lists, dicts and objects, as a call in one interpreter would.
Imported by `code_peer`; has builtins of its own because a program may replace those of its interpreter.
"""

import builtins
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from re import compile as pattern
from sys import modules
from typing import Any, Protocol

from slipstream.envs.verifiers.code_faults import Garbled

__builtins__ = dict(vars(builtins))

LARGE_BITS = 512
SCALARS = {type(None), bool, int, float, str}
COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, int, float, str, tuple, bool)}
_NUMPY_TYPE = pattern(r"[<>|=][biufcSU]\d+")
_CONSTANTS = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
_MUTABLE = {"list", "set", "dict", "defaultdict", "OrderedDict", "Counter", "deque", "bytearray", "object"}


class Owner(Protocol):
    """What packing needs of the peer it works for."""

    shared: dict[str, type]

    def handle(self, value: Any) -> list[Any]: ...
    def held(self, node: list[Any]) -> Any: ...
    def number_of(self, value: Any) -> int | None: ...


class Packer:
    """Turns values into nodes. `known`: objects by their numbers in the message this one answers."""

    def __init__(self, owner: Owner, known: list[Any] | None = None) -> None:
        self.owner = owner
        self.objects = list(known or ())  # by number; also keeps them alive, so that ids stay theirs
        self.first = len(self.objects)
        self.nodes: list[Any] = []
        self._numbers = {id(value): number for number, value in enumerate(self.objects)}
        self._done = 0

    def item(self, value: Any) -> Any:
        """A scalar as it is; anything else as [number]."""
        if type(value) in SCALARS and not (type(value) is int and _is_large(value)):
            return value
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return [number]

    def items(self, values: Any) -> Any:
        """One item a value; many tuples of scalars go as they are, because answers return millions of them."""
        values = list(values)
        kinds = set(map(type, values))
        if kinds <= SCALARS and not _some_large(values, kinds):
            return values
        if kinds == {tuple}:
            inner = list(chain.from_iterable(values))
            if (kinds := set(map(type, inner))) <= SCALARS and not _some_large(inner, kinds):
                return {"tuples": [list(value) for value in values]}
        return [self.item(value) for value in values]

    def finish(self) -> list[Any]:
        """The nodes of everything met so far and of what they contain."""
        while self._done < len(self.objects) - self.first:
            self.nodes.append(self.node(self.objects[self.first + self._done]))
            self._done += 1
        return self.nodes

    def node(self, value: Any) -> list[Any]:
        kind = type(value)
        if kind in _PACK:
            return _PACK[kind](self, value)
        number = self.owner.number_of(value)
        if number is not None:
            return ["yours", number]
        if "numpy" in modules and kind.__module__ == "numpy" and (node := _numpy_node(self, value)):
            return node
        name = kind.__name__
        if name in self.owner.shared and issubclass(kind, object) and hasattr(value, "__dict__"):
            state = vars(value)
            return ["object", name, list(state), self.items(state.values())]
        if isinstance(value, tuple) and (fields := getattr(kind, "_fields", None)) and _plain(kind, tuple):
            return ["namedtuple", name, list(fields), self.items(tuple.__iter__(value))]
        for base, unwrap in _BASES:
            if isinstance(value, base) and _plain(kind, base):
                plain = unwrap(value)
                return ["scalar", self.item(plain)] if base in SCALARS else _PACK[base](self, plain)
        if isinstance(value, type) and value.__module__ == "builtins":
            return ["type", value.__name__]
        return self.owner.handle(value)


class Unpacker:
    """Turns nodes into values. `known` as in `Packer`. Raises Garbled."""

    def __init__(self, owner: Owner, nodes: list[Any], known: list[Any] | None = None) -> None:
        self.owner, self.nodes = owner, nodes
        self.first = len(known or ())
        self.made: dict[int, Any] = dict(enumerate(known or ()))
        try:
            mutable = [(number, node) for number, node in enumerate(nodes, self.first) if node[0] in _MUTABLE]
            for number, node in mutable:
                self.made[number] = self._shell(node)
            for number, node in mutable:
                self.fill(self.made[number], node)
            self.objects = [self.value([number]) for number in range(self.first + len(nodes))]
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError, ImportError) as error:
            raise Garbled(f"{type(error).__name__}: {error}") from None

    def value(self, item: Any) -> Any:
        if type(item) is not list:
            return item
        (number,) = item
        if number not in self.made:
            self.made[number] = self._immutable(self.nodes[number - self.first])
        return self.made[number]

    def values(self, items: Any) -> list[Any]:
        if type(items) is dict:
            return [tuple(value) for value in items["tuples"]]
        return [self.value(item) if type(item) is list else item for item in items]

    def fill(self, shell: Any, node: list[Any]) -> None:
        """Make a container hold what its node says, in place."""
        kind = node[0]
        if kind == "object":
            state = vars(shell)
            state.clear()
            state.update(zip(map(str, node[2]), self.values(node[3]), strict=True))
        elif kind in ("list", "bytearray"):
            shell[:] = self.values(node[1]) if kind == "list" else node[1].encode("latin-1")
        elif kind in ("set", "deque"):
            shell.clear()
            (shell.update if kind == "set" else shell.extend)(self.values(node[1]))
        else:
            shell.clear()
            dict.update(shell, zip(self.values(node[1]), self.values(node[2]), strict=True))

    def _shell(self, node: list[Any]) -> Any:
        kind = node[0]
        if kind == "object":
            return object.__new__(self.owner.shared[node[1]])
        if kind == "defaultdict":
            return defaultdict(_FACTORIES.get(node[3]))
        if kind == "deque":
            return deque(maxlen=node[2])
        makers = {"list": list, "set": set, "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "bytearray": bytearray}
        return makers[kind]()

    def _immutable(self, node: list[Any]) -> Any:
        kind, *rest = node
        if kind in _UNPACK:
            return _UNPACK[kind](self, *rest)
        return self.owner.held(node)


def _is_large(value: int) -> bool:
    """Whether a number goes in hexadecimal: decimal digits of long ones take a time that grows with their square."""
    return value.bit_length() > LARGE_BITS


def _some_large(values: list[Any], kinds: set[type]) -> bool:
    if int not in kinds:
        return False
    numbers = values if kinds == {int} else [value for value in values if type(value) is int]
    return _is_large(max(numbers)) or _is_large(min(numbers))


def is_mutable(node: list[Any]) -> bool:
    return node[0] in _MUTABLE


def _plain(kind: type, base: type) -> bool:
    """Whether a subclass compares as its base does."""
    return all(getattr(kind, name) is getattr(base, name) for name in (*COMPARISONS, "__hash__"))


def _dict_node(kind: str) -> Any:
    return lambda packer, value: [kind, packer.items(value.keys()), packer.items(value.values())]


def _sequence_node(kind: str) -> Any:
    return lambda packer, value: [kind, packer.items(value)]


def _default_node(packer: Packer, value: Any) -> list[Any]:
    name = getattr(value.default_factory, "__name__", "")
    return ["defaultdict", packer.items(value.keys()), packer.items(value.values()), name if name in _FACTORIES else ""]


def _numpy_node(packer: Packer, value: Any) -> list[Any] | None:
    numpy = modules["numpy"]
    if not isinstance(value, (numpy.ndarray, numpy.generic)) or not _NUMPY_TYPE.fullmatch(value.dtype.str):
        return None
    flat = numpy.asarray(value).ravel().tolist()
    return ["numpy", value.dtype.str, list(value.shape), packer.items(flat), isinstance(value, numpy.generic)]


def _numpy_value(unpacker: Unpacker, dtype: str, shape: list[int], items: list[Any], scalar: bool) -> Any:
    import numpy

    if not _NUMPY_TYPE.fullmatch(dtype):
        raise ValueError(dtype)
    found = numpy.array(unpacker.values(items), dtype=dtype).reshape(shape)
    return found[()] if scalar else found


def _named(unpacker: Unpacker, name: str, fields: list[str], items: list[Any]) -> Any:
    return namedtuple(name, fields)(*unpacker.values(items))


def _type_named(_: Unpacker, name: str) -> type:
    found = vars(builtins)[name]
    if not isinstance(found, type):
        raise TypeError(name)
    return found


_PACK: dict[type, Any] = {
    int: lambda _, value: ["int", hex(value)],
    list: _sequence_node("list"),
    tuple: _sequence_node("tuple"),
    set: _sequence_node("set"),
    frozenset: _sequence_node("frozenset"),
    dict: _dict_node("dict"),
    OrderedDict: _dict_node("OrderedDict"),
    Counter: _dict_node("Counter"),
    defaultdict: _default_node,
    deque: lambda packer, value: ["deque", packer.items(value), value.maxlen],
    bytes: lambda _, value: ["bytes", value.decode("latin-1")],
    bytearray: lambda _, value: ["bytearray", value.decode("latin-1")],
    complex: lambda _, value: ["complex", value.real, value.imag],
    range: lambda _, value: ["range", value.start, value.stop, value.step],
    slice: lambda packer, value: ["slice", packer.items((value.start, value.stop, value.step))],
    Fraction: lambda _, value: ["Fraction", value.numerator, value.denominator],
    Decimal: lambda _, value: ["Decimal", str(value)],
    date: lambda _, value: ["date", value.isoformat()],
    datetime: lambda _, value: ["datetime", value.isoformat()],
    time: lambda _, value: ["time", value.isoformat()],
    timedelta: lambda _, value: ["timedelta", value.days, value.seconds, value.microseconds],
    array: lambda _, value: ["array", value.typecode, value.tolist()],
    type({}.keys()): _sequence_node("keys"),
    type({}.values()): _sequence_node("dict_values"),
    type({}.items()): lambda packer, value: ["dict_items", packer.items(key for key, _ in value), packer.items(item for _, item in value)],
    type(Ellipsis): lambda _, value: ["constant", "Ellipsis"],
    type(NotImplemented): lambda _, value: ["constant", "NotImplemented"],
}
_UNPACK: dict[str, Any] = {
    "tuple": lambda unpacker, items: tuple(unpacker.values(items)),
    "frozenset": lambda unpacker, items: frozenset(unpacker.values(items)),
    "bytes": lambda _, text: text.encode("latin-1"),
    "complex": lambda _, real, imaginary: complex(real, imaginary),
    "range": lambda _, start, stop, step: range(start, stop, step),
    "slice": lambda unpacker, items: slice(*unpacker.values(items)),
    "Fraction": lambda _, numerator, denominator: Fraction(numerator, denominator),
    "Decimal": lambda _, text: Decimal(text),
    "date": lambda _, text: date.fromisoformat(text),
    "datetime": lambda _, text: datetime.fromisoformat(text),
    "time": lambda _, text: time.fromisoformat(text),
    "timedelta": lambda _, days, seconds, microseconds: timedelta(days, seconds, microseconds),
    "array": lambda _, code, items: array(code, items),
    "keys": lambda unpacker, items: dict.fromkeys(unpacker.values(items)).keys(),
    "dict_values": lambda unpacker, items: dict(enumerate(unpacker.values(items))).values(),
    "dict_items": lambda unpacker, keys, items: dict(zip(unpacker.values(keys), unpacker.values(items), strict=True)).items(),
    "constant": lambda _, name: _CONSTANTS[name],
    "scalar": lambda unpacker, item: unpacker.value(item),
    "int": lambda _, text: int(text, 16),
    "namedtuple": _named,
    "numpy": _numpy_value,
    "type": _type_named,
}
_BASES: tuple[tuple[type, Any], ...] = (
    (int, lambda value: int.__add__(value, 0)),
    (float, lambda value: float.__add__(value, 0.0)),
    (str, str.__str__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (list, lambda value: list(list.__iter__(value))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (dict, lambda value: dict(zip(dict.keys(value), dict.values(value), strict=True))),
)
