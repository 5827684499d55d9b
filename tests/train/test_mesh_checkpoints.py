"""A checkpoint written in pieces by two processes is read on another mesh, and without any; a missing or wrong piece is refused."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.core.errors import RunFailed
from slipstream.train.arrays import read_tree
from tests.train.mesh_checkpoint import expected

PATIENCE_S = 300


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.train.mesh_checkpoint", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors


@pytest.mark.slow
def test_what_two_processes_wrote_is_read_on_other_meshes_and_on_one_device(tmp_path: Path) -> None:
    """Written with rows over two devices and columns over two; read as quarters of the columns and as eighths of the rows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    finish(*(start("write", tmp_path, 4, 2, 2, index, 2, port) for index in range(2)))
    files = json.loads((tmp_path / "000007" / "manifest.json").read_text())["files"]
    assert sorted(files) == ["tree.0-of-2.safetensors", "tree.1-of-2.safetensors"]
    finish(start("read", tmp_path, 4, 1, 4))
    finish(start("read", tmp_path, 8, 8, 1))
    check(tmp_path / "000007" / "tree.safetensors")


def check(path: Path) -> None:
    found, notes = read_tree(path, {name: np.zeros_like(array) for name, array in expected().items()})
    assert notes == {"note": "kept"}
    for name, array in expected().items():
        assert np.asarray(found[name]).tobytes() == array.tobytes()


def pieces() -> list[dict[str, np.ndarray]]:
    """What two processes write: each half of the rows of what is split, in two pieces where the columns are split too."""
    whole = expected()
    parts: list[dict[str, np.ndarray]] = [{}, {}]
    for process, (first, last) in enumerate(((0, 4), (4, 8))):
        parts[process][f"['rows']@{first}:{last},0:12"] = whole["rows"][first:last]
        for start, stop in ((0, 6), (6, 12)):
            parts[process][f"['both']@{first}:{last},{start}:{stop}"] = whole["both"][first:last, start:stop].copy()
        parts[process][f"['columns']@0:8,{6 * process}:{6 * process + 6}"] = whole["columns"][:, 6 * process : 6 * process + 6].copy()
    parts[0]["['everywhere']@0:8,0:12"], parts[0]["['scalar']"] = whole["everywhere"], np.array(whole["scalar"])
    return parts


def test_pieces_make_up_the_whole_or_are_refused(tmp_path: Path) -> None:
    parts = pieces()
    path = tmp_path / "tree.safetensors"

    def store(first: dict[str, np.ndarray], second: dict[str, np.ndarray] | None) -> None:
        for index, part in enumerate((first, second)):
            file = tmp_path / f"tree.{index}-of-2.safetensors"
            file.unlink(missing_ok=True)
            if part is not None:
                save_file(part, file, {"note": "kept"})

    store(*parts)
    check(path)
    rows = "['rows']@4:8,0:12"
    without = {name: array for name, array in parts[1].items() if name != rows}
    wrong = {
        "cannot be read": None,
        "a piece is missing": without,
        "of another type": without | {rows: parts[1][rows].astype(np.float32)},
        "one half twice": without | {"['rows']@0:4,0:12": parts[1][rows]},
        "outside": without | {"['rows']@8:12,0:12": parts[1][rows]},
        "overlapping": without | {"['rows']@3:7,0:12": parts[1][rows]},
    }
    for what, second in wrong.items():
        store(parts[0], second)
        match = r"another shape or type: \['rows'\]$" if second else what
        with pytest.raises(RunFailed, match=match):
            check(path)
