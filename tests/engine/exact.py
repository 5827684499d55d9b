"""Arrangements of sampler and learner in exact mode, and counts of the log-probs that have the same bits. For tests and `exact_matrix`."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import jax
import numpy as np

from slipstream.config.schema import BatchSection, MeshSection, ModelSection, RunConfig, SamplingSection
from slipstream.core.clock import ManualClock
from slipstream.core.records import FinishReason, Sample, SampleRequest, TrainingSequence, WeightVersion
from slipstream.engine import engine as engine_module
from slipstream.engine import row_counts
from slipstream.engine.engine import Engine
from slipstream.train.learner import Learner
from tests.engine.small import drain, request
from tests.engine.test_learner_agreement import sequence
from tests.goldens.read import golden
from tests.models.families import golden_model

PAGE = 16  # as our own attention wants it, in families whose heads are of 16; the others attend as XLA computes it
CHUNKS = (5, 40, 128)  # prefill tokens of a plan: no whole page, some, all that a prompt has


@dataclass(frozen=True, slots=True)
class Count:
    """Log-probs compared, and those with the same 32 bits."""

    compared: int
    equal: int

    def __add__(self, other: "Count") -> "Count":
        return Count(self.compared + other.compared, self.equal + other.equal)

    @property
    def exact(self) -> bool:
        return self.equal == self.compared > 0


NOTHING = Count(0, 0)
Cell = Callable[[str, str], Count]  # of family and precision


def sampler(family: str, precision: str, **options: object) -> Engine:
    spec, params = golden_model(family)
    settings = {"slots": 4, "tokens_per_dispatch": 3, "page_tokens": PAGE, "precision": precision, "exact": True} | options
    made = Engine(spec, id="exact", clock=ManualClock(), max_tokens=64, **settings)  # pyright: ignore[reportArgumentType]
    made.load(WeightVersion(lineage=0, version=0, params=params))
    return made


def asked(family: str) -> list[SampleRequest]:
    """Prompts of 1 to 38 tokens, a group of three with one prompt, completions long enough to run out of pages."""
    known = golden(family)
    prompts = [known.tokens[:31], known.tokens_b, known.tokens_c, known.tokens_b, known.tokens_b, known.tokens[:1], known.tokens[:38]]
    return [request(f"r{index}", prompt, new=20 + index, stop_ids=()) for index, prompt in enumerate(prompts)]


def learner(
    family: str, precision: str, *, layers: str = "scan", remat: bool = False, row_tokens: int = 64, rows: int = 2, devices: int = 1
) -> Learner:
    spec, params = golden_model(family)
    config = RunConfig(
        model=ModelSection.model_validate({"numerics": "exact", "learner_layers": layers, "remat": remat, "learner_precision": precision}),
        sampling=SamplingSection.model_validate({"page_tokens": PAGE, "precision": precision}),
        batch=BatchSection(row_tokens=row_tokens, rows_per_microbatch=rows, partial_microbatches=0),
        mesh=MeshSection(data=devices),
    )
    made = Learner(config, spec, params)
    made.begin_reinforcement()
    return made


@cache
def together(family: str, precision: str) -> dict[str, Sample]:
    """Every request, all at once: what the other arrangements are compared with."""
    return drain(sampler(family, precision), asked(family))


# ---- counting


def bits(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32).view(np.int32)


def same_samples(found: dict[str, Sample], expected: dict[str, Sample]) -> Count:
    """Tokens must be the same; log-probs are counted."""
    assert found.keys() == expected.keys()
    total = NOTHING
    for name, sample in found.items():
        np.testing.assert_array_equal(sample.completion_ids, expected[name].completion_ids)
        total += Count(len(sample.logprobs), int((bits(sample.logprobs) == bits(expected[name].logprobs)).sum()))
    return total


def sequences(requests: Iterable[SampleRequest], found: dict[str, Sample]) -> list[TrainingSequence]:
    return [sequence(one, found[one.key[0]]) for one in requests]


def same_scores(scored: Iterable[np.ndarray], sampled: Iterable[TrainingSequence]) -> Count:
    total = NOTHING
    for logprobs, one in zip(scored, sampled, strict=True):
        equal = bits(logprobs[one.loss_mask]) == bits(one.behaviour_logprobs[one.loss_mask])
        total += Count(len(equal), int(equal.sum()))
    return total


def scores(family: str, precision: str, found: dict[str, Sample], **options: object) -> Count:
    """The learner's log-probs against the sampler's, in the order given and with one prompt's samples apart."""
    made = learner(family, precision, **options)  # pyright: ignore[reportArgumentType]
    requests, total = asked(family), NOTHING
    for order in (requests, requests[::-2] + requests[-2::-2]):
        some = sequences(order, found)
        total += same_scores(made.score(some, made.weights()), some)
    return total


# ---- arrangements of the sampler


def alone(family: str, precision: str) -> Count:
    made = sampler(family, precision)
    return same_samples({one.key[0]: drain(made, [one])[one.key[0]] for one in asked(family)}, together(family, precision))


def other_company(family: str, precision: str) -> Count:
    """Another order, another number of rows and of steps a dispatch."""
    return same_samples(drain(sampler(family, precision, slots=7, tokens_per_dispatch=5), asked(family)[::-1]), together(family, precision))


