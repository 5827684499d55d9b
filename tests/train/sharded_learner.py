"""A program for tests: two steps of the learner on a mesh of virtual devices, in one process or several, and the checkpoint of each.

Run as `python -m tests.train.sharded_learner DEVICES RUNS [PROCESS PROCESSES PORT]`; RUNS is JSON: of each run the case, `config.mesh` and
the directory of checkpoints. Prints the list of their results as JSON. Tests call `run` on one device for what must come out.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import jax

from slipstream.config.schema import LoraSection, MeshSection, ModelSection, ObjectiveSection, RunConfig, SamplingSection
from slipstream.core.records import TrainingSequence
from slipstream.models.parameters import Params
from slipstream.models.spec import ModelSpec
from slipstream.train.checkpoint import newest_checkpoint, write_checkpoint
from slipstream.train.learner import Learner
from slipstream.train.peers import ALONE, AllProcesses
from slipstream.train.update import accumulate, apply_gradient, score
from tests.models.families import golden_model
from tests.train.small import SPEC, batch, config, params

STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is learned."""

    family: str = ""  # of golden models; empty: a tiny one, unrolled
    rows: int = 8  # of a microbatch
    exact: bool = False
    adapters: bool = False
    reference: bool = False  # and two minibatches


CASES = {
    "tiny": Case(rows=2),  # the programs of most tests of the learner
    "llama": Case(family="llama"),
    "exact": Case(exact=True),
    "experts": Case(family="qwen3_moe"),
    "adapters": Case(adapters=True),
    "reference": Case(reference=True),
}


def model(case: Case) -> tuple[ModelSpec, Params]:
    return golden_model(case.family) if case.family else (SPEC, params())


def settings(case: Case, mesh: Mapping[str, int]) -> RunConfig:
    model = ModelSection(
        numerics="exact" if case.exact else "fast",
        learner_layers="scan" if case.family else "unroll",
        learner_precision="f32",
        lora=LoraSection(rank=2, alpha=8.0, targets=("q", "v", "o")) if case.adapters else LoraSection(),
    )
    given = config(row_tokens=24, rows=case.rows, minibatches=2 if case.reference else 1)
    parts = {
        "model": model,
        "sampling": SamplingSection(page_tokens=8, precision="f32"),
        "objective": ObjectiveSection(kl_coefficient=0.1 if case.reference else 0.0),
        "mesh": MeshSection(**mesh),
    }
    return given.model_copy(update=parts)


@cache
def sequences() -> list[TrainingSequence]:
    return batch(3, count=16)


def learner(case: Case, mesh: Mapping[str, int]) -> Learner:
    """At version 0."""
    made = Learner(settings(case, mesh), *model(case))
    made.begin_reinforcement()
    return made


def run(name: str, mesh: Mapping[str, int], root: Path) -> dict[str, Any]:
    """Log-probs at the start, as samplers would be given the weights; then steps, each with metrics and a checkpoint under `root`.

    The start is the newest checkpoint there, if there is one.
    """
    case, found = CASES[name], newest_checkpoint(root)
    made = learner(case, mesh)
    if found:
        made.restore(found.path)
    scored = [logs.tolist() for logs in made.score(sequences(), made.weights())]
    metrics, compiled = [], []
    for _ in range(STEPS):
        metrics.append(made.step(_with_reference(made) if case.reference else sequences()))
        compiled.append(accumulate.compiled() + score.compiled() + cast(Any, apply_gradient)._cache_size())
        write_checkpoint(root, made.version, made.save, {}, peers=AllProcesses() if jax.process_count() > 1 else ALONE)
    return {"logprobs": scored, "metrics": metrics, "compiled": compiled} | _layout(made)


def _with_reference(made: Learner) -> list[TrainingSequence]:
    found = made.reference_logprobs(sequences())
    return [replace(one, reference_logprobs=logs) for one, logs in zip(sequences(), found, strict=True)]


def _layout(made: Learner) -> dict[str, float]:
    """Shares of the parameters' and the optimizer's bytes that lie on one device, and on how many devices samplers get them."""

    def share(tree: object) -> float:
        arrays = jax.tree.leaves(tree)
        return sum(array.addressable_shards[0].data.nbytes for array in arrays) / sum(array.nbytes for array in arrays)

    published = {device for leaf in jax.tree.leaves(made.weights().params) for device in leaf.sharding.device_set}
    return {"parameters": share(made._policy), "optimizer": share(made._state), "published_on": len(published)}


def main(devices: int, runs: list[tuple[str, dict[str, int], str]], process: int, processes: int, port: int) -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices // processes}"
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=process)
    print(json.dumps([run(name, mesh, Path(directory)) for name, mesh, directory in runs]))


if __name__ == "__main__":
    devices, runs, *numbers = sys.argv[1:]
    place = [int(number) for number in numbers] or [0, 1, 0]
    main(int(devices), json.loads(runs), place[0], place[1], place[2])
