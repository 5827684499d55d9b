"""Stand-ins for values that stay on the other side of the channel. Made by `code_peer`."""

import builtins
import operator
from typing import TYPE_CHECKING, Any

from slipstream.envs.verifiers.code_faults import Cheat

if TYPE_CHECKING:
    from slipstream.envs.verifiers.code_peer import Peer

__builtins__ = dict(vars(builtins))

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod", "and", "or", "xor", "lshift", "rshift", "matmul")
UNARY = ("neg", "abs", "invert", "pos", "float", "int", "index")


class Remote:
    """A value that stays on the other side: uses of it are done there. It is never equal to a value of this side.

    Where its own class would compare it with a value of this side, the class could answer whatever pleases it: that is a cheat.
    """

    __slots__ = ("_number", "_own_comparison", "_peer", "_type")

    def __init__(self, peer: "Peer", number: int, type_name: str, own_comparison: bool) -> None:
        for name, value in (("_peer", peer), ("_number", number), ("_type", type_name), ("_own_comparison", own_comparison)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return _do(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _do(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        _do(self, "delattr", name)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return _do(self, "call", *arguments, **named)

    def __getitem__(self, key: Any) -> Any:
        return _do(self, "getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _do(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        _do(self, "delitem", key)

    def __iter__(self) -> Any:
        return _do(self, "iter")

    def __next__(self) -> Any:
        return _do(self, "next")

    def __len__(self) -> int:
        return _do(self, "len")

    def __bool__(self) -> bool:
        return _do(self, "bool")

    def __str__(self) -> str:
        return _do(self, "str")

    def __repr__(self) -> str:
        return _do(self, "repr")

    def __contains__(self, value: Any) -> bool:
        return any(item is value or item == value for item in self)

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "_number"))

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Remote and _do(self, "isinstance", value)

    def __eq__(self, other: object) -> bool:
        if type(other) is Remote:
            numbers = (object.__getattribute__(side, "_number") for side in (self, other))
            return operator.eq(*numbers) or bool(_do(self, "eq", other))
        if object.__getattribute__(self, "_own_comparison"):
            raise _cheat(self, "compares itself with the expected value")
        return False


def _refusal(name: str) -> Any:
    def refuse(self: Remote, other: Any = None, *_: Any) -> Any:
        if type(other) is Remote or name in UNARY:
            return _do(self, "operator", name, *(() if other is None else (other,)))
        raise _cheat(self, f"takes part in `{name}` with a value of the test")

    return refuse


for _name in ("lt", "le", "gt", "ge", *ARITHMETIC, *(f"r{name}" for name in ARITHMETIC), *UNARY):
    setattr(Remote, f"__{_name}__", _refusal(_name))


def _do(remote: Remote, operation: str, /, *arguments: Any, **named: Any) -> Any:
    peer = object.__getattribute__(remote, "_peer")
    return peer.ask(operation, object.__getattribute__(remote, "_number"), *arguments, **named)


def _cheat(remote: Remote, what: str) -> BaseException:
    name = object.__getattribute__(remote, "_type")
    if not object.__getattribute__(remote, "_own_comparison"):
        return TypeError(f"unsupported operand: {name}")
    return object.__getattribute__(remote, "_peer").failed(Cheat(f"an object of the program's type {name} {what}"))


async def coroutine_of(remote: Remote) -> Any:
    """A coroutine of the other side, awaitable on this one: it runs there from start to end."""
    return _do(remote, "run")
