"""The self-test is silent on a sound sampler, at any seed, and loud on every planted fault, even with little effort."""

from math import comb, exp, log

import numpy as np
import pytest

from slipstream.loop.conformance import QUICK, THOROUGH, Effort, Finding, Verdict, check_sampler, failures
from slipstream.loop.goodness import fit, threshold, together
from tests.loop.table_sampler import (
    FAULTS,
    KNOWN,
    VOCABULARY,
    PositionIgnoredByNoise,
    TableSampler,
    TemperatureTwiceInDraws,
    learner_of,
    table,
)

PROMPTS = [np.array(ids, np.int32) for ids in ([3, 1], [7], [0, 4, 9])]


def findings(kind: type[TableSampler], seed: int, effort: Effort, sharpness: float = 1.5) -> list[Finding]:
    logits = table(seed, sharpness)
    return check_sampler(
        kind(logits), learner_of(logits), prompts=PROMPTS[:2] if effort is QUICK else PROMPTS, known_tokens=KNOWN, seed=seed, effort=effort
    )


def failed(found: list[Finding]) -> set[str]:
    return {one.check.split(" at temperature")[0] for one in found if one.verdict is Verdict.FAILED}


@pytest.mark.parametrize("sharpness", [0.3, 1.5, 5.0])
def test_a_sound_sampler_passes_at_every_seed(sharpness: float) -> None:
    for seed in range(20):
        found = findings(TableSampler, seed, QUICK, sharpness)
        assert failures(found) == ""
        assert all(one.statistic <= one.threshold for one in found)


def test_thorough_effort_finds_everything_in_order_on_a_sound_sampler() -> None:
    found = findings(TableSampler, 0, THOROUGH)
    assert [one.verdict for one in found] == [Verdict.PASSED] * len(found)
    assert [one.check for one in found[:3]] == ["records", "padding rows", "first tokens at temperature 0.5"]
    assert [one.check for one in found[-3:]] == ["seeds differ", "seeds repeat", "greedy"]
    assert found == findings(TableSampler, 0, THOROUGH)


@pytest.mark.parametrize("kind", FAULTS, ids=[kind.__name__ for kind in FAULTS])
def test_every_planted_fault_is_found(kind: type[TableSampler]) -> None:
    for seed in range(3):
        found = findings(kind, seed, THOROUGH)
        assert failed(found) >= FAULTS[kind], seed
        assert all(one.meaning in failures(found) for one in found if one.verdict is Verdict.FAILED)


SUBTLE = {PositionIgnoredByNoise, TemperatureTwiceInDraws}  # distributions so near the right one need many draws


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in SUBTLE], ids=lambda kind: kind.__name__)
def test_little_effort_finds_them_as_well(kind: type[TableSampler]) -> None:
    """The small budget at the start of a run; by one finding or another."""
    caught = [bool(failed(findings(kind, seed, QUICK))) for seed in range(10)]
    assert sum(caught) >= 9


def test_prompts_that_could_not_show_a_fault_are_not_called_a_pass() -> None:
    """A model that is certain of everything: greedy, seeds and draws cannot be told apart, and the findings say so."""
    found = {one.check: one.verdict for one in findings(TableSampler, 0, QUICK, sharpness=300.0)}
    for check in ("first tokens", "second tokens", "log-probs"):
        assert found[f"{check} at temperature 1"] is Verdict.UNCLEAR
    assert found["seeds repeat"] is Verdict.UNCLEAR
    assert found["records"] is found["greedy"] is Verdict.PASSED


def test_less_precise_samplers_are_allowed_for() -> None:
    logits = table(0)

    class Rounded(TableSampler):
        def logits(self, last: int, position: int) -> np.ndarray:
            noise = np.random.default_rng([last, position]).normal(size=VOCABULARY) * 0.03
            return super().logits(last, position) + noise

    common = {"prompts": PROMPTS, "known_tokens": KNOWN, "seed": 0}
    assert failed(check_sampler(Rounded(logits), learner_of(logits), **common)) == {"log-probs"}
    assert failed(check_sampler(Rounded(logits), learner_of(logits), tolerance=0.1, **common)) == set()


# ---- the bound


@pytest.mark.parametrize("draws", [1, 2, 5, 20, 100])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.3, 0.5])
def test_the_false_alarm_bound_holds_exactly_for_two_cells(draws: int, share: float) -> None:
    """All outcomes, by the binomial distribution."""
    for false_alarm in (0.3, 1e-2, 1e-5):
        limit = threshold(1, false_alarm)
        alarmed = [heads for heads in range(draws + 1) if fit([heads, draws - heads], [share]).evidence > limit]
        assert sum(comb(draws, heads) * share**heads * (1 - share) ** (draws - heads) for heads in alarmed) <= false_alarm


def test_the_false_alarm_bound_holds_for_sums_of_experiments() -> None:
    rng, limit, alarms = np.random.default_rng(0), threshold(6, 0.1), 0
    shares = ([0.5, 0.3, 0.1], [0.01, 0.02, 0.9])
    for _ in range(2000):
        fits = [fit(rng.multinomial(15, [*part, 1 - sum(part)]).tolist(), part) for part in shares]
        alarms += together(fits).evidence > limit
    assert alarms <= 200


def test_evidence_is_the_draws_times_the_relative_entropy() -> None:
    found = fit([6, 3, 1], [0.5, 0.25])
    expected = 6 * log(0.6 / 0.5) + 3 * log(0.3 / 0.25) + log(0.1 / 0.25)
    assert found.evidence == pytest.approx(expected)
    assert (found.freedom, found.draws) == (2, 10)
    assert found.if_greedy == pytest.approx(10 * log(2))
    assert fit([0, 0], [0.0]).evidence == 0
    assert fit([1, 0], [0.0]).evidence == float("inf")
    assert fit([9, 1], [1.0]).evidence > 9


@pytest.mark.parametrize("freedom", [0, 1, 5, 40])
def test_the_threshold_solves_its_equation(freedom: int) -> None:
    x = threshold(freedom, 1e-5)
    bound = exp(-x) * (exp(1) * x / freedom) ** freedom if freedom else exp(-x)
    assert bound == pytest.approx(1e-5, rel=1e-4)
