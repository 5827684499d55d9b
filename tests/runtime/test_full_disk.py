"""A disk that fills up in the middle of a run: one clear message, exit 1, and the run goes on once there is room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.runs import MODES, TINY, rows, run, sets


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB of its own."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mount)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"needs the right to mount a small file system: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_no_space_left_is_said_and_survived(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(os.urandom(2_500_000))
    message = run(small_disk / "run", str(TINY), *sets(MODES["inflight2"]), code=1)
    assert "no space left" in message
    assert "--resume" in message
    assert "Traceback" not in message
    filler.unlink()
    run(small_disk / "run", "--resume")
    assert [row["step"] for row in rows(small_disk / "run" / "metrics.jsonl")] == list(range(1, 13))
