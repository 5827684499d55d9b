"""The tables that `slipstream eval` prints: scores of one evaluation, differences of two. Pure."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from slipstream.telemetry import figures
from slipstream.telemetry.jsonl import Row


def score_table(row: Row, ks: Sequence[int]) -> Table:
    """The scores of a result and what is needed to read them."""
    table = _table(f"{row['task']} · {row['model']}", "", "score", "95 % interval", "problems")
    for k in ks:
        low, high = row["ci" if k == 1 else f"ci@{k}"]
        problems = figures.count(row["n" if k == 1 else f"n@{k}"])
        table.add_row(f"pass@{k}", percent(row[f"pass@{k}"]), f"{percent(low)} to {percent(high)}", problems)
    table.add_section()
    how = "greedy" if row["temperature"] == 0 else f"temperature {row['temperature']:g}"
    table.add_row("answers a problem", str(row["drawn"]), how, "")
    table.add_row("tokens an answer", figures.decimal(row["completion_tokens"], 1), f"{percent(row['truncated_share'])} cut off", "")
    table.add_row("verdicts", "", ", ".join(f"{count} {kind}" for kind, count in row["outcomes"].items()), "")
    table.add_row("weights", "", row["weights"], "")
    table.add_row("format", "", row["format_hash"], "")
    return table


def difference_table(first: str, second: str, differences: Sequence[Row]) -> Table:
    """Two evaluations of the same problems side by side; the rows are those that `slipstream eval --compare --json` prints."""
    table = _table(f"{second} (second) less {first} (first)", "", "first", "second", "less", "95 % paired", "better/worse/same")
    for row in differences:
        low, high = (f"{value * 100:+.1f}" for value in row["ci"])
        same = row["problems"] - row["better"] - row["worse"]
        counts = f"{row['better']}/{row['worse']}/{same}"
        shares = (percent(row["first"]), percent(row["second"]), f"{row['value'] * 100:+.1f}")
        table.add_row(f"pass@{row['k']}", *shares, f"{low} to {high}", counts)
    return table


def percent(share: float) -> str:
    """0.1234 -> "12.3 %"."""
    return f"{share * 100:.1f} %"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD)
    for place, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if place else "left")
    return table
