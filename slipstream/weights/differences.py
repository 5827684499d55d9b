"""What the tensors of some file have otherwise than a decoder declares, by name and shape, in words. Pure; all at once."""

import math
from collections.abc import Mapping

from slipstream.core.errors import UsageError
from slipstream.models.parameters import declarations
from slipstream.models.spec import ModelSpec

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_DERIVED = "rotary_emb.inv_freq"  # old files carry the rotary frequencies; they follow from rope_theta
_LISTED = 10_000  # missing tensors; a damaged count of layers or experts must not become a list of billions


def file_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the files of a decoder, in the declared order."""
    return {name: declaration.file_shape(spec) for declaration in declarations(spec) for _, name in declaration.tensors(spec)}


def shape_differences(shapes: Mapping[str, tuple[int, ...]], spec: ModelSpec) -> list[str]:
    """Tensors that are missing or of another shape in the declared order, then those that are extra.

    An output matrix beside a tied embedding is let through: whether it equals the embedding is for the caller to see.
    """
    count = sum(math.prod(spec.axis_size(axis) for axis in declaration.stack) for declaration in declarations(spec))
    if count > len(shapes) + _LISTED:
        return [f"{count:,} tensors expected for {spec.layers} layers; {len(shapes):,} found"]
    wanted = file_shapes(spec)
    problems = []
    for name, shape in wanted.items():
        if name not in shapes:
            problems.append(f"{name}: missing; shape {list(shape)} expected")
        elif shapes[name] != shape:
            problems.append(f"{name}: shape {list(shapes[name])}; {list(shape)} expected")
    for name in sorted(shapes):
        if name not in wanted and _DERIVED not in name and not (spec.tied and name == HEAD):
            problems.append(f"{name}: extra, shape {list(shapes[name])}; no such tensor is expected")
    return problems


def refuse(source: object, problems: list[str]) -> None:
    """Raise one UsageError with all `problems` of `source`; no problems: do nothing."""
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise UsageError(f"{source} does not hold the tensors that its configuration declares, {count}:\n{lines}")
