"""A program for tests: writes or reads a checkpoint of sharded arrays on a mesh of several devices, in one process or in several.

Run as `python -m tests.train.mesh_checkpoint write|read DIRECTORY DEVICES FSDP TENSOR [PROCESS PROCESSES PORT]`. Reading fails unless
every device has the part of the expected tree that its layout gives it.
"""

import os
import sys
from pathlib import Path


def main(what: str, root: Path, devices: int, fsdp: int, tensor: int, process: int, processes: int, port: int) -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices // processes}"
    import jax

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=process)
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from slipstream.models.sharding import make_mesh
    from slipstream.train.arrays import leaves, read_tree, write_leaves
    from slipstream.train.checkpoint import newest_checkpoint, write_checkpoint
    from slipstream.train.peers import ALONE, AllProcesses

    mesh = make_mesh(fsdp=fsdp, tensor=tensor)
    layout = {"both": ("fsdp", "tensor"), "rows": ("fsdp",), "columns": (None, "tensor"), "everywhere": (), "scalar": ()}

    def lay(name: str, array: np.ndarray) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*layout[name]))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    tree = {name: lay(name, array) for name, array in expected().items()}
    if what == "write":
        stored = leaves(tree)
        peers = AllProcesses() if processes > 1 else ALONE
        write_checkpoint(root, 7, lambda path: write_leaves(path / "tree.safetensors", stored, {"note": "kept"}), {}, peers=peers)
        return
    found = newest_checkpoint(root)
    assert found is not None
    restored, notes = read_tree(found.path / "tree.safetensors", {name: lay(name, 0 * array) for name, array in expected().items()})
    assert notes == {"note": "kept"}
    for name, array in expected().items():
        assert restored[name].sharding == tree[name].sharding
        for shard in restored[name].addressable_shards:
            assert np.asarray(shard.data).tobytes() == array[shard.index].tobytes(), (name, shard.index)


def expected() -> dict:
    import ml_dtypes
    import numpy as np

    numbers = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    return {
        "both": numbers,
        "rows": numbers.astype(np.int32),
        "columns": numbers.astype(ml_dtypes.bfloat16),
        "everywhere": -numbers,
        "scalar": np.float32(3.5).reshape(()),
    }


if __name__ == "__main__":
    what, directory, *numbers = sys.argv[1:]
    values = [int(number) for number in numbers]
    devices, fsdp, tensor = values[:3]
    process, processes, port = values[3:] or (0, 1, 0)
    main(what, Path(directory), devices, fsdp, tensor, process, processes, port)
