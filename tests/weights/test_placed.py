"""Runs the tests of sharded reading where there are four devices: in a process whose CPU counts as four."""

import os
import subprocess
import sys
from pathlib import Path


def test_sharded_reading_on_four_devices() -> None:
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    file = Path(__file__).with_name("test_golden_files.py")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        str(file),
        "-k",
        "mesh or needed or replicated",
    ]
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False, cwd=file.parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
