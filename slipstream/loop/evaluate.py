"""Held-out evaluation, greedy, pinned to one version, in a fixed order. Drives its own sampler to the end."""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from slipstream.core.errors import RunFailed
from slipstream.core.ports import Grader, Sampler, TextCodec
from slipstream.core.records import EvaluationResult, Outcome, OutcomeKind, Prompt, Sample, SampleRequest, WeightVersion


def evaluate(
    *,
    sampler: Sampler,
    weights: WeightVersion,
    prompts: Sequence[Prompt],
    grader: Grader,
    codec: TextCodec,
    task: str,
    max_new_tokens: int,
    samples_kept: int,
) -> EvaluationResult:
    """Greedy pass@1 of `weights` on the prompts, with a 95 % interval, and the first few answers to read.

    Raises RunFailed when there is no prompt.
    """
    if not prompts:
        raise RunFailed(f"{task} has no held-out prompts to evaluate on; a larger share of them is set by task.held_out")
    sampler.load(weights)
    requests = [
        SampleRequest(
            key=(str(index), 0),
            prompt_ids=prompt.token_ids,
            seed=0,
            max_new_tokens=max_new_tokens,
            temperature=0.0,
            stop_ids=codec.stop_ids,
        )
        for index, prompt in enumerate(prompts)
    ]
    samples = draw_all(sampler, requests)
    texts = [codec.decode(sample.completion_ids.tolist()) for sample in samples]
    outcomes = [grader.grade(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    right = sum(outcome.kind is OutcomeKind.VALUE and (outcome.reward or 0.0) >= 1.0 for outcome in outcomes)
    return EvaluationResult(
        step=weights.version,
        task=task,
        n=len(prompts),
        pass_at_1=right / len(prompts),
        ci=wilson_interval(right, len(prompts)),
        extra=_figures(outcomes, [len(sample.completion_ids) for sample in samples]),
        samples=tuple(
            {"prompt": prompt.text, "completion": text, "answer": prompt.answer, "reward": outcome.reward}
            for prompt, text, outcome in list(zip(prompts, texts, outcomes, strict=True))[:samples_kept]
        ),
    )


def draw_all(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sample]:
    """Hand in all requests, run the sampler until it is idle, and return the samples in the order of the requests."""
    for request in requests:
        sampler.submit(request)
    found: dict[tuple[str, int], Sample] = {}
    while sampler.running() or sampler.waiting():
        found |= {sample.key: sample for sample in sampler.step()}
    return [found[request.key] for request in requests]


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927); 95 % at the default z. Raises ValueError without trials."""
    if trials < 1:
        raise ValueError("an interval needs at least one trial")
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def _figures(outcomes: Sequence[Outcome], lengths: Sequence[int]) -> dict[str, float]:
    figures = {"completion_tokens": float(np.mean(lengths))}
    if any(outcome.style for outcome in outcomes):
        figures["style_share"] = float(np.mean([outcome.style == "worked" for outcome in outcomes]))
    formats = [outcome.format_ok for outcome in outcomes if outcome.format_ok is not None]
    if formats:
        figures["format_ok"] = float(np.mean(formats))
    return figures
