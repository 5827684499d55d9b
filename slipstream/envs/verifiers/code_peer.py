"""The two ends of the channel between judge and program: requests and replies.

Both ends run this code, in interpreters of their own. The judge trusts nothing that comes in: a reply can say what the program
returned and nothing else. Imported by `code_judge` and `code_subject`.
"""

import builtins
import operator
from _json import encode_basestring_ascii, make_encoder, make_scanner
from asyncio import run as run_coroutine
from json.decoder import JSONDecoder
from os import _exit as exit_now
from os import getpid, read, write
from types import CoroutineType
from typing import Any

from slipstream.envs.verifiers.code_faults import Cheat, Garbled, Gone, exception_of, told
from slipstream.envs.verifiers.code_remote import Remote, coroutine_of
from slipstream.envs.verifiers.code_values import COMPARISONS, Packer, Unpacker, is_mutable

__builtins__ = dict(vars(builtins))

LENGTH_DIGITS = 12
MAX_MESSAGE = 1 << 28  # bytes; a value that needs more counts as memory run out
_scan = make_scanner(JSONDecoder())  # pyright: ignore[reportArgumentType] - any object with a decoder's fields


def _unknown(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} in a message")


_encode = make_encoder(None, _unknown, encode_basestring_ascii, None, ":", ",", False, False, True)


def _text(message: dict[str, Any]) -> bytes:
    return "".join(_encode(message, 0)).encode()


