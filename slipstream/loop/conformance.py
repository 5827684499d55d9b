"""A self-test of any sampler through its port: do draws, log-probs and seeds mean what the rest of the system takes them for?

Short samples are drawn at several temperatures, all in one shuffled company. Some explore: which tokens are there, with what
stored log-prob? Those tokens are the cells that the other samples, drawn with other seeds, are counted in. So draws are held
against the sampler's own log-probs, for any size of vocabulary; and a few samples' log-probs against the learner's.
Used before the first ticket of a run, by `slipstream doctor` and in CI. Its seeds are its own: it changes no draw of a run.

A sound sampler fails with a probability below 1e-4: at most nine findings rest on chance, each with a false alarm of at most
1e-5 by a bound that holds for any number of draws (`goodness`); the others are certain, given the tolerance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import exp, log
from typing import Protocol

import numpy as np

from slipstream.core.ports import Sampler
from slipstream.core.records import Sample, SampleRequest, TrainingSequence
from slipstream.core.rng import generator, stream_seed
from slipstream.loop.evaluate import draw_all
from slipstream.loop.goodness import Fit, fit, threshold, together

FALSE_ALARM = 1e-5  # of each finding that rests on chance
SURPRISE = log(1 / FALSE_ALARM)
SUM_TOLERANCE = 0.02  # by which probabilities of distinct tokens may exceed 1: a sampler's rounding may depend on company


class Score(Protocol):
    """The learner's log-probs of each sequence's tokens [tokens] at a temperature, with the weights that the sampler has."""

    def __call__(self, sequences: Sequence[TrainingSequence], temperature: float) -> Sequence[np.ndarray]: ...


class Verdict(StrEnum):
    """What a check came to."""

    PASSED = "passed"
    FAILED = "failed"
    UNCLEAR = "unclear"  # nothing wrong, but these prompts could not have shown a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check. It has failed where `statistic` exceeds `threshold`."""

    check: str
    verdict: Verdict
    statistic: float
    threshold: float
    meaning: str  # in plain words


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How many samples, each prompt and temperature."""

    explored: int  # that find the cells
    drawn: int  # that are counted in them
    new_tokens: int  # of each sample, at least 2; the log-probs of all are compared, draws of the first two
    cells: int  # most cells of one context; few cells need few draws to show a fault
    scored: int  # compared with the learner
    repeated: int  # drawn twice with the same seed


QUICK = Effort(explored=16, drawn=40, new_tokens=2, cells=3, scored=4, repeated=4)
THOROUGH = Effort(explored=64, drawn=256, new_tokens=4, cells=6, scored=12, repeated=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """What the sampler did for one prompt at one temperature."""

    prompt_ids: np.ndarray
    temperature: float
    explored: list[Sample]
    drawn: list[Sample]  # first half: seeds differ in the low 32 bits; second half: in the high ones
    again: list[Sample]  # the first of each half of `drawn`, once more

    def repeated(self) -> list[Sample]:
        """Those of `drawn` that `again` repeats."""
        half = len(self.again) // 2
        return [*self.drawn[:half], *self.drawn[len(self.drawn) - half :]]


def check_sampler(
    sampler: Sampler,
    score: Score,
    *,
    prompts: Sequence[np.ndarray],
    known_tokens: int,
    seed: int,
    temperatures: Iterable[float] = (0.5, 1.0),
    tolerance: float = 1e-3,
    effort: Effort = THOROUGH,
) -> list[Finding]:
    """Findings in a fixed order; a function of its arguments, the weights and the sampler.

    Args:
        sampler: with the weights to test loaded, idle, and with room for the prompts and `effort.new_tokens`.
        score: what the learner says at the same weights.
        prompts: a few, int32; the less certain the model is how they go on, the more the test can show.
        known_tokens: ids from here on are padding rows of the vocabulary.
        seed: of the test's own draws.
        temperatures: all above 0. Temperature 1 is always among them, and greedy samples are drawn as well.
        tolerance: largest mean difference between the sampler's and the learner's log-probs at temperature 1, nats; at lower
            temperatures, where differences are larger, more is allowed. By the sampler's precision; 0 = equal to the bit.
        effort: how many samples.
    """
    everything, greedy = _sampled(sampler, prompts, sorted({*temperatures, 1.0}), seed, effort)
    every = [sample for part in everything for sample in (*part.explored, *part.drawn, *part.again)]
    every += [sample for pair in greedy for sample in pair]
    whole = _records(every, effort.new_tokens, sampler.version)
    if whole.verdict is Verdict.FAILED:
        return [whole]
    findings = [whole, _padding(every, known_tokens)]
    for temperature in sorted({part.temperature for part in everything}):
        parts = [part for part in everything if part.temperature == temperature]
        asked = [(part.prompt_ids, sample) for part in parts for sample in _distinct(part.explored, effort.scored)]
        asked += [(prompt, pair[0]) for prompt, pair in zip(prompts, greedy, strict=True) if temperature == 1]
        findings += [
            _draws(f"first tokens at temperature {temperature:g}", [_first(part, effort.cells) for part in parts]),
            _draws(f"second tokens at temperature {temperature:g}", [_second(part, effort.cells) for part in parts]),
            _sums(temperature, parts),
            _agreement(temperature, asked, score, tolerance),
        ]
    plain = [part for part in everything if part.temperature == 1]
    return [*findings, _seeds_differ(everything), _seeds_repeat(everything), _greedy(greedy, plain, tolerance)]


def failures(findings: Iterable[Finding]) -> str:
    """What failed, in one line; empty when nothing did."""
    return "; ".join(f"{one.check}: {one.meaning}" for one in findings if one.verdict is Verdict.FAILED)


# ---- sampling


@dataclass(slots=True)
class _Asked:
    """Requests, and which of them belong together. Mutable while they are being thought up."""

    new_tokens: int
    requests: list[SampleRequest] = field(default_factory=list[SampleRequest])

    def ask(self, prompt: np.ndarray, temperature: float, seeds: Sequence[int]) -> slice:
        """One sample a seed; where they will stand among the samples."""
        start = len(self.requests)
        for place, seed in enumerate(seeds, start):
            request = SampleRequest(
                key=("conformance", place),
                prompt_ids=prompt,
                seed=seed,
                max_new_tokens=self.new_tokens,
                temperature=temperature,
                stop_ids=(),
            )
            self.requests.append(request)
        return slice(start, len(self.requests))

    def drawn(self, sampler: Sampler, seed: int) -> list[Sample]:
        """All samples, made in one shuffled company."""
        order: list[int] = generator(seed, "conformance", "order").permutation(len(self.requests)).tolist()
        samples = draw_all(sampler, [self.requests[place] for place in order])
        return [sample for _, sample in sorted(zip(order, samples, strict=True), key=lambda pair: pair[0])]


def _sampled(
    sampler: Sampler, prompts: Sequence[np.ndarray], temperatures: Sequence[float], seed: int, effort: Effort
) -> tuple[list[_Drawn], list[tuple[Sample, Sample]]]:
    """What was drawn for each prompt and temperature; and two greedy samples a prompt."""
    asked, half = _Asked(new_tokens=effort.new_tokens), effort.repeated // 2
    plans: list[tuple[np.ndarray, float, slice, slice, slice]] = []
    for index, prompt in enumerate(prompts):
        for temperature in temperatures:
            base = stream_seed(seed, "conformance", index, f"{temperature}")
            explored = [stream_seed(base, "explored", number) for number in range(effort.explored)]
            drawn = _drawn_seeds(base, effort.drawn)
            again = [*drawn[:half], *drawn[len(drawn) - half :]]
            places = [asked.ask(prompt, temperature, seeds) for seeds in (explored, drawn, again)]
            plans.append((prompt, temperature, places[0], places[1], places[2]))
    pairs = [asked.ask(prompt, 0.0, (0, 1)) for prompt in prompts]
    samples = asked.drawn(sampler, seed)
    parts = [
        _Drawn(prompt_ids=prompt, temperature=temperature, explored=samples[explored], drawn=samples[drawn], again=samples[again])
        for prompt, temperature, explored, drawn, again in plans
    ]
    return parts, [(samples[pair][0], samples[pair][1]) for pair in pairs]


def _drawn_seeds(base: int, count: int) -> list[int]:
    """Half of the seeds share the high 32 bits, half the low ones: a sampler that drops either repeats itself."""
    low, high, low_half = base & 0xFFFFFFFF, base >> 32, count // 2
    return [(low + step) % 2**32 | high << 32 for step in range(low_half)] + [
        low | (high + 1 + step) % 2**32 << 32 for step in range(count - low_half)
    ]


# ---- checks that are certain


def _finding(check: str, statistic: float, limit: float, passed: str, failed: str, unclear: str = "") -> Finding:
    """`unclear` says why a pass would mean nothing."""
    if not statistic <= limit:  # a statistic that is no number has failed as well
        verdict, meaning = Verdict.FAILED, failed
    elif unclear:
        verdict, meaning = Verdict.UNCLEAR, unclear
    else:
        verdict, meaning = Verdict.PASSED, passed
    return Finding(check=check, verdict=verdict, statistic=float(statistic), threshold=float(limit), meaning=meaning)


def _records(samples: Sequence[Sample], tokens: int, version: int) -> Finding:
    def broken(sample: Sample) -> bool:
        lengths = {len(sample.completion_ids), len(sample.logprobs), len(sample.versions)}
        if lengths != {tokens}:
            return True
        return not np.isfinite(sample.logprobs).all() or bool((sample.logprobs > 1e-3).any() or (sample.versions != version).any())

    wrong = sum(broken(sample) for sample in samples)
    return _finding(
        "records",
        wrong,
        0,
        f"{len(samples)} samples have as many tokens, log-probs and versions as were asked for",
        f"{wrong} of {len(samples)} samples are not {tokens} tokens of version {version} with finite log-probs of at most 0",
    )


def _padding(samples: Sequence[Sample], known: int) -> Finding:
    tokens = np.concatenate([sample.completion_ids for sample in samples])
    unknown = int(((tokens < 0) | (tokens >= known)).sum())
    return _finding(
        "padding rows",
        unknown,
        0,
        f"none of {len(tokens)} tokens lies outside the {known} of the vocabulary",
        f"{unknown} of {len(tokens)} tokens are padding rows of the vocabulary, which has {known} tokens",
    )


def _sums(temperature: float, parts: Sequence[_Drawn]) -> Finding:
    total = max(sum(_cells(part.explored, 0).values()) for part in parts)
    return _finding(
        f"probabilities at temperature {temperature:g}",
        total,
        1 + SUM_TOLERANCE,
        "the stored log-probs of distinct next tokens are those of parts of one distribution",
        f"stored log-probs of distinct next tokens add up to a probability of {total:.2f}: they are not the drawn tokens' own",
    )


def _agreement(temperature: float, asked: Sequence[tuple[np.ndarray, Sample]], score: Score, tolerance: float) -> Finding:
    sequences = [_sequence(prompt, sample) for prompt, sample in asked]
    scored = score(sequences, temperature)
    gaps = np.concatenate(
        [(found - one.behaviour_logprobs)[one.loss_mask] for found, one in zip(scored, sequences, strict=True)], dtype=np.float64
    )
    firsts = {(prompt.tobytes(), int(sample.completion_ids[0])) for prompt, sample in asked}
    likeliest_only = len(firsts) == len({prompt.tobytes() for prompt, _ in asked})
    mean, allowed = float(np.abs(gaps).mean()), tolerance / min(1.0, temperature)
    return _finding(
        f"log-probs at temperature {temperature:g}",
        mean,
        allowed,
        f"{len(gaps)} stored log-probs are the learner's to {mean:.1e} nats in the mean",
        f"stored log-probs differ from the learner's by {mean:.3g} nats in the mean, at most {allowed:g} is allowed: they are "
        "another token's, position's, temperature's or model's",
        f"{len(gaps)} stored log-probs are the learner's, but all of them are of the likeliest first tokens" if likeliest_only else "",
    )


def _seeds_repeat(parts: Sequence[_Drawn]) -> Finding:
    pairs = [pair for part in parts for pair in zip(part.repeated(), part.again, strict=True)]
    differing = sum(not np.array_equal(one.completion_ids, other.completion_ids) for one, other in pairs)
    by_chance = exp(sum(float(one.logprobs.sum()) for one, _ in pairs))
    return _finding(
        "seeds repeat",
        differing,
        0,
        f"{len(pairs)} samples drawn again in other company are the same",
        f"{differing} of {len(pairs)} samples drawn again with the same prompt and seed are others: draws depend on something else",
        f"the prompts are so certain that samples without seeds would be the same with probability {by_chance:.1e}"
        if by_chance > 1e-3
        else "",
    )


def _greedy(greedy: Sequence[tuple[Sample, Sample]], parts: Sequence[_Drawn], tolerance: float) -> Finding:
    """`parts` are at temperature 1, where greedy log-probs are stored."""
    differing = sum(not np.array_equal(one.completion_ids, other.completion_ids) for one, other in greedy)
    shortfall = max(
        max(float(sample.logprobs[0]) for sample in part.explored) - float(one.logprobs[0])
        for (one, _), part in zip(greedy, parts, strict=True)
    )
    return _finding(
        "greedy",
        np.inf if differing else max(0.0, shortfall),
        max(tolerance, SUM_TOLERANCE),
        "temperature 0 takes the likeliest token, whatever the seed",
        f"{differing} of {len(greedy)} greedy samples depend on the seed"
        if differing
        else f"temperature 0 takes a token that is {exp(-shortfall):.2f} times as likely as another",
    )


# ---- checks that rest on chance


def _draws(check: str, fits: Sequence[Fit]) -> Finding:
    whole = together(fits)
    limit = threshold(whole.freedom, FALSE_ALARM)
    return _finding(
        check,
        whole.evidence,
        limit,
        f"{whole.draws} draws follow the sampler's own log-probs",
        f"{whole.draws} draws do not follow the sampler's own log-probs: chance gives so much evidence ({whole.evidence:.3g} nats) "
        f"less than once in {1 / FALSE_ALARM:.0f} times",
        f"{whole.draws} draws follow the sampler's log-probs, but the prompts are so certain that greedy ones would as well"
        if whole.if_greedy < limit
        else "",
    )


def _first(part: _Drawn, cells: int) -> Fit:
    return _counted(part.drawn, _cells(part.explored, 0, cells), 0)


def _second(part: _Drawn, cells: int) -> Fit:
    """Second tokens of the draws that begin with the commonest first token explored."""
    firsts = [int(sample.completion_ids[0]) for sample in part.explored]
    common = max(sorted(set(firsts)), key=firsts.count)

    def continuing(samples: Sequence[Sample]) -> list[Sample]:
        return [sample for sample in samples if int(sample.completion_ids[0]) == common]

    return _counted(continuing(part.drawn), _cells(continuing(part.explored), 1, cells), 1)


def _cells(explored: Sequence[Sample], position: int, most: int | None = None) -> dict[int, float]:
    """The commonest tokens at a position and the probabilities that were stored for them."""
    tokens = [int(sample.completion_ids[position]) for sample in explored]
    stored = {token: exp(float(sample.logprobs[position])) for token, sample in zip(tokens, explored, strict=True)}
    chosen = sorted(stored, key=lambda token: (-tokens.count(token), token))[:most]
    return {token: stored[token] for token in chosen}


def _counted(samples: Sequence[Sample], cells: dict[int, float], position: int) -> Fit:
    tokens = [int(sample.completion_ids[position]) for sample in samples]
    counts = [tokens.count(token) for token in cells]
    return fit([*counts, len(tokens) - sum(counts)], list(cells.values()))


def _seeds_differ(parts: Sequence[_Drawn]) -> Finding:
    """For a half whose n samples are all equal, with probability q each: chance does that n - 1 times over."""
    halves = [half for part in parts for half in (part.drawn[: len(part.drawn) // 2], part.drawn[len(part.drawn) // 2 :])]

    def surprise(samples: Sequence[Sample]) -> float:
        same = all(np.array_equal(sample.completion_ids, samples[0].completion_ids) for sample in samples)
        return -(len(samples) - 1) * float(samples[0].logprobs.sum()) if same else 0.0

    worst = max(surprise(half) for half in halves)
    return _finding(
        "seeds differ",
        worst,
        SURPRISE + log(len(halves)),
        "samples with seeds that differ in the low or the high 32 bits differ",
        "samples whose seeds differ only in the low or only in the high 32 bits are all the same: seeds are ignored",
    )


# ---- sequences


def _distinct(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Samples with distinct completions, new first tokens before others."""
    firsts = {int(sample.completion_ids[0]): sample for sample in reversed(samples)}
    others = {sample.completion_ids.tobytes(): sample for sample in samples}
    chosen = {sample.completion_ids.tobytes(): sample for sample in firsts.values()} | others
    return list(chosen.values())[:most]


def _sequence(prompt_ids: np.ndarray, sample: Sample) -> TrainingSequence:
    before, tokens = len(prompt_ids), len(prompt_ids) + len(sample.completion_ids)
    nothing = np.zeros(before, np.float32)
    return TrainingSequence(
        token_ids=np.concatenate([prompt_ids, sample.completion_ids]),
        loss_mask=np.arange(tokens) >= before,
        advantages=np.zeros(tokens, np.float32),
        behaviour_logprobs=np.concatenate([nothing, sample.logprobs]),
        versions=np.concatenate([np.full(before, -1, np.int32), sample.versions]),
    )
