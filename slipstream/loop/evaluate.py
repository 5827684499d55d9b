"""An evaluation: answers of one version to given prompts in a fixed order, judged and scored. Drives its own sampler to the end.

`evaluate` is what a run makes every so many steps; `slipstream eval` puts the same parts together otherwise.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.errors import RunFailed
from slipstream.core.ports import Agents, Environments, Sampler, TextCodec
from slipstream.core.records import (
    EvaluationResult,
    FinishReason,
    Outcome,
    OutcomeKind,
    Prompt,
    Sample,
    SampleRequest,
    Tally,
    WeightVersion,
)
from slipstream.core.rng import stream_seed
from slipstream.loop.agent_episodes import open_episodes
from slipstream.loop.episodes import Episode
from slipstream.loop.pass_at_k import score

UNJUDGED = (OutcomeKind.TIMEOUT, OutcomeKind.INFRASTRUCTURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How the answers to each prompt are drawn."""

    samples: int = 1  # a prompt
    temperature: float = 0.0  # 0: greedy
    max_new_tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, judged."""

    prompt: Prompt
    drawn: Sample
    text: str
    outcome: Outcome

    @property
    def judged(self) -> bool:
        return self.outcome.kind not in UNJUDGED

    @property
    def right(self) -> bool:
        return self.outcome.kind is OutcomeKind.VALUE and (self.outcome.reward or 0.0) >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run asks of every version that it evaluates."""

    task: str  # name, for people
    greedy: Draw  # pass@1
    sampled: Draw | None = None  # pass@k, where asked for
    k: tuple[int, ...] = ()  # each above 1 and at most sampled.samples
    format_hash: str = ""  # see `eval_format`
    samples_kept: int = 0  # greedy answers kept for reading


def evaluate(
    *,
    sampler: Sampler,
    weights: WeightVersion,
    prompts: Sequence[Prompt],
    environments: Environments | Agents,
    codec: TextCodec,
    plan: Plan,
) -> EvaluationResult:
    """Greedy pass@1 and sampled pass@k of `weights` on the prompts, with 95 % intervals, and the first few greedy answers to read.

    Raises RunFailed when there is no prompt, or no prompt whose answers could be judged.
    """
    if not prompts:
        raise RunFailed(f"{plan.task} has no held-out prompts to evaluate on; a larger share of them is set by task.held_out")
    sampler.load(weights)
    greedy = answers(sampler=sampler, prompts=prompts, environments=environments, codec=codec, draw=plan.greedy)
    sampled = answers(sampler=sampler, prompts=prompts, environments=environments, codec=codec, draw=plan.sampled) if plan.sampled else []
    first = score(tallies(greedy), 1)
    return EvaluationResult(
        step=weights.version,
        task=plan.task,
        n=first.problems,
        pass_at_1=first.value,
        ci=first.ci,
        pass_at_k=tuple(score(tallies(sampled), k) for k in sorted(set(plan.k))),
        drawn=plan.sampled.samples if plan.sampled else 1,
        outcomes=outcome_counts([*greedy, *sampled]),
        format_hash=plan.format_hash,
        weight_digest=weights.digest,
        extra=figures(greedy),
        samples=tuple(
            {"prompt": answer.prompt.text, "completion": answer.text, "answer": answer.prompt.answer, "reward": answer.outcome.reward}
            for answer in greedy[: plan.samples_kept]
        ),
    )


def answers(
    *,
    sampler: Sampler,
    prompts: Sequence[Prompt],
    environments: Environments | Agents,
    codec: TextCodec,
    draw: Draw,
    on_answer: Callable[[Answer], object] = lambda _: None,
) -> list[Answer]:
    """`draw.samples` answers to each prompt by the weights that the sampler holds, in the order of the prompts, then of the samples.

    A sample's seed is a function of the draw's seed, its prompt's id and its number: a prompt's answers do not depend on the others.
    Each is judged when it ends, while the sampler works on the others, and `on_answer` is told of it then; so do environments of
    several turns their part.
    """
    episodes = open_episodes(sampler, environments, codec)
    requests = [
        SampleRequest(
            key=(str(place), number),
            prompt_ids=prompt.token_ids,
            seed=stream_seed(draw.seed, "evaluate", prompt.id, number),
            max_new_tokens=draw.max_new_tokens,
            temperature=draw.temperature,
            stop_ids=codec.stop_ids,
        )
        for place, prompt in enumerate(prompts)
        for number in range(draw.samples)
    ]
    found: dict[tuple[str, int], Answer] = {}

    for request in requests:
        episodes.begin(prompts[int(request.key[0])], request)
    while episodes.open:
        for episode in episodes.run():
            answer = _answer(episode, codec)
            found[answer.drawn.key] = answer
            on_answer(answer)
    return [found[request.key] for request in requests]


def _answer(episode: Episode, codec: TextCodec) -> Answer:
    text = codec.decode(episode.sample.completion_ids.tolist())
    return Answer(prompt=episode.prompt, drawn=episode.sample, text=text, outcome=episode.outcome)


def draw_all(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sample]:
    """Hand in all requests, run the sampler until it is idle, and return the samples in the order of the requests."""
    for request in requests:
        sampler.submit(request)
    found: dict[tuple[str, int], Sample] = {}
    while sampler.running() or sampler.waiting():
        for sample in sampler.step():
            found[sample.key] = sample
    return [found[request.key] for request in requests]


def tallies(given: Sequence[Answer]) -> tuple[Tally, ...]:
    """The answers counted by prompt, in the order of the prompts. Raises ValueError when two prompts have one id."""
    prompts = {answer.drawn.key[0]: answer.prompt.id for answer in given}
    if len(set(prompts.values())) < len(prompts):
        raise ValueError("two prompts of an evaluation have one id")
    judged = Counter(answer.drawn.key[0] for answer in given if answer.judged)
    right = Counter(answer.drawn.key[0] for answer in given if answer.right)
    return tuple(Tally(id=id, judged=judged[place], right=right[place]) for place, id in prompts.items())


def outcome_counts(given: Sequence[Answer]) -> dict[str, int]:
    """How many answers there are of each kind of outcome that occurs, in the order of the kinds."""
    counts = Counter(answer.outcome.kind for answer in given)
    return {kind.value: counts[kind] for kind in OutcomeKind if counts[kind]}


def figures(given: Sequence[Answer]) -> dict[str, float]:
    """Length, share cut off at the token limit, and form where the task has one."""
    found = {
        "completion_tokens": float(np.mean([len(answer.drawn.completion_ids) for answer in given])),
        "truncated_share": float(np.mean([answer.drawn.finish_reason is FinishReason.LENGTH for answer in given])),
    }
    outcomes = [answer.outcome for answer in given]
    if any(outcome.style for outcome in outcomes):
        found["style_share"] = float(np.mean([outcome.style == "worked" for outcome in outcomes]))
    formats = [outcome.format_ok for outcome in outcomes if outcome.format_ok is not None]
    if formats:
        found["format_ok"] = float(np.mean(formats))
    return found
