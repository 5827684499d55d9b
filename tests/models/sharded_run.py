"""A program for tests: loss and gradient of golden models on one device and on a mesh of many, and how far they are apart.

Run as `python -m tests.models.sharded_run FAMILY DATA FSDP TENSOR EXPERT [PROCESS PROCESSES PORT]`; with several processes each
has its share of the devices and takes part in the same computation. Prints one JSON object.
"""

import json
import os
import sys

DEVICES = 8


def main(family: str, sizes: list[int], process: int, processes: int, port: int) -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES // processes}"
    import jax

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=process)
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from slipstream.models.attention.dense import dense
    from slipstream.models.attention.rule import PackedRows
    from slipstream.models.decoder import packed_hidden_states
    from slipstream.models.logprobs import selected_logprobs, vocabulary_rule
    from slipstream.models.parameters import output_matrix
    from slipstream.models.sharding import batch_sharding, make_mesh, place
    from tests.models.families import golden_model, packed_row

    spec, params = golden_model(family)
    rng = np.random.default_rng(0)
    packed = [packed_row([rng.integers(0, spec.vocab, 20), rng.integers(0, spec.vocab, 11)], 32) for _ in range(8)]
    tokens, segments, positions = (np.concatenate(part) for part in zip(*packed, strict=True))

    def value_and_gradient(params, tokens, segments, positions):
        def loss(params):
            rows = PackedRows(segments=segments, parents=segments, positions=positions)
            hidden = packed_hidden_states(params, spec, tokens, rows, dense, scan=True, remat=True).hidden
            output, turned = output_matrix(params)
            flat, targets = hidden.reshape(-1, spec.d_model), jnp.roll(tokens, -1, 1).reshape(-1)
            scored = selected_logprobs(flat, output, targets, 1.0, vocabulary_rule(spec), turned)
            return -jnp.mean(scored.logprob)

        return jax.value_and_grad(loss)(params)

    local = jax.local_devices()[0]
    alone = jax.device_put((params, tokens, segments, positions), local)
    loss, gradient = jax.device_get(jax.jit(value_and_gradient)(*alone))
    mesh = make_mesh(**dict(zip(("data", "fsdp", "tensor", "expert"), sizes, strict=True)))
    rows = [jax.make_array_from_callback(array.shape, batch_sharding(mesh), array.__getitem__) for array in (tokens, segments, positions)]
    with jax.set_mesh(mesh):
        laid = place(params, spec, mesh, "learner")
        outputs = (NamedSharding(mesh, PartitionSpec()), jax.tree.map(lambda leaf: leaf.sharding, laid))
        sharded_loss, sharded_gradient = jax.jit(value_and_gradient, out_shardings=outputs)(laid, *rows)
        whole = jax.jit(lambda tree: tree, out_shardings=outputs[0])((sharded_loss, sharded_gradient))
    ours = [np.asarray(leaf.addressable_data(0)) for leaf in jax.tree.leaves(whole)]
    apart = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours[1:], jax.tree.leaves(gradient), strict=True)]
    split = [leaf.addressable_data(0).size < leaf.size for leaf in jax.tree.leaves(sharded_gradient)]
    result = {"loss": float(loss), "loss_apart": abs(float(ours[0]) - float(loss)), "gradient_apart": max(apart)}
    print(json.dumps(result | {"split_leaves": sum(split), "leaves": len(split), "devices": len(jax.devices())}))


if __name__ == "__main__":
    family, *numbers = sys.argv[1:]
    values = [int(number) for number in numbers]
    process, processes, port = values[4:] or (0, 1, 0)
    main(family, values[:4], process, processes, port)
