"""Rotary positions in config.json: `rope_theta` with `rope_scaling`, or the newer `rope_parameters`; both must say the same.

The newer field may be nested by kind of layer (Gemma 3). Kinds of scaling that the decoder cannot compute are refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from slipstream.models.families.fields import Fields, is_number
from slipstream.models.spec import ModelSpec, RopeSpec

Scaling = Literal["none", "linear", "llama3"]

_KINDS: dict[str, Scaling] = {"default": "none", "linear": "linear", "llama3": "llama3"}
_NAMES: dict[Scaling, str] = {scaling: name for name, scaling in _KINDS.items()}


def read_rope(fields: Fields) -> RopeSpec:
    """Rotary positions that are the same in all layers."""
    return _agreed(fields, "rope_theta", [fields.inside("rope_parameters"), fields.inside("rope_scaling")])


def write_rope(spec: ModelSpec) -> dict[str, Any]:
    """The inverse of `read_rope`, in the older fields, which all readers know."""
    return {"rope_theta": spec.rope.theta, "rope_scaling": None if spec.rope.scaling == "none" else _table(spec.rope)}


def read_two_ropes(fields: Fields) -> tuple[RopeSpec, RopeSpec]:
    """Rotary positions of the layers that see everything, and of those with a window."""
    nested = fields.inside("rope_parameters")
    wide, narrow = nested.inside("full_attention"), nested.inside("sliding_attention")
    nested.refuse_unread()
    found = _agreed(fields, "rope_theta", [wide, fields.inside("rope_scaling")])
    return found, _agreed(fields, "rope_local_base_freq", [narrow])


def write_two_ropes(spec: ModelSpec) -> dict[str, Any]:
    """The inverse of `read_two_ropes`. Only the newer field can say that the layers with a window are scaled."""
    narrow = spec.local_rope or spec.rope
    older = write_rope(spec) | {"rope_local_base_freq": narrow.theta}
    if narrow.scaling == "none":
        return older
    tables = {"full_attention": spec.rope, "sliding_attention": narrow}
    return older | {"rope_parameters": {kind: _table(rope) | {"rope_theta": rope.theta} for kind, rope in tables.items()}}


def _agreed(fields: Fields, theta_field: str, tables: Sequence[Fields]) -> RopeSpec:
    """What the tables and the field of the base say together; a problem where they disagree."""
    thetas = [table.number("rope_theta") for table in tables if table.given("rope_theta")]
    if fields.given(theta_field) or not thetas:
        thetas.append(fields.number(theta_field))
    else:
        fields.value(theta_field)
    if len(set(thetas)) > 1:
        fields.bad(theta_field, f"rope_theta = {thetas[0]} stands elsewhere in the file; keep one")
    scalings = [_scaling(table) for table in tables if table]
    if len(set(scalings)) > 1:
        fields.bad("rope_scaling", "rope_parameters says otherwise; keep one")
    return replace(scalings[0] if scalings else RopeSpec(theta=1.0), theta=thetas[0])


def _scaling(table: Fields) -> RopeSpec:
    """The scaling that one table describes, with base 1."""
    table.value("rope_theta")
    table.only("partial_rotary_factor", 1)
    before = len(table.problems)
    names = [name for name in ("rope_type", "type") if table.given(name)]
    kinds: set[Scaling] = {table.choice(name, _KINDS) for name in names} or {"none"}
    if len(kinds) > 1:
        table.bad("type", f"rope_type = {table.value('rope_type')!r} says otherwise; keep one")
    if len(table.problems) > before:
        return RopeSpec(theta=1.0)  # what else it says belongs to a kind that is not known
    found = RopeSpec(theta=1.0, scaling=kinds.pop())
    if found.scaling != "none":
        found = replace(found, factor=table.number("factor"))
    if found.scaling == "llama3":
        found = replace(
            found,
            low_factor=table.number("low_freq_factor"),
            high_factor=table.number("high_freq_factor"),
            original_context=table.whole("original_max_position_embeddings"),
        )
        if is_number(table.value("high_freq_factor")) and found.high_factor <= found.low_factor:
            table.bad("high_freq_factor", f"must be above low_freq_factor = {found.low_factor}")
    table.refuse_unread()
    return found


def _table(rope: RopeSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": _NAMES[rope.scaling]}
    if rope.scaling != "none":
        found["factor"] = rope.factor
    if rope.scaling == "llama3":
        found |= {"low_freq_factor": rope.low_factor, "high_freq_factor": rope.high_factor}
        found["original_max_position_embeddings"] = rope.original_context
    return found
