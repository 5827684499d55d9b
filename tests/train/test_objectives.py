"""Each objective, correction and reducer through real packing against the oracle; cases by hand; what holds on fresh data.

The "model" is a table of log-probs, one a token, so a gradient is exact and nothing large is compiled.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.config.schema import OWN_DEFAULTS, CorrectionSection, ObjectiveSection
from slipstream.core.records import TrainingSequence
from slipstream.train.columns import Columns, lay, sequence_weights
from slipstream.train.objectives import Objective, TokenLoss, Tokens, objective
from slipstream.train.objectives.kl import kl_estimate
from slipstream.train.objectives.proximal import interpolated
from slipstream.train.objectives.tokens import sequence_mean, sequence_sum
from slipstream.train.packing import pack, unpack
from slipstream.train.second_moment import second_moment_mask
from slipstream.train.shapes import one_shape
from slipstream.train.update import tokens_of
from tests.train import oracle
from tests.train.small import sequence

NAMES = sorted(OWN_DEFAULTS)
POLICY_GRADIENTS = [name for name in NAMES if name not in ("sft", "distill")]
WIDE = {"gspo": {"clip_low": 0.1, "clip_high": 0.15}, "dppo": {"clip_low": 0.02, "clip_high": 0.03}, "cispo": {"weight_cap": 1.5}}
SUM_TOKENS = 20
Shape = tuple[int, int, int | None]
SHAPES: list[Shape] = [(24, 2, None), (24, 2, 3), (40, 4, 5)]  # row tokens, rows, seed of another order


def settings(name: str, **given: object) -> ObjectiveSection:
    """The objective with bounds that act on a share of the data."""
    return ObjectiveSection.model_validate({"name": name, **WIDE.get(name, {}), **given})


def data(seed: int = 0, count: int = 9) -> tuple[list[TrainingSequence], dict[str, list[np.ndarray]]]:
    """Sequences of 3 to 9 trained tokens (one in the middle masked now and then), and log-probs of the other policies for each token."""
    rng = np.random.default_rng(seed)
    sequences = []
    for index in range(count):
        made = sequence(rng, int(rng.integers(1, 5)), int(rng.integers(3, 10)), 0.0, spread=0.5)
        mask = made.loss_mask.copy()
        mask[-2] = index % 3 > 0
        advantages = np.where(mask, rng.normal() + 0.3 * rng.normal(size=len(mask)), 0).astype(np.float32)
        sequences.append(replace(made, loss_mask=mask, advantages=advantages, sampler_class="a" if index % 2 else "b"))

    def near(spread: float) -> list[np.ndarray]:
        return [np.float32(one.behaviour_logprobs + spread * rng.normal(size=len(one.token_ids)) - 0.1) for one in sequences]

    return sequences, {"current": near(0.4), "proximal": near(0.5), "reference": near(0.3)}


def drawn(sequences: list[TrainingSequence], tables: dict[str, list[np.ndarray]], classes: tuple[str, ...] = ()) -> list[oracle.Drawn]:
    return [
        oracle.Drawn(
            **{name: tables[name][index][one.loss_mask].tolist() for name in ("current", "proximal", "reference")},
            behaviour=one.behaviour_logprobs[one.loss_mask].tolist(),
            advantages=one.advantages[one.loss_mask].tolist(),
            corrected=not classes or one.sampler_class in classes,
        )
        for index, one in enumerate(sequences)
    ]


def by_packing(
    loss_of: Objective, sequences: list[TrainingSequence], tables: dict[str, list[np.ndarray]], reducer: str, shape: Shape,
    **extra: list[np.ndarray],
) -> tuple[float, list[np.ndarray], list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """The step's loss; of each sequence, in the given order, each trained token's slope, clipped, masked."""
    row_tokens, rows, seed = shape
    order = np.arange(len(sequences)) if seed is None else np.random.default_rng(seed).permutation(len(sequences))
    chosen = [sequences[index] for index in order]
    microbatches, placed = pack(chosen, one_shape(row_tokens, rows))
    weights = sequence_weights(chosen, reducer, SUM_TOKENS)

    def laid(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return lay([arrays[index] for index in order], placed, microbatches)

    columns = {name: laid(arrays) for name, arrays in {**tables, **extra}.items()}
    columns["weights"] = lay([np.float32(w * one.loss_mask) for w, one in zip(weights, chosen, strict=True)], placed, microbatches)
    total, slopes, clipped, masked = 0.0, [], [], []
    for place, batch in enumerate(microbatches):
        here = {name: arrays[place] for name, arrays in columns.items()}
        current = jnp.asarray(here.pop("current"))

        def weighted(current, batch=batch, here=here):
            found = loss_of(tokens_of(current, batch, Columns(**here)))
            return jnp.sum(jnp.where(here["weights"] > 0, here["weights"] * found.loss, 0.0)), found

        (loss, found), slope = jax.value_and_grad(weighted, has_aux=True)(current)
        total += float(loss)
        for column, array in ((slopes, slope), (clipped, found.clipped), (masked, found.masked)):
            column.append(np.asarray(array))
    back = np.argsort(order)

    def of_sequences(arrays: list[np.ndarray]) -> list[np.ndarray]:
        found = unpack(arrays, chosen, placed)
        return [found[index][sequences[place].loss_mask] for place, index in enumerate(back)]

    return total, of_sequences(slopes), of_sequences(clipped), of_sequences(masked)


def assert_is_the_oracles(
    config: ObjectiveSection, correction: CorrectionSection = CorrectionSection(), shapes: Sequence[Shape] = SHAPES
) -> None:
    """In several packings, which agree among themselves to rounding."""
    sequences, tables = data()
    cases = drawn(sequences, tables, correction.classes)
    extra: dict[str, list[np.ndarray]] = {}
    if correction.classes:
        extra["corrected"] = [np.full(len(one.token_ids), one.sampler_class in correction.classes) for one in sequences]
    if correction.second_moment:
        gaps = [near - one.behaviour_logprobs for near, one in zip(tables["proximal"], sequences, strict=True)]
        flat = np.concatenate([gap[one.loss_mask] for gap, one in zip(gaps, sequences, strict=True)])
        keep = iter(second_moment_mask(flat, correction.second_moment).tolist())
        extra["kept"] = [np.array([bool(yes) and next(keep) for yes in one.loss_mask]) for one in sequences]
        for case, kept, one in zip(cases, extra["kept"], sequences, strict=True):
            case.kept = kept[one.loss_mask].tolist()
    loss, terms = oracle.step(cases, config, correction, SUM_TOKENS)
    first = None
    for shape in shapes:
        found = by_packing(objective(config, correction), sequences, tables, config.reducer, shape, **extra)
        assert found[0] == pytest.approx(loss, rel=2e-5, abs=1e-6)
        for place, column in enumerate(("slope", "clipped", "masked"), start=1):
            for array, expected in zip(found[place], terms, strict=True):
                np.testing.assert_allclose(array, [getattr(term, column) for term in expected], rtol=3e-5, atol=1e-7, err_msg=column)
        first = first or found
        assert found[0] == pytest.approx(first[0], rel=1e-6, abs=1e-7)
        np.testing.assert_allclose(np.concatenate(found[1]), np.concatenate(first[1]), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("reducer", ["token", "sequence", "constant"])
@pytest.mark.parametrize("name", NAMES)
def test_objectives_are_their_formulas_in_any_packing(name: str, reducer: str) -> None:
    assert_is_the_oracles(settings(name, reducer=reducer), shapes=SHAPES if reducer == "token" else SHAPES[1:2])


CORRECTIONS = {
    "truncated token": {"importance": "truncated", "weight_cap": 1.2},
    "truncated sequence": {"importance": "truncated", "level": "sequence", "weight_cap": 1.2},
    "masked token": {"importance": "masked", "weight_low": 0.7, "weight_high": 1.4},
    "masked sequence": {"importance": "masked", "level": "sequence", "weight_low": 0.3, "weight_high": 3.0},
    "of one class": {"importance": "masked", "weight_low": 0.7, "weight_high": 1.4, "classes": ("a",)},
    "OPSM": {"sequence_kl": 0.05},
    "M2PO": {"second_moment": 0.1},
    "all": {"importance": "truncated", "weight_cap": 1.2, "sequence_kl": 0.05, "second_moment": 0.1},
}


@pytest.mark.parametrize("given", CORRECTIONS.values(), ids=CORRECTIONS)
@pytest.mark.parametrize("name", ["ppo", "gspo", "decoupled_ppo"])
def test_corrections_are_their_formulas_in_any_packing(name: str, given: dict[str, object]) -> None:
    assert_is_the_oracles(settings(name), CorrectionSection.model_validate(given), SHAPES if name == "ppo" else SHAPES[1:2])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_in_the_loss_is_its_formula(estimator: str) -> None:
    assert_is_the_oracles(settings("ppo", kl_coefficient=0.3, kl_estimator=estimator))


def one_token(current: float, proximal: float, behaviour: float, advantage: float, reference: float = 1.0) -> Tokens:
    """Probabilities, not their logarithms."""
    columns = {name: jnp.log(jnp.full((1, 1), value)) for name, value in (("proximal", proximal), ("reference", reference))}
    yes = jnp.ones((1, 1), bool)
    return Tokens(
        current=jnp.log(jnp.full((1, 1), current)),
        behaviour=jnp.log(jnp.full((1, 1), behaviour)),
        advantages=jnp.full((1, 1), advantage),
        mask=yes,
        segments=jnp.ones((1, 1), jnp.int32),
        kept=yes,
        corrected=yes,
        **columns,
    )


def evaluated(loss_of: Objective, tokens: Tokens) -> tuple[float, float, float, float]:
    """Loss, slope, clipped, masked of a single token."""

    def of(current: jax.Array) -> tuple[jax.Array, TokenLoss]:
        found = loss_of(replace(tokens, current=current))
        return found.loss.sum(), found

    (_, found), slope = jax.value_and_grad(of, has_aux=True)(tokens.current)
    return float(found.loss[0, 0]), float(slope[0, 0]), float(found.clipped[0, 0]), float(found.masked[0, 0])


LOG2 = math.log(2)
# objective; current, proximal, behaviour (probabilities), advantage -> loss, slope, clipped, masked; clip 0.2 / 0.3, cap 2.5
BY_HAND = [
    ("ppo", 0.5, 0.1, 0.5, 2.0, -2.0, -2.0, 0, 0),  # ratio 1: -A
    ("ppo", 0.5, 0.1, 0.25, 2.0, -2.6, 0.0, 1, 0),  # ratio 2 clipped to 1.3
    ("ppo", 0.5, 0.1, 0.25, -2.0, 4.0, 4.0, 0, 0),  # a bad token made likelier: never clipped
    ("dapo", 0.2, 0.1, 0.4, -1.0, 0.8, 0.0, 1, 0),  # ratio 0.5 clipped to 0.8
    ("ppo", 0.2, 0.1, 0.4, 1.0, -0.5, -0.5, 0, 0),  # a good token made rarer: never clipped
    ("gspo", 0.5, 0.1, 0.25, 2.0, -2.6, 0.0, 1, 0),  # of a sequence of one token
    ("decoupled_ppo", 0.4, 0.4, 0.2, 1.0, -2.0, -2.0, 0, 0),  # w = 2, u = 1
    ("decoupled_ppo", 0.8, 0.4, 0.2, 1.0, -2.6, 0.0, 1, 0),  # w = 2, u = 2 clipped to 1.3
    ("decoupled_ppo", 0.4, 0.4, 0.1, 1.0, 0.0, 0.0, 0, 1),  # w = 4 above 2.5: left out
    ("decoupled_ppo", 0.3, 0.4, 0.8, -2.0, 0.8, 0.0, 1, 0),  # w = 0.5, u = 0.75 clipped to 0.8
    ("reinforce_is", 0.5, 0.1, 0.25, 3.0, 6.0 * LOG2, -6.0, 0, 0),  # r = 2
    ("cispo", 0.5, 0.1, 0.1, 3.0, 7.5 * LOG2, -7.5, 1, 0),  # r = 5 cut to 2.5
    ("reinforce", 0.5, 0.1, 0.1, 3.0, 3.0 * LOG2, -3.0, 0, 0),
    ("dppo", 0.75, 0.1, 0.25, 1.0, 0.001 * math.log(3) ** 2, 0.002 * math.log(3), 0, 1),  # rose by 0.5 > 0.3: only the penalty is left
    ("dppo", 0.02, 0.1, 0.01, 1.0, -2 + 0.001 * LOG2**2, -2 + 0.002 * LOG2, 0, 0),  # doubled, but by 0.01 only
    ("sft", 0.25, 0.1, 0.1, 3.0, 2.0 * LOG2, -1.0, 0, 0),
    ("distill", 0.25, 0.1, 0.25, 3.0, -4.0 * LOG2**2, 2.0 * LOG2, 0, 0),  # the teacher gives 1/16: A = -2 log 2
]  # fmt: skip


@pytest.mark.parametrize(("name", "current", "proximal", "behaviour", "advantage", "loss", "slope", "clipped", "masked"), BY_HAND)
def test_by_hand(name, current, proximal, behaviour, advantage, loss, slope, clipped, masked) -> None:
    section = ObjectiveSection.model_validate({"name": name, "clip_low": 0.2, "clip_high": 0.3, "weight_cap": 2.5})
    found = evaluated(objective(section), one_token(current, proximal, behaviour, advantage, reference=1 / 16))
    assert found == pytest.approx((loss, slope, clipped, masked), rel=1e-5, abs=1e-6)


# correction; current, proximal, behaviour, advantage -> loss, slope, clipped, masked of ppo with clip 0.2 / 0.2
CORRECTED_BY_HAND = [
    ({"importance": "truncated"}, 0.8, 0.8, 0.2, 1.0, -2.0, -2.0, 0, 0),  # w = 4 cut to 2, ratio to the proximal 1
    ({"importance": "masked"}, 0.8, 0.8, 0.1, 1.0, 0.0, 0.0, 0, 1),  # w = 8 outside [0.5, 5]
    ({"importance": "masked"}, 0.8, 0.8, 0.2, 1.0, -4.0, -4.0, 0, 0),  # w = 4 kept as it is
    ({"sequence_kl": 0.5}, 0.2, 0.2, 0.4, -1.0, 0.0, 0.0, 0, 1),  # bad, and log 2 = 0.69 nats away
    ({"sequence_kl": 0.7}, 0.2, 0.2, 0.4, -1.0, 0.8, 0.0, 1, 0),  # near enough: ppo's clip acts
    ({"sequence_kl": 0.5}, 0.2, 0.2, 0.4, 1.0, -0.5, -0.5, 0, 0),  # good ones stay
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "current", "proximal", "behaviour", "advantage", "loss", "slope", "clipped", "masked"), CORRECTED_BY_HAND
)
def test_corrections_by_hand(given, current, proximal, behaviour, advantage, loss, slope, clipped, masked) -> None:
    loss_of = objective(ObjectiveSection(name="ppo"), CorrectionSection.model_validate(given))
    found = evaluated(loss_of, one_token(current, proximal, behaviour, advantage))
    assert found == pytest.approx((loss, slope, clipped, masked), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "correction", [{}, {"importance": "truncated", "sequence_kl": 0.01, "second_moment": 0.01}], ids=["plain", "corrected"]
)
@pytest.mark.parametrize("name", POLICY_GRADIENTS)
def test_on_fresh_data_every_policy_gradient_is_reinforces(name: str, correction: dict[str, object]) -> None:
    """All ratios are 1: nothing is clipped or left out, and the gradient is REINFORCE's."""
    sequences, tables = data(1)
    fresh = [one.behaviour_logprobs for one in sequences]
    tables = {"current": fresh, "proximal": fresh, "reference": tables["reference"]}
    loss_of = objective(ObjectiveSection.model_validate({"name": name}), CorrectionSection.model_validate(correction))
    _, slopes, clipped, masked = by_packing(loss_of, sequences, tables, "token", SHAPES[0])
    _, expected, *_ = by_packing(objective(ObjectiveSection(name="reinforce")), sequences, tables, "token", SHAPES[0])
    np.testing.assert_allclose(np.concatenate(slopes), np.concatenate(expected), rtol=1e-6)
    assert not np.concatenate(clipped).any()
    assert not np.concatenate(masked).any()


