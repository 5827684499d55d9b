"""A checkpoint is all there or not there, the one before it stays, and going on from it is bit for bit not having stopped."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.errors import RunFailed
from slipstream.telemetry import atomic
from slipstream.train import checkpoint
from slipstream.train.arrays import read_tree, write_tree
from slipstream.train.checkpoint import MANIFEST, newest_checkpoint, oldest_step, read_checkpoint, write_checkpoint
from slipstream.train.learner import Learner
from tests.train.small import SPEC, assert_bit_equal, batch, config, learner, params


def write(root: Path, step: int, text: str = "weights") -> None:
    def fill(directory: Path) -> None:
        (directory / "params.safetensors").write_text(f"{text} {step}")
        (directory / "optimizer.safetensors").write_text(f"moments {step}")

    write_checkpoint(root, step, fill, {"run_id": "abc", "lineage": 2, "older_versions": [1, 2]})


def steps(root: Path) -> list[int]:
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())


def newest_step(root: Path) -> int:
    found = newest_checkpoint(root)
    assert found is not None
    return found.step


def test_written_and_found_again(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "not there") is None
    write(tmp_path, 7)
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.path) == (7, tmp_path / "000007")
    assert dict(found.notes) == {"run_id": "abc", "lineage": 2, "older_versions": [1, 2]}
    assert (found.path / "params.safetensors").read_text() == "weights 7"
    assert json.loads((found.path / MANIFEST).read_text())["files"]["params.safetensors"]["bytes"] == 9


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (0, 9, 10, 100):
        write(tmp_path, step)
    assert steps(tmp_path) == [10, 100]
    assert oldest_step(tmp_path) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000010", "000100"]


@pytest.mark.parametrize("name", ["params.safetensors", "optimizer.safetensors", MANIFEST])
def test_any_flipped_bit_is_seen(tmp_path: Path, name: str) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    path = tmp_path / "000002" / name
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        found = read_checkpoint(tmp_path / "000002")
        space = name == MANIFEST and whole[index : index + 1].isspace()
        assert found is None or (space and found.step == 2)  # white space between the manifest's fields says nothing
    path.write_bytes(whole[:-1])
    assert newest_step(tmp_path) == 1
    path.unlink()
    assert newest_step(tmp_path) == 1


@pytest.mark.parametrize("manifest", ["", "[]", "null", "{}", '{"files": 3}', '{"files": {}, "step": 1}', "{"])
def test_a_manifest_that_is_none_is_no_checkpoint(tmp_path: Path, manifest: str) -> None:
    write(tmp_path, 1)
    (tmp_path / "000002").mkdir()
    (tmp_path / "000002" / MANIFEST).write_text(manifest)
    assert newest_step(tmp_path) == 1


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", [3, 2])
def test_a_crash_while_filling_leaves_the_others(tmp_path: Path, step: int) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)

    def fill(directory: Path) -> None:
        (directory / "params.safetensors").write_text("half")
        raise Crash

    with pytest.raises(Crash):
        write_checkpoint(tmp_path, step, fill, {})
    assert newest_step(tmp_path) == 2
    assert read_checkpoint(tmp_path / "000001") is not None
    write(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000004"]  # and no leftovers


def test_a_full_disk_leaves_the_others_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(atomic.os, "fsync", full)
        with pytest.raises(RunFailed, match="no space left on device while writing"):
            write(tmp_path, 2)
        with pytest.raises(RunFailed, match="no space left on device while writing"):
            write_checkpoint(tmp_path, 2, learner().save, {})
    assert newest_step(tmp_path) == 1


@pytest.mark.parametrize("step", [1, 2])
def test_what_does_not_read_back_never_replaces_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A disk that loses what was written: also when the step was there before."""
    write(tmp_path, 1, "good")

    def fill(directory: Path) -> None:
        (directory / "params.safetensors").write_text("bad")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "read_checkpoint", lambda path: None)
        with pytest.raises(RunFailed, match="does not read back as written; the previous one is kept"):
            write_checkpoint(tmp_path, step, fill, {})
    assert newest_step(tmp_path) == 1
    assert (tmp_path / "000001" / "params.safetensors").read_text() == "good 1"


def test_a_step_is_written_again(tmp_path: Path) -> None:
    """An interrupted run writes the step it is at, which may have its checkpoint already."""
    write(tmp_path, 1)
    write(tmp_path, 2, "first")
    write(tmp_path, 2, "second")
    assert steps(tmp_path) == [1, 2]
    assert (tmp_path / "000002" / "params.safetensors").read_text() == "second 2"


def test_a_rename_that_fails_puts_the_replaced_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 2, "first")
    real = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            raise OSError(errno.EIO, "input/output error")
        return real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", failing)
        with pytest.raises(OSError, match="input/output error"):
            write(tmp_path, 2, "second")
    assert newest_step(tmp_path) == 2
    assert (tmp_path / "000002" / "params.safetensors").read_text() == "first 2"


