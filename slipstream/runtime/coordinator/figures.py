"""The coordinator's figures in Prometheus' text format. Pure; called by `coordinator.app`."""

from collections.abc import Iterable, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def family(name: str, kind: str, told: str, values: Mapping[str, float]) -> list[str]:
    """One metric: its help, its type, and a line for each set of labels (`""` or `{a="b"}`)."""
    lines = [f"slipstream_{name}{labels} {value:.12g}" for labels, value in values.items()]
    return [f"# HELP slipstream_{name} {told}", f"# TYPE slipstream_{name} {kind}", *lines]


def labelled(label: str, values: Mapping[str, float]) -> dict[str, float]:
    """Values by the text of one label."""
    return {f'{{{label}="{_escaped(at)}"}}': value for at, value in sorted(values.items())}


def flat(counts: Mapping[str, Any]) -> dict[str, float]:
    """Nested counts under joined names."""
    found: dict[str, float] = {}
    for name, value in counts.items():
        if isinstance(value, Mapping):
            found |= {f"{name}_{under}": one for under, one in flat(value).items()}
        else:
            found[name] = value
    return found


def text(families: Iterable[list[str]]) -> str:
    return "\n".join(line for lines in families for line in lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
