"""Checks on a model's own weights: compilation, sampler conformance, exactness, the way through weight files. Called by `doctor`."""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from slipstream.core.clock import SystemClock
from slipstream.core.records import SampleRequest, TrainingSequence, WeightVersion
from slipstream.core.rng import generator, stream_seed
from slipstream.engine.engine import Engine
from slipstream.loop.conformance import THOROUGH, Verdict, check_sampler
from slipstream.loop.evaluate import draw_all
from slipstream.models.numerics import EXACT, FAST, Numerics, barriers_hold
from slipstream.models.parameters import Params, initialise
from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.runtime.doctor.line import Grade, Line
from slipstream.runtime.score import logprobs
from slipstream.runtime.serve.model import PAGE_TOKENS, open_model
from slipstream.weights.digest import weight_digest
from slipstream.weights.files import read_params, write_model
from slipstream.weights.special_ids import SpecialIds

SAMPLER, EXACTNESS, WEIGHTS = "sampler", "exactness", "weights"
SLOTS, MAX_TOKENS, STEPS = 16, 32, 4
FRESH = ModelSpec(
    vocab=16,
    d_model=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    d_ff=128,
    rope=RopeSpec(theta=1e4),
    norm_eps=1e-5,
    tied=True,
    context=64,
)
"""The model that is examined where none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is examined."""

    spec: ModelSpec
    params: Params
    name: str

    @property
    def known_tokens(self) -> int:
        return self.spec.vocab if self.spec.known_tokens is None else self.spec.known_tokens

    def engine(self, *, exact: bool = False) -> Engine:
        made = Engine(
            self.spec,
            id="doctor",
            clock=SystemClock(),
            slots=SLOTS,
            max_tokens=MAX_TOKENS,
            tokens_per_dispatch=STEPS,
            exact=exact,
            page_tokens=PAGE_TOKENS,
        )
        made.load(WeightVersion(lineage=0, version=0, params=self.params))
        return made

    def prompts(self, count: int, tokens: int) -> list[np.ndarray]:
        """Tokens at random: of how they go on a model is unsure, so faults show."""
        return [generator(0, "doctor", index).integers(0, self.known_tokens, tokens).astype(np.int32) for index in range(count)]


def examined_model(directory: Path | None) -> Model:
    """The model of a directory, or a tiny fresh one. Raises UsageError for a directory that is no model."""
    if directory is None:
        return Model(spec=FRESH, params=initialise(FRESH, 0), name="a tiny fresh model")
    spec = open_model(directory).spec
    return Model(spec=spec, params=read_params(directory, spec), name=str(directory))


def compiled_lines(model: Model) -> list[Line]:
    """The sampler's programs, and what it took to have them."""
    engine, since = model.engine(), time.monotonic()
    programs = engine.warm_up()
    detail = f"{len(programs)} in {time.monotonic() - since:.1f} s: {'; '.join(programs)}"
    return [Line(part=SAMPLER, name="programs", grade=Grade.OK, detail=detail)]


def conformance_lines(model: Model) -> list[Line]:
    """The sampler's whole self-test against the learner's log-probs; a line of its own for each check that failed."""
    findings = check_sampler(
        model.engine(),
        lambda sequences, temperature: logprobs(model.params, model.spec, sequences, temperature),
        prompts=model.prompts(2, 6),
        known_tokens=model.known_tokens,
        seed=0,
        effort=THOROUGH,
    )
    checks = {verdict: [one for one in findings if one.verdict is verdict] for verdict in Verdict}
    detail = f"{len(checks[Verdict.PASSED])} of {len(findings)} checks passed on {model.name}"
    if unclear := checks[Verdict.UNCLEAR]:
        detail += f"; too certain to show a fault: {', '.join(one.check for one in unclear)}"
    fix = "nothing that this sampler draws can be trained on; report it with this output"
    failed = [Line(part=SAMPLER, name=one.check, grade=Grade.FAILED, detail=one.meaning, fix=fix) for one in checks[Verdict.FAILED]]
    return failed or [Line(part=SAMPLER, name="conformance", grade=Grade.OK, detail=detail)]