def test_going_on_from_an_older_one_gives_up_the_newer(tmp_path: Path) -> None:
    """Damaged checkpoints of later steps neither crowd out the new one nor come back."""
    for step in (75, 100):
        write(tmp_path, step)
    (tmp_path / "000100" / "params.safetensors").write_text("damaged")
    assert newest_step(tmp_path) == 75
    write(tmp_path, 80)
    assert steps(tmp_path) == [75, 80]
    write(tmp_path, 85)
    assert steps(tmp_path) == [80, 85]
    for path in (tmp_path / "000080", tmp_path / "000085"):
        (path / MANIFEST).unlink()
    write(tmp_path, 10)  # both newest are damaged: the run began again
    assert steps(tmp_path) == [10]


# trees of arrays


def test_a_tree_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tree = {
        "scalar": jnp.asarray(3, jnp.int32),
        "half": jnp.asarray([[1.5, jnp.nan], [-0.0, 2**-133]], jnp.bfloat16),
        "turned": np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
        "empty": jnp.zeros((0, 2)),
        "pair": (jnp.ones(2, bool), [jnp.arange(3)]),
    }
    write_tree(tmp_path / "tree", tree, {"note": "kept"})
    found, notes = read_tree(tmp_path / "tree", tree)
    assert notes == {"note": "kept"}
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert np.asarray(one).tobytes() == np.asarray(other, order="C").tobytes()


@pytest.mark.parametrize(
    "like",
    [
        {"a": jnp.zeros(3), "b": jnp.zeros(())},
        {"a": jnp.zeros(2)},
        {"a": jnp.zeros(2), "b": jnp.zeros(()), "c": jnp.zeros(1)},
        {"a": jnp.zeros(2, jnp.bfloat16), "b": jnp.zeros(())},
        {"a": jnp.zeros(2), "b": jnp.zeros(1)},
    ],
    ids=["shape", "extra", "missing", "type", "scalar"],
)
def test_a_tree_that_does_not_fit_is_refused(tmp_path: Path, like: dict) -> None:
    write_tree(tmp_path / "tree", {"a": jnp.zeros(2), "b": jnp.zeros(())})
    with pytest.raises(RunFailed, match="does not fit this run's model"):
        read_tree(tmp_path / "tree", like)


def test_a_file_that_is_no_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").write_text("nothing of the kind")
    for name in ("tree", "absent"):
        with pytest.raises(RunFailed, match="cannot be read"):
            read_tree(tmp_path / name, {"a": jnp.zeros(2)})


# the learner


@pytest.mark.parametrize("minibatches", [1, 2])
def test_stopping_and_going_on_changes_no_bit(tmp_path: Path, minibatches: int) -> None:
    settings = config(minibatches=minibatches)
    through, first, second = learner(settings), learner(settings), Learner(settings, SPEC, params(9))
    expected = [through.step(batch(step)) for step in range(6)]
    for step in range(3):
        first.step(batch(step))
    written = write_checkpoint(tmp_path, first.version, first.save, {})
    second.restore(written.path)
    assert second.version == 3
    assert_bit_equal(second.weights().params, first.weights().params)
    found = [second.step(batch(step)) for step in range(3, 6)]
    np.testing.assert_equal(found, expected[3:])  # figures that nothing was known of are NaN in both
    assert_bit_equal(second.weights().params, through.weights().params)
    assert second.version == through.version == 6
    first.step(batch(3))  # the one that was saved goes on as well
    assert first.version == 4


def test_a_snapshot_is_of_its_moment_whenever_it_is_written(tmp_path: Path) -> None:
    """The update after it writes over the optimizer's state, and the step waits for no disk."""
    running = learner()
    running.step(batch(0))
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    running.save(tmp_path / "before")
    write_later = running.snapshot()
    running.step(batch(1))
    write_later(tmp_path / "after")
    for path in (tmp_path / "before").iterdir():
        assert (tmp_path / "after" / path.name).read_bytes() == path.read_bytes()


def test_another_model_is_refused_and_the_learner_stays_as_it_was(tmp_path: Path) -> None:
    learner().save(tmp_path)
    for spec in (replace(SPEC, d_ff=48), replace(SPEC, tied=False), replace(SPEC, layers=2)):
        other = Learner(config(), spec, params(0, spec))
        with pytest.raises(RunFailed, match="does not fit this run's model"):
            other.restore(tmp_path)
        assert other.version == -1
    running = learner(seed=4)
    (tmp_path / "optimizer.safetensors").write_bytes(b"")
    with pytest.raises(RunFailed, match="cannot be read"):
        running.restore(tmp_path)
    assert_bit_equal(running.weights().params, params(4))
