"""A learner on many devices learns what one device learns, whatever the mesh, in one process or two; its checkpoints fit any other.

Sums run in another order there, so all is equal to rounding, but for exact log-probs, which have the same bits.
"""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from slipstream.core.errors import ConfigError
from slipstream.train.learner import Learner
from tests.train.sharded_learner import CASES, learner, run

PATIENCE_S = 600
TOLERANCE = 1e-6  # of values and gradients: norm of the difference, over the norm
MOVED = 1e-3  # of what two steps of Adam moved. It divides each entry of a gradient by its own size: where that is near rounding, the
# entry's step, up to the learning rate, is rounding too. Such entries are few

Run = tuple[str, Mapping[str, int], Path]  # case, mesh, checkpoints


def start(devices: int, runs: Sequence[Run], *more: int) -> subprocess.Popen[str]:
    words = [devices, json.dumps([(name, mesh, str(root)) for name, mesh, root in runs]), *more]
    command = [sys.executable, "-m", "tests.train.sharded_learner", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def apart(found: object, expected: object) -> float:
    """Norm of the difference over the norm, of trees."""
    gap = jax.tree.map(lambda a, b: np.float32(a) - np.float32(b), found, expected)
    return float(optax.tree.norm(gap) / optax.tree.norm(jax.tree.map(np.float32, expected)))


def restored(name: str, directory: Path) -> Learner:
    made = learner(CASES[name], {})
    made.restore(directory)
    return made


def check_values(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert apart([np.array(one) for one in found["logprobs"]], [np.array(one) for one in expected["logprobs"]]) < TOLERANCE
    first, wanted = found["metrics"][0], expected["metrics"][0]
    assert first["loss"] == pytest.approx(wanted["loss"], abs=TOLERANCE * max(1.0, abs(wanted["loss"])))
    for name in ("ratio_mean", "ess", "entropy", "grad_norm", "tokens", "lr"):
        assert first[name] == pytest.approx(wanted[name], rel=2 * TOLERANCE)
    for name in expected["metrics"][1]:  # under other weights, to the rounding of the first step
        assert found["metrics"][1][name] == pytest.approx(expected["metrics"][1][name], rel=1e-4, abs=1e-5, nan_ok=True)
    assert found["compiled"][0] == found["compiled"][1]
    assert found["published_on"] == 1


def check_checkpoints(name: str, root: Path, expected_root: Path) -> None:
    """The first moments after one step are the gradient, times a constant."""
    first, wanted = restored(name, root / "000001"), restored(name, expected_root / "000001")
    before = learner(CASES[name], {}).weights().params
    assert apart(first._state, wanted._state) < 2 * TOLERANCE
    last, wanted = (restored(name, path / "000002").weights().params for path in (root, expected_root))
    moved = jax.tree.map(lambda new, old: np.asarray(new) - np.asarray(old), wanted, before)
    assert float(optax.tree.norm(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), last, wanted))) < MOVED * optax.tree.norm(moved)


def check(run_of: Run, found: dict[str, Any], split: float, root: Path) -> None:
    """Against one device's run, whose checkpoints go to `root`. `split`: the largest share of the parameters on a device."""
    name, _, checkpoints = run_of
    expected = run(name, {}, root)
    check_values(found, expected)
    check_checkpoints(name, checkpoints, root)
    assert found["parameters"] < split
    if CASES[name].exact:
        assert found["logprobs"] == expected["logprobs"]
    if not CASES[name].adapters:
        assert found["optimizer"] < split


def test_four_devices_learn_what_one_does(tmp_path: Path) -> None:
    """Whose checkpoints one device reads."""
    one: Run = ("tiny", {"fsdp": 2, "tensor": 2}, tmp_path / "four")
    (found,) = finish(start(4, [one]))
    check(one, found, 0.3, tmp_path / "one")


def test_too_few_devices_are_told_with_the_way_to_virtual_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"mesh\.fsdp x mesh\.tensor = 4 x 2: takes 8 devices, and there is 1;.*device_count=8 in the env"
    ):
        learner(CASES["llama"], {"fsdp": 4, "tensor": 2})


ANY = 1.1
MESHES: dict[str, tuple[str, dict[str, int], float]] = {
    "weights split both ways": ("llama", {"fsdp": 4, "tensor": 2}, 0.15),
    "rows alone": ("llama", {"data": 8}, ANY),
    "experts": ("experts", {"data": 2, "fsdp": 2, "expert": 2}, 0.4),
    "adapters": ("adapters", {"fsdp": 2, "tensor": 2}, 0.4),
    "reference and minibatches": ("reference", {"data": 2, "fsdp": 2, "tensor": 2}, 0.3),
    "exact": ("exact", {"data": 4}, ANY),
}


@pytest.mark.slow
def test_every_mesh_learns_what_one_device_does(tmp_path: Path) -> None:
    runs: list[Run] = [(name, mesh, tmp_path / what) for what, (name, mesh, _) in MESHES.items()]
    results = finish(start(8, runs))
    for (what, (_, _, split)), one, found in zip(MESHES.items(), runs, results, strict=True):
        check(one, found, split, tmp_path / f"{what} alone")


@pytest.mark.slow
def test_two_processes_learn_what_one_device_does_and_any_mesh_goes_on_from_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one: Run = ("llama", {"fsdp": 4, "tensor": 2}, tmp_path / "two")
    results = [finish(process) for process in [start(8, [one], index, 2, port) for index in range(2)]]
    assert results[0] == results[1]
    check(one, results[0][0], 0.15, tmp_path / "one")
    files = json.loads((tmp_path / "two" / "000002" / "manifest.json").read_text())["files"]
    assert sorted(files) == [f"{part}.{index}-of-2.safetensors" for part in ("optimizer", "params") for index in range(2)]
    for other in ("data 8", "alone"):
        shutil.copytree(tmp_path / "two", tmp_path / other)
    (found,) = finish(start(8, [("llama", {"data": 8}, tmp_path / "data 8")]))
    check_values(found, run("llama", {}, tmp_path / "alone"))
