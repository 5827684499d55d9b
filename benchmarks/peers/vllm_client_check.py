"""Our client of vLLM against a real server: the whole self-test, and weights swapped under running samples. Prints one JSON object.

    python benchmarks/peers/vllm_client_check.py --model DIR --vllm-python VENV/bin/python [--dtype float32|bfloat16]

Runs in our environment; the server runs in its own. Exit code 1 where something does not hold.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from vllm_server import NAME, serving

from slipstream.core.clock import SystemClock
from slipstream.core.records import FinishReason, Sample, SampleRequest, TrainingSequence, WeightVersion
from slipstream.loop.conformance import QUICK, THOROUGH, Verdict, check_sampler
from slipstream.loop.evaluate import draw_all
from slipstream.models.parameters import Params
from slipstream.runtime.score import logprobs
from slipstream.runtime.self_test import TOLERANCE
from slipstream.runtime.serve.model import LocalModel, open_model
from slipstream.runtime.vllm.sampler import VllmSampler
from slipstream.runtime.vllm.untied import untied
from slipstream.weights.files import read_params, read_texts, write_model
from slipstream.weights.special_ids import read_special_ids

SLOTS, CONTEXT = 32, 512
PROMPTS = ("The", "Once upon a time", "My favourite")
SWAPPED, SWAPPED_TOKENS, SWAP_AFTER = 6, 48, 8  # samples, tokens of each, tokens before the swap
LONG_PROMPT = 300
OTHER = 0.03  # how far the second version's weights are from the first's, as a share of each


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vllm-python", default="", help="interpreter of an environment with vLLM")
    parser.add_argument("--url", default="", help="a server that runs already, in place of --vllm-python")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--quick", action="store_true", help="the self-test of the start of a run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--dtype", asked.dtype, "--logprobs-mode", "processed_logprobs", "--enforce-eager"]
        options += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(SLOTS)]
        log, served = Path(folder) / "server.log", Path(folder) / "served"
        _write_served(asked.model, served, asked.dtype)
        with nullcontext(asked.url) if asked.url else serving(asked.vllm_python, served, log, options) as url:
            found = check(url, asked.model, Path(folder) / "weights", asked.dtype, quick=asked.quick)
    print(json.dumps(found, indent=1))
    return 0 if found["passed"] else 1


def check(url: str, directory: Path, weights: Path, dtype: str, *, quick: bool) -> dict[str, Any]:
    model = open_model(directory)
    versions = [WeightVersion(lineage=0, version=number, params=params) for number, params in enumerate(_two(directory, model))]
    opened = partial(VllmSampler, id="vllm", model=NAME, spec=model.spec, directory=weights, clock=SystemClock(), slots=SLOTS, dtype=dtype)
    tolerance = TOLERANCE["f32" if dtype == "float32" else "bf16"]
    with closing(opened(url)) as sampler:
        found: dict[str, Any] = {"sampler_class": sampler.sampler_class, "tolerance": tolerance}
        found["load_s"] = _timed(lambda: sampler.load(versions[0]))
        start = time.monotonic()
        findings = check_sampler(
            sampler,
            lambda sequences, temperature: logprobs(versions[0].params, model.spec, sequences, temperature),
            prompts=_prompts(model),
            known_tokens=model.tokens,
            seed=0,
            temperatures=(0.5, 1.0),
            tolerance=tolerance,
            effort=QUICK if quick else THOROUGH,
        )
        found["self_test_s"] = time.monotonic() - start
        found["self_test"] = [asdict(finding) for finding in findings]
        found["swap"] = _swap(sampler, versions, model, tolerance)
        found["partial"] = _partial(sampler, versions[0], model, dtype, tolerance)
    found["passed"] = all(one.verdict is not Verdict.FAILED for one in findings) and found["swap"]["passed"] and found["partial"]["passed"]
    return found


def _write_served(directory: Path, out: Path, dtype: str) -> None:
    """The model as a server on a CPU needs it to take new weights."""
    model = open_model(directory)
    spec, params = untied(model.spec, read_params(directory, model.spec))
    write_model(out, spec, params, special=read_special_ids(directory), dtype=dtype, texts=read_texts(directory))


def _two(directory: Path, model: LocalModel) -> tuple[Params, Params]:
    first = read_params(directory, model.spec)
    rng = np.random.default_rng(0)
    return first, jax.tree.map(lambda leaf: leaf * (1 + OTHER * rng.standard_normal(leaf.shape, np.float32)), first)


def _prompts(model: LocalModel) -> list[np.ndarray]:
    return [np.array(model.tokenizer.encode(text), np.int32) for text in PROMPTS]


def _requests(model: LocalModel, count: int, tokens: int) -> list[SampleRequest]:
    prompts = _prompts(model)
    prompts[0] = np.resize(np.concatenate(prompts), LONG_PROMPT)  # fills pages of the server's cache, which a swap must not leave in use
    return [
        SampleRequest(
            key=("check", index),
            prompt_ids=prompts[index % len(prompts)],
            seed=index,
            max_new_tokens=tokens,
            temperature=0.7,
            stop_ids=(),
        )
        for index in range(count)
    ]


def _swap(sampler: VllmSampler, versions: Sequence[WeightVersion], model: LocalModel, tolerance: float) -> dict[str, Any]:
    """New weights under running samples: each token must be of the version it names, and of no other."""
    requests = _requests(model, SWAPPED, SWAPPED_TOKENS)
    for request in requests:
        sampler.submit(request)
    while min(len(sampler.drawn(request.key)[0]) for request in requests) < SWAP_AFTER:
        sampler.step()
    load_s = _timed(lambda: sampler.load(versions[1]))
    samples = []
    while sampler.running() or sampler.waiting():
        samples += sampler.step()
    sequences = [_sequence(requests[sample.key[1]], sample) for sample in samples]
    told = np.concatenate([sample.logprobs for sample in samples])
    number = np.concatenate([sample.versions for sample in samples])
    scored = [_scored(version, model, sequences) for version in versions]
    gaps = [[float(np.abs(told - values)[number == drawn].mean()) for values in scored] for drawn in (0, 1)]
    sampler.load(versions[0])
    own, other = max(gaps[0][0], gaps[1][1]), min(gaps[0][1], gaps[1][0])
    return {
        "load_s": load_s,
        "tokens_of_each_version": [int((number == drawn).sum()) for drawn in (0, 1)],
        "gap_of_tokens_of_0_to_versions": gaps[0],  # nats, mean
        "gap_of_tokens_of_1_to_versions": gaps[1],
        "passed": own <= tolerance / 0.7 and other > 5 * own and len(samples) == SWAPPED,
    }


def _partial(sampler: VllmSampler, weights: WeightVersion, model: LocalModel, dtype: str, tolerance: float) -> dict[str, Any]:
    """A pause changes nothing, and what an aborted sample has is the beginning of what it would have been.

    In bfloat16 the server's bits depend on a sample's company, so one that goes on alone may take another turn; its log-probs must
    still be those of its own tokens.
    """
    whole = draw_all(sampler, _requests(model, 2, SWAPPED_TOKENS))
    for request in _requests(model, 2, SWAPPED_TOKENS):
        sampler.submit(request)
    while len(sampler.drawn(("check", 0))[0]) < SWAP_AFTER:
        sampler.step()
    sampler.pause()
    part = sampler.abort(("check", 0))
    sampler.resume()
    rest: list[Sample] = []
    while sampler.running() or sampler.waiting():
        rest += sampler.step()
    assert part is not None
    begins = np.array_equal(part.completion_ids, whole[0].completion_ids[: len(part.completion_ids)])
    same = len(rest) == 1 and np.array_equal(rest[0].completion_ids, whole[1].completion_ids)
    scored = _scored(weights, model, [_sequence(_requests(model, 2, SWAPPED_TOKENS)[1], rest[0])])
    gap = float(np.abs(rest[0].logprobs - scored).mean())
    right = len(rest[0].completion_ids) == len(whole[1].completion_ids) and gap <= tolerance / 0.7
    return {
        "tokens": len(part.completion_ids),
        "is_the_beginning": begins,
        "paused_is_the_same": same,
        "gap_of_paused": gap,  # nats, mean
        "passed": begins and right and (same or dtype != "float32") and part.finish_reason is FinishReason.ABORTED,
    }


def _sequence(request: SampleRequest, sample: Sample) -> TrainingSequence:
    ids = np.concatenate([request.prompt_ids, sample.completion_ids])
    zeros = np.zeros(len(ids), np.float32)
    return TrainingSequence(
        token_ids=ids,
        loss_mask=np.arange(len(ids)) >= len(request.prompt_ids),
        advantages=zeros,
        behaviour_logprobs=zeros,
        versions=zeros.astype(np.int32),
    )


def _scored(version: WeightVersion, model: LocalModel, sequences: Sequence[TrainingSequence]) -> np.ndarray:
    found = logprobs(version.params, model.spec, sequences, 0.7)
    return np.concatenate([values[one.loss_mask] for values, one in zip(found, sequences, strict=True)])


def _timed(work: Any) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