def many_rows_and_few(family: str, precision: str) -> Count:
    """In a program of 32 rows, whose rows walk their pages in several parties, until most have ended; then in one of 8."""
    with patch.object(row_counts, "LEAST_WIDTH", 0):
        made = sampler(family, precision, slots=32)
        made.warm_up()
    found = drain(made, [replace(one, key=(f"{one.key[0]}{copy}", 0)) for one in asked(family) for copy in "abc"])
    assert made._row_counts == (8, 32)
    expected = together(family, precision)
    return same_samples(found, {name: expected[name[:-1]] for name in found})


def joining_and_leaving(family: str, precision: str) -> Count:
    """One more request before each step, in so few pages that some are taken away and computed again."""
    made, found = sampler(family, precision, pages=9), {}
    for one in asked(family):
        made.submit(one)
        found |= {sample.key[0]: sample for sample in made.step()}
    total = same_samples(found | drain(made), together(family, precision))
    assert made._scheduler.preemptions > 0
    return total


def chunks(tokens: int) -> Cell:
    def cell(family: str, precision: str) -> Count:
        with patch.object(engine_module, "PREFILL_TOKENS", tokens), patch.object(engine_module, "PREFILL_CALLS", 1):
            made = sampler(family, precision)
        return same_samples(drain(made, asked(family)), together(family, precision))

    return cell


def shuffled_pages(family: str, precision: str) -> Count:
    made = sampler(family, precision)
    random.Random(0).shuffle(made._scheduler.pool._empty)
    return same_samples(drain(made, asked(family)), together(family, precision))


def two_samplers(family: str, precision: str) -> Count:
    """Each draws half of the requests, a group's samples in both."""
    halves = [drain(sampler(family, precision), asked(family)[part::2]) for part in (0, 1)]
    return same_samples(halves[0] | halves[1], together(family, precision))


def turns(family: str, precision: str) -> Count:
    """Conversations of three turns, each of which goes on from what is kept of the one before; alone and from the start it is the same."""
    made, plain, total = sampler(family, precision), sampler(family, precision, keep_ended=False), NOTHING
    prompts = {one.key[0]: one.prompt_ids for one in asked(family)[:4]}
    for number in range(3):
        requests = [request(name, ids, seed=number, new=6, stop_ids=()) for name, ids in prompts.items()]
        found = drain(made, requests)
        total += same_samples({one.key[0]: drain(plain, [one])[one.key[0]] for one in requests}, found)
        prompts = {name: np.concatenate([ids, found[name].completion_ids, ids[:3]]) for name, ids in prompts.items()}
    assert made.reused_tokens > plain.reused_tokens == 0
    return total


# ---- arrangements of the learner


def scored(**options: object) -> Cell:
    def cell(family: str, precision: str) -> Count:
        return scores(family, precision, together(family, precision), **options)

    return cell


def differentiated(family: str, precision: str) -> Count:
    """Values inside the program of the gradient, recomputed: every ratio of the step is 1, or none counts."""
    sampled = sequences(asked(family), together(family, precision))
    made = learner(family, precision, remat=True)
    metrics = made.step([replace(one, advantages=np.where(one.loss_mask, np.float32(1), np.float32(0))) for one in sampled])
    assert 0 < metrics["grad_norm"] < np.inf
    equal = metrics["ratio_mean"] == metrics["ratio_p99"] == metrics["ess"] == 1.0 and metrics["ratio_std"] == 0.0
    return Count(int(metrics["tokens"]), int(metrics["tokens"]) if equal else 0)


def elsewhere(devices: int) -> Cell:
    """The learner in a process of its own, its rows shared by so many devices; what was sampled goes there through a file."""

    def cell(family: str, precision: str) -> Count:
        found, requests = together(family, precision), asked(family)
        with TemporaryDirectory() as folder:
            arrays = {f"{name}.{part}": getattr(sample, part) for name, sample in found.items() for part in _PARTS}
            np.savez(Path(folder) / "sampled.npz", **arrays)  # pyright: ignore[reportArgumentType]
            environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
            command = [sys.executable, "-m", "tests.engine.exact", folder, family, precision, str(devices)]
            subprocess.run(command, env=environment, check=True, timeout=600)
            with np.load(Path(folder) / "scored.npz") as scored:
                return same_scores([scored[one.key[0]] for one in requests], sequences(requests, found))

    return cell


_PARTS = ("completion_ids", "logprobs", "versions")


def _score_here(folder: Path, family: str, precision: str, devices: int) -> None:
    """The child of `elsewhere`."""
    assert len(jax.devices()) == devices
    requests = asked(family)
    with np.load(folder / "sampled.npz") as arrays:
        found = {one.key[0]: _read(arrays, one.key) for one in requests}
    made = learner(family, precision, rows=4, devices=devices)
    scored = made.score(sequences(requests, found), made.weights())
    written = {one.key[0]: logprobs for one, logprobs in zip(requests, scored, strict=True)}
    np.savez(folder / "scored.npz", **written)  # pyright: ignore[reportArgumentType]


def _read(arrays: "np.lib.npyio.NpzFile", key: tuple[str, int]) -> Sample:
    parts = {part: arrays[f"{key[0]}.{part}"] for part in _PARTS}
    return Sample(key=key, finish_reason=FinishReason.LENGTH, slot=0, started_s=0.0, finished_s=0.0, **parts)


if __name__ == "__main__":
    _score_here(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
