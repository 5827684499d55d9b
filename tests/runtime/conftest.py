"""Undisturbed runs of the tiny recipe, made once a session and mode."""

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import tiny

MODES = {
    "sync": ("mode.kind=sync", "mode.eta=0"),
    "lagged1": ("mode.kind=lagged", "mode.eta=1"),
    "lagged2": ("mode.kind=lagged", "mode.eta=2"),
    "inflight2": ("mode.kind=inflight", "mode.eta=2"),
}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a finished run of a mode."""
    made: dict[str, Path] = {}

    def directory(mode: str) -> Path:
        if mode not in made:
            made[mode] = tmp_path_factory.mktemp(f"undisturbed-{mode}") / "run"
            tiny(made[mode], MODES[mode])
        return made[mode]

    return directory