def exactness_lines(model: Model) -> list[Line]:
    """Sampled log-probs against scored ones, counted by their bits, in both modes."""
    barriers = barriers_hold()
    lines = [
        Line(part=EXACTNESS, name="barriers", grade=Grade.OK, detail="kept by this compiler: exact mode is possible")
        if barriers
        else Line(
            part=EXACTNESS,
            name="barriers",
            grade=Grade.WARNING,
            detail="dropped by this compiler: exact mode is refused",
            fix="use model.numerics=fast, or a jax version that docs/exactness.md names",
        )
    ]
    for numerics in (FAST, EXACT) if barriers else (FAST,):
        equal, total, largest = _compared(model, numerics)
        lines.append(_compared_line(numerics, equal, total, largest))
    return lines


def _compared_line(numerics: Numerics, equal: int, total: int, largest: float) -> Line:
    name = "exact" if numerics.exact else "fast"
    detail = f"{equal} of {total} log-probs have the learner's bits; the largest difference is {largest:.1e} nats"
    if numerics.exact and equal < total:
        fix = "exact mode does not hold here: use model.numerics=fast, and report the versions above"
        return Line(part=EXACTNESS, name=name, grade=Grade.FAILED, detail=detail, fix=fix)
    if not largest < 0.1:
        fix = "sampler and learner are not one model here: nothing can be trained; report it with this output"
        return Line(part=EXACTNESS, name=name, grade=Grade.FAILED, detail=detail, fix=fix)
    return Line(part=EXACTNESS, name=name, grade=Grade.OK, detail=detail)


def _compared(model: Model, numerics: Numerics) -> tuple[int, int, float]:
    """Log-probs with equal bits, log-probs compared, largest difference in nats."""
    prompts = [*model.prompts(6, 9), *model.prompts(2, 1)]
    requests = [
        SampleRequest(
            key=("doctor", index),
            prompt_ids=prompt,
            seed=stream_seed(0, "doctor", index),
            max_new_tokens=8 + index,
            temperature=1.0,
            stop_ids=(),
        )
        for index, prompt in enumerate(prompts)
    ]
    samples = draw_all(model.engine(exact=numerics.exact), requests)
    sequences = [_sequence(prompt, sample.completion_ids) for prompt, sample in zip(prompts, samples, strict=True)]
    found = logprobs(model.params, model.spec, sequences, 1.0, numerics)
    scored = np.concatenate([values[one.loss_mask] for values, one in zip(found, sequences, strict=True)], dtype=np.float32)
    drawn = np.concatenate([sample.logprobs for sample in samples])
    return int((scored.view(np.int32) == drawn.view(np.int32)).sum()), len(drawn), float(np.abs(scored - drawn).max())


def _sequence(prompt_ids: np.ndarray, completion_ids: np.ndarray) -> TrainingSequence:
    tokens = len(prompt_ids) + len(completion_ids)
    nothing = np.zeros(tokens, np.float32)
    return TrainingSequence(
        token_ids=np.concatenate([prompt_ids, completion_ids]),
        loss_mask=np.arange(tokens) >= len(prompt_ids),
        advantages=nothing,
        behaviour_logprobs=nothing,
        versions=np.full(tokens, -1, np.int32),
    )


def round_trip_lines(model: Model) -> list[Line]:
    """Weights written as a model directory and read again have the digest that they had."""
    leaves = jax.tree.leaves(model.params)
    needed, free = sum(leaf.nbytes for leaf in leaves), shutil.disk_usage(tempfile.gettempdir()).free
    if needed * 1.1 > free:
        detail = f"not tried: {needed / 2**30:.1f} GiB are needed in {tempfile.gettempdir()}, {free / 2**30:.1f} GiB are free"
        return [Line(part=WEIGHTS, name="round trip", grade=Grade.WARNING, detail=detail, fix="set TMPDIR to a larger disk")]
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), model.spec, model.params, special=SpecialIds(bos=None, eos=(0,), pad=None))
        again = read_params(Path(folder), model.spec)
    before, after = weight_digest(model.params, model.spec), weight_digest(again, model.spec)
    if before != after:
        detail, fix = f"written with digest {before[:12]}, read with {after[:12]}", "weights cannot be saved here; check disk and memory"
        return [Line(part=WEIGHTS, name="round trip", grade=Grade.FAILED, detail=detail, fix=fix)]
    detail = f"{len(leaves)} arrays, {needed / 2**20:.1f} MiB written and read, digest {before[:12]} both times"
    return [Line(part=WEIGHTS, name="round trip", grade=Grade.OK, detail=detail)]
