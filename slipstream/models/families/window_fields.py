"""Which layers see only a window of tokens: `sliding_window`, `layer_types` and their older relatives in config.json.

A window of w tokens in config.json lets a query see keys at distances 0 to w - 1, as in `ModelSpec.windows`.
"""

from collections.abc import Sequence
from typing import Any

from slipstream.models.families.fields import Fields
from slipstream.models.spec import ModelSpec

_WINDOWED = {"full_attention": False, "sliding_attention": True}


def read_windows(fields: Fields, layers: int, width: int | None, usual: Sequence[bool]) -> tuple[int, ...] | None:
    """Windows by layer. `layer_types` decides where there is one: whoever writes it reads nothing else; else `usual` does."""
    windowed = _layer_types(fields, layers) if fields.value("layer_types") is not None else list(usual)
    if any(windowed) and width is None:
        fields.bad("sliding_window", "some layers have a window, so it must be a whole number above 0")
        return None
    return tuple(width if has else 0 for has in windowed) if width is not None and any(windowed) else None


def read_optional_windows(fields: Fields, layers: int) -> tuple[int, ...] | None:
    """Windows of the Qwens: off unless `use_sliding_window`, then in the layers from `max_window_layers` on."""
    width, first = fields.maybe_whole("sliding_window"), fields.value("max_window_layers")
    if not fields.flag("use_sliding_window"):
        width = None
    elif type(first) is not int or first < 0:
        first = fields.bad("max_window_layers", "must be a whole number")
    return read_windows(fields, layers, width, [width is not None and layer >= first for layer in range(layers)])


def write_windows(spec: ModelSpec) -> dict[str, Any]:
    """`sliding_window` and `layer_types`."""
    windows = spec.windows or (0,) * spec.layers
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"sliding_window": max(windows) or None, "layer_types": types}


def write_optional_windows(spec: ModelSpec) -> dict[str, Any]:
    """The inverse of `read_optional_windows`."""
    windows = spec.windows or (0,) * spec.layers
    last_wide = max((layer for layer, window in enumerate(windows) if not window), default=-1)
    return write_windows(spec) | {"use_sliding_window": any(windows), "max_window_layers": last_wide + 1}


def refuse_windows(fields: Fields) -> None:
    """For families without windows: a width is a problem unless the file itself turns it off."""
    off = fields.value("use_sliding_window") is False
    if fields.value("sliding_window") is not None and not off:
        fields.bad("sliding_window", "not supported in this architecture; only null is")
    if off:
        fields.value("max_window_layers")


def _layer_types(fields: Fields, layers: int) -> list[bool]:
    types = fields.value("layer_types")
    if not isinstance(types, list) or len(types) != layers:
        fields.bad("layer_types", f"must be a list of {layers}, one for each layer")
        return []
    other = [name for name in types if not isinstance(name, str) or name not in _WINDOWED]
    if other:
        fields.bad("layer_types", f"{other[0]!r} is not supported; only {', '.join(_WINDOWED)} are")
        return []
    return [_WINDOWED[name] for name in types]