@pytest.mark.parametrize("name", ["ppo", "decoupled_ppo", "gspo", "reinforce_is"])
@pytest.mark.parametrize("behaviour", [0.0, math.exp(-200), math.nan])
def test_absurd_behaviour_is_left_out_without_a_nan(name: str, behaviour: float) -> None:
    """A sampler may send anything; where a mask is on, one token of it must not make the whole step's gradient useless."""
    mask = CorrectionSection(importance="masked") if name not in ("decoupled_ppo", "reinforce_is") else CorrectionSection()
    if name == "reinforce_is":
        mask = CorrectionSection(second_moment=1.0)
    tokens = one_token(0.5, 0.5, behaviour, -1.0)
    kept = jnp.asarray([[bool(second_moment_mask(np.asarray(tokens.proximal - tokens.behaviour)[0], 1.0)[0])]])
    tokens = replace(tokens, kept=kept if name == "reinforce_is" else tokens.kept)
    assert evaluated(objective(ObjectiveSection.model_validate({"name": name}), mask), tokens) == (0.0, 0.0, 0.0, 1.0)


def test_sums_of_sequences_stay_inside_them() -> None:
    """Two sequences and padding in one row; the prompt's position is not summed."""
    rows = [[1, 1, 1, 2, 2, 0], [3, 0, 0, 4, 4, 4]]
    mask = [[False, True, True, True, True, False], [True, False, False, True, False, True]]
    tokens = replace(one_token(0.5, 0.5, 0.5, 1.0), segments=jnp.asarray(rows), mask=jnp.asarray(mask))
    values = jnp.asarray([[9.0, 1.0, 2.0, 4.0, 8.0, 9.0], [16.0, 9.0, 9.0, 32.0, 9.0, math.nan]])
    assert sequence_sum(values, tokens)[0].tolist() == [3.0, 3.0, 3.0, 12.0, 12.0, 0.0]
    found = sequence_sum(values, tokens)[1]
    assert found[:3].tolist() == [16.0, 0.0, 0.0]
    assert bool(jnp.isnan(found[3:]).all())
    assert sequence_mean(values, tokens)[0].tolist() == [1.5, 1.5, 1.5, 6.0, 6.0, 0.0]


