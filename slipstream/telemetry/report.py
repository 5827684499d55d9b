"""The report of a run: one self-contained HTML file, with no outside network and no library. Put together here, drawn by web/."""

import json
from importlib import resources
from pathlib import Path

from slipstream.telemetry.atomic import atomic_write_text
from slipstream.telemetry.page_data import page_data
from slipstream.telemetry.reading import Decode
from slipstream.telemetry.run_data import load_run

_SCRIPTS = ("data.js", "chart.js", "lanes.js", "samples.js", "page.js")


def write_report(run_directory: Path, out: Path | None = None, compare: Path | None = None, decode: Decode | None = None) -> Path:
    """Write the report of the run in `run_directory` to `out` (report.html in the run directory unless given); returns its path.

    `compare` is the directory of a second run to set beside the first. `decode` turns token ids to text, so that the samples
    show exactly which text each policy version wrote. Works on a run that is unfinished or was killed.
    """
    first = load_run(run_directory)
    second = load_run(compare) if compare is not None else None
    path = out if out is not None else run_directory / "report.html"
    atomic_write_text(path, page(json.dumps(page_data(first, second, decode), separators=(",", ":"), allow_nan=False)))
    return path


def page(data_json: str) -> str:
    """The page with its data, styles and scripts inside."""
    web = resources.files("slipstream.telemetry") / "web"
    html = (web / "page.html").read_text(encoding="utf-8")
    parts = {
        "/*STYLES*/": (web / "page.css").read_text(encoding="utf-8"),
        "/*SCRIPTS*/": "\n".join((web / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "/*DATA*/": data_json.replace("<", "\\u003c"),  # no text of a rollout can end the script element
    }
    for mark, text in parts.items():
        before, _, after = html.partition(mark)
        html = before + text + after
    return html