class Peer:
    """One end. `token` marks messages: whatever else is written into the channel is passed over."""

    def __init__(self, channel: int, token: bytes, trusting: bool) -> None:
        self.shared: dict[str, type] = {}  # classes both ends have, by name; their instances go by value
        self.calls = 0  # replies had
        self.waiting = False
        self.fault: Gone | Cheat | None = None  # the first
        self.names: dict[str, Any] = {}  # what the other end may ask for by name
        self._channel, self._token, self._trusting = channel, token, trusting
        self._buffer = bytearray()
        self._handles: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._asked = 0
        self._pid = getpid()

    def ask(self, operation: str, target: int, /, *arguments: Any, **named: Any) -> Any:
        """Have the other end do something with its value `target`; what it changed in the arguments is changed here too."""
        packer = Packer(self)
        root = packer.item([operation, target, list(arguments), named])
        self._asked += 1
        asked = self._asked
        nodes = packer.finish()
        self._send({"q": asked, "n": nodes, "v": root})
        while True:
            message = self._receive()
            if "q" in message:
                self._answer(message)
            elif message.get("r") == asked:
                break
        self.calls += 1
        if "x" in message:
            raise exception_of(*message["x"])
        unpacker = Unpacker(self, message["n"], packer.objects)
        for number, node in message["s"].items():
            unpacker.fill(packer.objects[int(number)], node)
        return unpacker.value(message["v"])

    def serve(self) -> None:
        """Answer until the other end says "end" or is gone."""
        while True:
            message = self._receive()
            if message.get("q") == 0:
                return
            if "q" in message:
                self._answer(message)

    def end(self) -> None:
        """Tell the other end to stop serving."""
        self._send({"q": 0})

    def handle(self, value: Any) -> list[Any]:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._handles)
            self._handles.append(value)
        own_comparison = any(getattr(type(value), name) is not getattr(object, name) for name in COMPARISONS)
        return ["handle", number, type(value).__name__, own_comparison, isinstance(value, CoroutineType)]

    def held(self, node: list[Any]) -> Any:
        if node[0] == "yours":
            return self._handles[node[1]]
        if node[0] != "handle":
            raise ValueError(f"node {node[0]!r}")
        remote = Remote(self, node[1], str(node[2]), bool(node[3]))
        return coroutine_of(remote) if node[4] else remote

    def number_of(self, value: Any) -> int | None:
        return object.__getattribute__(value, "_number") if type(value) is Remote else None

    def _answer(self, message: dict[str, Any]) -> None:
        try:
            unpacker = Unpacker(self, message["n"])
            operation, target, arguments, named = unpacker.value(message["v"])
        except (Garbled, KeyError, TypeError, ValueError) as error:
            self._send({"r": message.get("q"), "x": ["exception", "RuntimeError", "RuntimeError", f"garbled: {error}"]})
            return
        try:
            result = self._perform(operation, target, arguments, named)
            packer = Packer(self, unpacker.objects)
            value = packer.item(result)
            changed = {}
            for number, node in enumerate(message["n"]):
                if is_mutable(node) and (now := packer.node(unpacker.objects[number])) != node:
                    changed[str(number)] = now
            reply = {"r": message["q"], "v": value, "n": packer.finish(), "s": changed}
        except (Gone, Cheat):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the other side's call raises is its answer
            reply = {"r": message["q"], "x": told(error)}
        if getpid() != self._pid:
            exit_now(0)  # a copy of this process, made by the program; only one may answer
        self._send(reply)

    def _perform(self, operation: str, target: int, arguments: list[Any], named: dict[str, Any]) -> Any:
        if operation == "name":
            if arguments[0] not in self.names:
                raise NameError(f"name {arguments[0]!r} is not defined")
            return self.names[arguments[0]]
        if operation == "act":
            return self.names[arguments[0]](*arguments[1:])
        value = self._handles[target]
        if not self._trusting and not _harmless(operation, value, arguments):
            raise TypeError(f"{operation} of a {type(value).__name__} of the test")
        return _OPERATIONS[operation](value, *arguments, **named)

    def _send(self, message: dict[str, Any]) -> None:
        text = _text(message)
        if len(text) > MAX_MESSAGE:
            text = _text({"r": message.get("r"), "x": told(MemoryError("a value too large to hand over"))})
        data = memoryview(self._token + b"%0*d" % (LENGTH_DIGITS, len(text)) + text)
        try:
            while data:
                data = data[write(self._channel, data) :]
        except OSError:
            raise self.failed(Gone("the channel is closed")) from None

    def _receive(self) -> dict[str, Any]:
        head = len(self._token) + LENGTH_DIGITS
        while True:
            start = self._buffer.find(self._token)
            if start < 0:
                del self._buffer[: -len(self._token)]
                self._fill()
                continue
            del self._buffer[:start]
            while len(self._buffer) < head:
                self._fill()
            length = bytes(self._buffer[len(self._token) : head])
            if not length.isdigit() or int(length) > MAX_MESSAGE:
                raise Garbled(f"length {length!r}")
            while len(self._buffer) < head + int(length):
                self._fill()
            text = bytes(self._buffer[head : head + int(length)])
            del self._buffer[: head + int(length)]
            return self._parsed(text)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            message, _ = _scan(text.decode(), 0)
        except (ValueError, StopIteration, RecursionError) as error:
            raise Garbled(str(error)) from None
        if not isinstance(message, dict):
            raise Garbled(f"a message of type {type(message).__name__}")
        return message

    def _fill(self) -> None:
        self.waiting = True
        try:
            chunk = read(self._channel, 1 << 18)
        except OSError:
            chunk = b""
        self.waiting = False
        if not chunk:
            raise self.failed(Gone("the channel is closed"))
        self._buffer += chunk

    def failed(self, fault: Gone | Cheat) -> Gone | Cheat:
        self.fault = self.fault or fault
        return fault


def _harmless(operation: str, value: Any, arguments: list[Any]) -> bool:
    """What a program may do with things of the test: call its functions, step its iterators, read fields of its objects."""
    if operation in ("call", "iter", "next", "len", "bool"):
        return True
    return operation == "getattr" and arguments[0] in getattr(value, "__dict__", {}) and not isinstance(value, type) and not callable(value)


_OPERATIONS: dict[str, Any] = {
    "call": lambda value, /, *arguments, **named: value(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "isinstance": lambda kind, value: isinstance(value, kind),
    "eq": operator.eq,
    "run": run_coroutine,
    "operator": lambda value, name, *others: getattr(value, f"__{name}__")(*others),
}
