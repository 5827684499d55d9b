"""Typed access to the fields of a config.json. Every problem is collected, and every field read is remembered.

What nobody read is judged at the end: a field that may change the mathematics must not be passed over in silence.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from slipstream.core.errors import Problem

Tree = Mapping[str, Any]
Choice = TypeVar("Choice")


class Fields:
    """A JSON object of a config.json; a field of the wrong kind is a problem and reads as 1 (or None where that is allowed)."""

    def __init__(self, tree: Tree, defaults: Tree, problems: list[Problem] | None = None, prefix: str = "") -> None:
        self._tree, self._defaults, self._prefix = tree, defaults, prefix
        self._read: set[str] = set()
        self.problems: list[Problem] = [] if problems is None else problems

    def value(self, field: str) -> Any:
        """The value as it stands, null as None; where the field is absent, the default of its format."""
        self._read.add(field)
        return self._tree[field] if field in self._tree else self._defaults.get(field)

    def given(self, field: str) -> bool:
        """Whether the file itself has the field, with a value other than null."""
        return self._tree.get(field) is not None

    def whole(self, field: str, otherwise: int | None = None) -> int:
        """A whole number above 0; `otherwise` where the field is null or absent without default."""
        value = self.value(field)
        if value is None and otherwise is not None:
            return otherwise
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        return self.bad(field, "must be a whole number above 0")

    def number(self, field: str) -> float:
        """A finite number above 0."""
        value = self.value(field)
        return float(value) if is_number(value) and value > 0 else self.bad(field, "must be a number above 0")

    def maybe_whole(self, field: str) -> int | None:
        """A whole number above 0, or None for null."""
        return None if self.value(field) is None else self.whole(field)

    def maybe_number(self, field: str) -> float | None:
        """A finite number above 0, or None for null."""
        return None if self.value(field) is None else self.number(field)

    def flag(self, field: str) -> bool:
        """true or false; null is false."""
        value = self.value(field)
        return value if isinstance(value, bool) else value is not None and bool(self.bad(field, "must be true or false"))

    def choice(self, field: str, choices: Mapping[str, Choice]) -> Choice:
        """What the field's word stands for; a problem that lists the words where it is another one."""
        value = self.value(field)
        if isinstance(value, str) and value in choices:
            return choices[value]
        self.bad(field, f"not supported; only {', '.join(choices)} {'are' if len(choices) > 1 else 'is'}")
        return next(iter(choices.values()))

    def only(self, field: str, accepted: object) -> None:
        """The one value that can be computed (null and an absent field count as it); any other is a problem."""
        value = self.value(field)
        if value is not None and value != accepted:
            self.bad(field, f"not supported; only {str(accepted).lower()} is")

    def inside(self, field: str, defaults: Tree | None = None) -> "Fields":
        """The JSON object in a field, with the same list of problems; an empty one where it is null or absent."""
        value = self.value(field)
        if value is not None and not isinstance(value, dict):
            self.bad(field, "must be a JSON object")
        return Fields(value if isinstance(value, dict) else {}, defaults or {}, self.problems, f"{self._prefix}{field}.")

    def bad(self, field: str, fix: str) -> int:
        """Record a problem with a field; 1, so that reading can go on."""
        value = repr(self._tree[field]) if field in self._tree else "(absent)"
        self.problems.append(Problem(field=self._prefix + field, value=value, fix=fix))
        return 1

    def refuse_unread(self, inert: Collection[str] = ()) -> None:
        """A problem for each field that nobody read, unless it is `inert` or its value says nothing (null, false, empty)."""
        for field, value in self._tree.items():
            if field not in self._read and field not in inert and value not in (None, "", [], {}) and value is not False:
                self.bad(field, "unknown field that may change the mathematics; if it does not, remove it from config.json")

    def __bool__(self) -> bool:
        return bool(self._tree)


def is_number(value: object) -> bool:
    """A finite JSON number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
