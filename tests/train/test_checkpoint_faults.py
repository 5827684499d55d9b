"""A checkpoint's write fails at every byte and at every call to the file system: the run stays loadable, and the next write succeeds."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.errors import RunFailed
from slipstream.train.arrays import read_tree, write_tree
from slipstream.train.checkpoint import MANIFEST, checkpoint_of, newest_checkpoint, write_checkpoint

CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")
SCORES = {0: 0.5, 1: 0.9, 2: 0.1, 3: 0.2}  # 1 moves out of the way when 3 is written, and 0 goes, which was the best before
MODES = ("one error", "dead disk", "killed", "power cut")


class Crash(BaseException):
    """The process ends here."""


class Disk:
    """Lets so many bytes and calls through, then fails. Every byte of a write and every call counts one."""

    def __init__(self, budget: float, mode: str) -> None:
        self.left, self.mode, self.failed = budget, mode, False
        self.calls: list[float] = []  # what had been spent when each call came
        self.spent = 0.0
        self.unsynced: dict[int, int] = {}  # descriptor to a duplicate that outlives it

    def spend(self, wanted: int) -> int:
        """How much of `wanted` is let through; raises when nothing is."""
        if self.failed and self.mode != "one error":
            self.fail()
        granted = wanted if self.failed else int(min(wanted, self.left))
        if granted == 0:
            self.fail()
        self.left -= granted
        self.spent += granted
        return granted

    def fail(self) -> None:
        first, self.failed, self.left = not self.failed, True, float("inf")
        if self.mode == "power cut" and first:
            for descriptor in self.unsynced.values():  # what was never synced may be gone
                os.ftruncate(descriptor, 0)
        raise Crash if self.mode in ("killed", "power cut") else OSError(errno.EIO, "input/output error")


class Written:
    """A file opened for writing, unbuffered."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk
        disk.unsynced[file.fileno()] = os.dup(file.fileno())

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        while view:
            granted = self._disk.spend(len(view))
            self._file.write(view[:granted])
            view = view[granted:]
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *cause: object) -> None:
        self._file.close()


@contextmanager
def failing(disk: Disk) -> Iterator[None]:
    real_open = Path.open

    def opened(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if "w" not in mode:
            return real_open(path, mode, *rest, **named)
        disk.calls.append(disk.spent)
        disk.spend(1)
        return Written(real_open(path, mode, buffering=0), disk)

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            disk.calls.append(disk.spent)
            disk.spend(1)
            if name == "fsync":
                kept = disk.unsynced.pop(arguments[0], None)
                if kept is not None:
                    os.close(kept)
                return None
            return real(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opened)
        for name in CALLS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield
    for descriptor in disk.unsynced.values():
        os.close(descriptor)


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full((2, 2), step, np.float32), "n": jnp.asarray(step, jnp.int32)}


def write(root: Path, step: int, scores: dict[int, float] = SCORES) -> None:
    write_checkpoint(root, step, lambda path: write_tree(path / "t", tree(step)), {"run": "r"}, scores=scores)


def loaded(root: Path) -> int:
    """Step of the newest checkpoint, whose content is that step's."""
    found = newest_checkpoint(root)
    assert found is not None
    restored, _ = read_tree(found.path / "t", tree(0))
    assert float(restored["w"][1, 1]) == int(restored["n"]) == found.step
    return found.step


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Two thousand writes are made here; none has to survive a real power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints: 1 and 2, and 0 as the best so far."""
    root = tmp_path_factory.mktemp("begun")
    for step in (0, 1, 2):
        write(root, step, {0: 1.0})
    assert names(root) == ["000001", "000002", "best-000000"]
    return root


@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "the newest step again"])
def test_a_write_that_fails_anywhere_leaves_a_run_that_goes_on(begun: Path, tmp_path: Path, step: int) -> None:
    whole = Disk(float("inf"), MODES[0])
    shutil.copytree(begun, tmp_path / "whole")
    with failing(whole):
        write(tmp_path / "whole", step)
    assert loaded(tmp_path / "whole") == step
    edges = {int(spent) for spent in whole.calls}
    modes = {budget: MODES if budget in edges else (MODES[budget % 4],) for budget in range(int(whole.spent))}
    if step == 2:  # the bytes were those of the other case
        modes = dict.fromkeys(edges, MODES)
    assert len(edges) > 15
    for budget, chosen in modes.items():
        for mode in chosen:
            root = tmp_path / f"{budget} {mode}"
            shutil.copytree(begun, root)
            disk = Disk(budget, mode)
            with failing(disk), suppress(OSError, RunFailed, Crash):
                write(root, step)
            assert disk.failed, f"nothing failed at {budget} of {whole.spent}, {mode}"
            assert loaded(root) in {2, step}, f"{mode} at {budget}"
            best = checkpoint_of(root, 1)
            assert best is not None, f"the best was lost by {mode} at {budget}"
            write(root, 4)
            assert loaded(root) == 4
            assert set(names(root)) in ({"000002", "000004", "best-000001"}, {"000003", "000004", "best-000001"})
            shutil.rmtree(root)


def test_the_best_and_the_newest_two_are_kept(tmp_path: Path) -> None:
    scores = {0: 0.1, 1: 0.6, 2: 0.6, 3: 0.2, 5: 0.9}
    seen = []
    for step in range(6):
        known = {scored: value for scored, value in scores.items() if scored < step}  # that of the step itself comes later
        write_checkpoint(tmp_path, step, lambda path: write_tree(path / "t", tree(0)), {}, scores=known)
        seen.append(names(tmp_path))
    assert seen == [
        ["000000"],
        ["000000", "000001"],
        ["000001", "000002"],
        ["000002", "000003"],  # 1 and 2 are equal: the newer is the best
        ["000003", "000004", "best-000002"],
        ["000004", "000005", "best-000002"],
    ]
    best = checkpoint_of(tmp_path, 2)
    assert best is not None
    assert (best.step, best.path.name) == (2, "best-000002")
    write_checkpoint(tmp_path, 6, lambda path: write_tree(path / "t", tree(0)), {}, scores=scores)
    assert names(tmp_path) == ["000005", "000006"]  # the best is one of the newest two now
    write_checkpoint(tmp_path, 1, lambda path: write_tree(path / "t", tree(0)), {}, scores=scores)
    assert names(tmp_path) == ["000001"]  # of a run that went on from before: the best of a given-up future goes as well
    assert (tmp_path / "000001" / MANIFEST).exists()
    write_checkpoint(tmp_path, 2, lambda path: write_tree(path / "t", tree(0)), {})
    write_checkpoint(tmp_path, 3, lambda path: write_tree(path / "t", tree(0)), {})
    assert names(tmp_path) == ["000002", "000003"]  # none is kept without scores
