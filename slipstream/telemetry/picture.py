"""A benchmark's picture: panels of lines with their spread, as one SVG file. Pure; called by the benchmark commands.

Only what a figure of a paper needs: evenly spaced x values with names, one y axis a panel, a name at the end of each line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2f66c4", "#c96a1b", "#1b8a78", "#7657c5", "#9a7b13", "#c0446b", "#4b8f9e", "#7a7a7a")  # the report's, then two more
Scale = Callable[[float], float]

INK, MUTED, RULE = "#1d1f24", "#686c76", "#e4e1d9"
WIDTH, HEIGHT = 560, 300  # of one panel, pixels
LEFT, RIGHT, TOP, BOTTOM = 52, 176, 40, 44
NAME_GAP = 14  # least distance of two names at line ends, pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: a value for each x of its panel, and the lowest and highest of the runs behind it. None: not measured."""

    name: str
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot."""

    title: str
    x_name: str
    x_values: tuple[str, ...]
    y_name: str
    y_range: tuple[float, float]
    lines: tuple[Line, ...]


def picture(title: str, panels: Sequence[Panel]) -> str:
    """The whole SVG text, panels side by side."""
    width = WIDTH * len(panels)
    drawn = "".join(f'<g transform="translate({index * WIDTH} 28)">{_panel(panel)}</g>' for index, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 28}" width="{width}" height="{HEIGHT + 28}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="#fff"/><text x="12" y="22" font-size="16" font-weight="600" fill="{INK}">{escape(title)}'
        f"</text>{drawn}</svg>\n"
    )


def _panel(panel: Panel) -> str:
    def x(index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * index / max(1, len(panel.x_values) - 1)

    def y(value: float) -> float:
        low, high = panel.y_range
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (min(max(value, low), high) - low) / (high - low))

    parts = [f'<text x="{LEFT}" y="18" font-weight="600" fill="{INK}">{escape(panel.title)}</text>']
    low, high = panel.y_range
    for tick in (low + (high - low) * quarter / 4 for quarter in range(5)):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="{RULE}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="{MUTED}">{tick:.3g}</text>')
    step = -(-len(panel.x_values) // 9)  # at most nine names fit
    for index in range(0, len(panel.x_values), step):
        place = f'x="{x(index):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{MUTED}"'
        parts.append(f"<text {place}>{escape(panel.x_values[index])}</text>")
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle" fill="{MUTED}">{escape(panel.x_name)}</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 8}" fill="{MUTED}">{escape(panel.y_name)}</text>')
    for line, colour in zip(panel.lines, COLOURS, strict=False):
        parts.append(_spread(line, colour, x, y))
        parts.append(_stroke(line, colour, x, y))
    parts.append(_names(panel.lines, y))
    return "".join(parts)


def _stroke(line: Line, colour: str, x: Scale, y: Scale) -> str:
    points = [(x(index), y(value)) for index, value in enumerate(line.values) if value is not None]
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
    dots = "".join(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3" fill="{colour}"/>' for left, top in points) if len(points) < 12 else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _spread(line: Line, colour: str, x: Scale, y: Scale) -> str:
    pairs = enumerate(zip(line.low, line.high, strict=True))
    known = [(x(index), y(low), y(high)) for index, (low, high) in pairs if low is not None and high is not None]
    if len(known) < 2:
        return ""
    edge = [f"{left:.1f},{top:.1f}" for left, _, top in known] + [f"{left:.1f},{bottom:.1f}" for left, bottom, _ in reversed(known)]
    return f'<polygon points="{" ".join(edge)}" fill="{colour}" fill-opacity="0.13"/>'


def _names(lines: Sequence[Line], y: Scale) -> str:
    """Each line's name beside its end, moved apart where they would meet."""
    last = [next((value for value in reversed(line.values) if value is not None), None) for line in lines]
    ends = [(y(value), index) for index, value in enumerate(last) if value is not None]
    placed: list[tuple[float, int]] = []
    for height, index in sorted(ends):
        placed.append((max(height, placed[-1][0] + NAME_GAP) if placed else height, index))
    overflow = max(0.0, placed[-1][0] - (HEIGHT - BOTTOM + 10)) if placed else 0.0
    found = []
    for height, index in placed:
        place = f'x="{WIDTH - RIGHT + 10}" y="{height - overflow + 4:.1f}" fill="{COLOURS[index]}" font-weight="600"'
        found.append(f"<text {place}>{escape(lines[index].name)}</text>")
    return "".join(found)
