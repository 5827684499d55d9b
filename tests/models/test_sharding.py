"""Eight devices, in one process or in two, give the loss and gradient of one; parameters are split as the table says."""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from slipstream.models.parameters import declarations
from slipstream.models.sharding import MESH_AXES, make_mesh, partition
from tests.models.families import golden_model

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-6, 1e-5  # float32; absolute, and of each leaf's largest entry (sums in another order)


def start(family: str, sizes: Sequence[int], *more: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.models.sharded_run", family, *map(str, [*sizes, *more])]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[dict, str]:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(next(line for line in out.splitlines() if line.startswith("{"))), errors


def check(found: dict) -> None:
    assert found["devices"] == 8
    assert found["loss_apart"] < LOSS_TOLERANCE
    assert found["gradient_apart"] < GRADIENT_TOLERANCE
    assert found["split_leaves"] > found["leaves"] * 0.8


@pytest.mark.parametrize(("family", "sizes"), [("llama", (2, 2, 2, 1)), pytest.param("qwen3_moe", (1, 2, 2, 2), marks=pytest.mark.slow)])
def test_eight_devices_compute_what_one_does(family: str, sizes: tuple[int, ...]) -> None:
    found, errors = finish(start(family, sizes))
    check(found)
    if family == "llama":  # XLA found a way without replicating anything
        assert "Involuntary full rematerialization" not in errors


def test_two_processes_compute_what_one_device_does() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start("gemma3", (1, 4, 2, 1), index, 2, port) for index in range(2)]
    found = [finish(process)[0] for process in processes]
    assert found[0] == found[1]
    check(found[0])


def test_parameters_are_split_by_the_table_of_the_role() -> None:
    spec, _ = golden_model("qwen3_moe")
    mesh = AbstractMesh((1, 2, 2, 2), MESH_AXES, axis_types=(AxisType.Auto,) * 4)
    by_name = {declaration.path[-1]: declaration for declaration in declarations(spec)}

    def split(name: str, role: str) -> PartitionSpec:
        return partition(by_name[name], spec, mesh, role)

    assert split("q", "learner") == PartitionSpec(None, "fsdp", "tensor", None)
    assert split("gate", "learner") == PartitionSpec(None, "expert", "fsdp", "tensor")
    assert split("embed", "learner") == PartitionSpec("tensor", "fsdp")
    assert split("q", "sampler") == PartitionSpec(None, None, "tensor", None)
    assert split("gate", "sampler") == PartitionSpec(None, "expert", None, "tensor")


def test_what_does_not_divide_stays_whole() -> None:
    spec, _ = golden_model("llama")  # two key heads
    mesh = AbstractMesh((1, 1, 4, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 4)
    keys = next(declaration for declaration in declarations(spec) if declaration.path[-1] == "k")
    assert partition(keys, spec, mesh, "learner") == PartitionSpec(None, "fsdp", None, None)


def test_a_mesh_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data 3 x fsdp 1 x tensor 1 x expert 1 needs 3 devices; there are 1"):
        make_mesh(data=3, devices=np.zeros(1))