def test_the_interpolated_proximal_policy_by_hand() -> None:
    """Drawn by version 2, the step starts at 6 and is at its half: a = 4 / 4.5. Drawn by 6: a = 0. Before any update a = 1."""
    current, behaviour, versions = jnp.asarray([[-1.0, -1.0]]), jnp.asarray([[-2.0, -2.0]]), jnp.asarray([[2, 6]])
    found = interpolated(current, behaviour, versions, jnp.float32(6), jnp.float32(6.5))
    assert found[0].tolist() == pytest.approx([-2 + 4 / 4.5, -2.0])
    assert interpolated(current, behaviour, versions, jnp.float32(6), jnp.float32(6))[0].tolist() == [-1.0, -1.0]
    slope = jax.grad(lambda current: interpolated(current, behaviour, versions, jnp.float32(6), jnp.float32(6.5)).sum())(current)
    assert not slope.any()


def test_second_moment_mask_by_hand_and_against_a_loop() -> None:
    assert second_moment_mask(np.array([0.1, -0.5, 0.2, 1.0]), 0.1).tolist() == [True, True, True, False]  # (.01 + .25 + .04) / 3 = 0.1
    assert second_moment_mask(np.array([0.1, math.nan, -math.inf]), 0.1).tolist() == [True, False, False]
    assert second_moment_mask(np.zeros(0), 0.1).tolist() == []
    for bound in (0.001, 0.04, 0.3, 9.0):
        ratios = np.random.default_rng(0).normal(size=60) * 0.7
        kept = [True] * 60
        while any(kept) and np.mean([ratio**2 for ratio, yes in zip(ratios, kept, strict=True) if yes]) > bound:
            kept[max((index for index in range(60) if kept[index]), key=lambda index: ratios[index] ** 2)] = False
        assert second_moment_mask(ratios, bound).tolist() == kept


def test_kl_estimates_by_hand() -> None:
    current, reference = jnp.log(jnp.asarray(0.5)), jnp.log(jnp.asarray(0.25))
    found = [float(kl_estimate(name, current, reference)) for name in ("k1", "k2", "k3")]
    assert found == pytest.approx([LOG2, LOG2**2 / 2, 0.5 - 1 + LOG2])


def test_equal_configurations_share_one_function() -> None:
    """And so one compiled program."""
    assert objective(ObjectiveSection(name="ppo")) is objective(ObjectiveSection(name="ppo"), CorrectionSection())
    assert objective(ObjectiveSection(clip_low=0.1)) is not objective(ObjectiveSection(clip_low=0.2))
    assert objective(ObjectiveSection()) is not objective(ObjectiveSection(), CorrectionSection(second_moment=0.1))
