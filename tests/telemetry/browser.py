"""A real browser, headless, for tests that look at a page: the DOM as it is after its scripts have run."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--virtual-time-budget=4000", "--window-size=1280,900"),
)


def rendered(page: Path, *more_flags: str) -> str:
    """The page's DOM once its scripts are done. Skips the test where there is no browser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    binary = next((found for name in names if (found := shutil.which(name))), None)
    if binary is None:
        pytest.skip(f"needs a browser on PATH: none of {', '.join(names)} is there")
    with tempfile.TemporaryDirectory() as profile:
        command = [binary, *FLAGS, *more_flags, f"--user-data-dir={profile}", "--dump-dom", page.resolve().as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
