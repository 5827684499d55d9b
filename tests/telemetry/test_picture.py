"""A benchmark's picture is well-formed, shows every line by name, and puts values where they belong."""

import itertools
import re
from xml.etree import ElementTree

from slipstream.telemetry.picture import Line, Panel, picture

NAMESPACE = {"svg": "http://www.w3.org/2000/svg"}


def panel(*lines: Line) -> Panel:
    return Panel(title="a < b", x_name="lag", x_values=("0", "1", "∞"), y_name="score", y_range=(0.0, 1.0), lines=lines)


def points(text: str) -> list[list[tuple[float, float]]]:
    found = ElementTree.fromstring(text).iterfind(".//svg:polyline", NAMESPACE)
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", line.get("points", ""))] for line in found]


def test_higher_values_are_higher_and_what_was_not_measured_is_left_out() -> None:
    (first, second) = points(picture("t", [panel(Line(name="up", values=(0.0, 0.5, 1.0)), Line(name="gap", values=(1.0, None, 0.0)))]))
    assert len(first) == 3
    assert first[0][1] > first[1][1] > first[2][1]
    assert len(second) == 2
    assert second[0] == (first[0][0], first[2][1])
    assert second[1] == (first[2][0], first[0][1])


def test_names_are_escaped_and_never_overlap() -> None:
    lines = [Line(name=f"<{index}>", values=(0.1, 0.2, 0.5)) for index in range(6)]
    tree = ElementTree.fromstring(picture("a & b", [panel(*lines)]))
    labels = [text for text in tree.iterfind(".//svg:text", NAMESPACE) if (text.text or "").startswith("<")]
    heights = sorted(float(text.get("y", "0")) for text in labels)
    assert [text.text for text in labels] == [line.name for line in lines]
    assert all(below - above >= 13.9 for above, below in itertools.pairwise(heights))


def test_the_spread_is_drawn_between_low_and_high() -> None:
    line = Line(name="x", values=(0.5, 0.5, 0.5), low=(0.4, 0.3, 0.5), high=(0.6, 0.9, 0.5))
    tree = ElementTree.fromstring(picture("t", [panel(line)]))
    (area,) = tree.iterfind(".//svg:polygon", NAMESPACE)
    assert len(area.get("points", "").split()) == 6
