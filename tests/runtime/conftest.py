"""Undisturbed runs of the tiny recipe, made once a session and mode."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.runs import MODES, tiny


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
