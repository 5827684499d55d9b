"""The distribution drawn from is the one defined, in its order of operations; and draws follow it, never leaving it.

The oracle is sorted, in float64, one row at a time. Truncation is compared only where no limit lies within rounding of a token.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import generator
from slipstream.engine import sampling
from slipstream.engine.requests import restricts
from slipstream.engine.rows import SamplingTable
from slipstream.engine.sampling import SamplingRows, distribution, draw, plain_rows, sample
from slipstream.models.logprobs import VocabularyRule, log_distribution
from slipstream.models.numerics import EXACT, FAST
from tests.engine.small import drain, engine, request
from tests.models.llama_oracle import log_softmax

KNOWN, VOCABULARY = 290, 300  # two blocks of unequal length, and padding rows
RULE = VocabularyRule(known=KNOWN)
SAMPLE = jax.jit(lambda logits, rows, positions: sample(logits, rows, positions, RULE))
DRAWS = 20_000


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A request as the oracle reads it."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    stops: tuple[int, ...] = ()
    first_stop: int = 0


def rows_of(wishes: list[Wish]) -> SamplingRows:
    plain = plain_rows(len(wishes))
    stop_ids, bias_ids, bias = (np.array(part) for part in (plain.stop_ids, plain.bias_ids, plain.bias))
    for row, wish in enumerate(wishes):
        stop_ids[row, : len(wish.stops)] = wish.stops
        for place, (token, value) in enumerate(wish.bias):
            bias_ids[row, place], bias[row, place] = token, value
    return replace(
        plain,
        key=jnp.asarray(np.random.default_rng(5).integers(0, 2**32, (len(wishes), 2)), jnp.uint32),
        temperature=jnp.array([wish.temperature for wish in wishes], jnp.float32),
        top_k=jnp.array([wish.top_k for wish in wishes], jnp.int32),
        top_p=jnp.array([wish.top_p for wish in wishes], jnp.float32),
        min_p=jnp.array([wish.min_p for wish in wishes], jnp.float32),
        first_stop=jnp.array([wish.first_stop for wish in wishes], jnp.int32),
        stop_ids=jnp.asarray(stop_ids),
        bias_ids=jnp.asarray(bias_ids),
        bias=jnp.asarray(bias),
    )


def expected(logits: np.ndarray, wish: Wish, position: int) -> tuple[np.ndarray, float]:
    """Probabilities float64 [v], and how near a limit of min-p or top-p comes to changing what is kept (relative)."""
    found = logits.astype(np.float64)
    found[KNOWN:] = -np.inf
    for token, value in wish.bias:
        found[token] += value
    if position < wish.first_stop:
        found[list(wish.stops)] = -np.inf
    if wish.temperature == 0:
        return softmax(found), 1.0
    found /= wish.temperature
    order = np.argsort(-found, kind="stable")  # equals by id
    ranked = np.exp(found[order] - found[order[0]])
    margins, kept = [1.0], ranked > 0
    if wish.min_p:
        margins.append(np.abs(ranked / wish.min_p - 1).min())
        kept &= ranked >= wish.min_p
    if wish.top_k:
        kept &= np.arange(len(kept)) < wish.top_k
    if wish.top_p < 1:
        shares = np.where(kept, ranked, 0) / ranked[kept].sum()
        before = np.cumsum(shares) - shares
        margins.append(np.abs(before / wish.top_p - 1).min())
        kept &= before < wish.top_p
    probs = np.zeros(len(logits))
    probs[order[kept]] = ranked[kept] / ranked[kept].sum()
    return probs, min(margins)


def softmax(logits: np.ndarray) -> np.ndarray:
    found = np.exp(logits - logits.max())
    return found / found.sum()


def wish(rng: np.random.Generator) -> Wish:
    """Everything at once, each wish with probability one half."""

    def maybe(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.5 else otherwise

    tokens = rng.permutation(KNOWN)
    return Wish(
        temperature=maybe(float(rng.choice([0.0, 0.3, 0.7, 2.0])), 1.0),
        top_k=maybe(int(rng.choice([1, 2, 7, 50, KNOWN - 1])), 0),
        top_p=maybe(float(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.999])), 1.0),
        min_p=maybe(float(rng.choice([1e-4, 0.05, 0.3, 0.99])), 0.0),
        bias=maybe(tuple((int(token), float(rng.normal() * 5)) for token in tokens[: rng.integers(1, 33)]), ()),
        stops=maybe(tuple(int(token) for token in tokens[-rng.integers(1, 9) :]), ()),
        first_stop=maybe(9, 0),
    )


@pytest.mark.parametrize("numerics", [FAST, EXACT], ids=["fast", "exact"])
def test_the_distribution_is_the_one_defined(numerics: Any) -> None:
    rng, n = np.random.default_rng(0), 64
    compute = jax.jit(lambda logits, rows, positions: distribution(logits, rows, positions, RULE, numerics).log_probs)
    compared = 0
    for _ in range(6):
        wishes = [wish(rng) for _ in range(n)]
        logits = (rng.normal(size=(n, VOCABULARY)) * 3).astype(np.float32)
        logits[::2] = np.round(logits[::2])  # many ties
        positions = rng.integers(5, 12, n).astype(np.int32)
        found = np.exp(np.asarray(compute(logits, rows_of(wishes), positions), np.float64))
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
        for row in range(n):
            probs, margin = expected(logits[row], wishes[row], int(positions[row]))
            if margin > 1e-5:
                compared += 1
                np.testing.assert_array_equal(found[row] > 0, probs > 0, err_msg=str(wishes[row]))
                np.testing.assert_allclose(found[row], probs, atol=1e-6, rtol=1e-4)
    assert compared > 0.95 * 6 * n


@pytest.mark.parametrize(
    ("wish", "kept"),
    [
        (Wish(top_k=1), [3]),
        (Wish(top_k=2), [3, 1]),
        (Wish(top_k=3), [3, 1, 4]),  # 1, 4 and 5 are equal: the lowest ids first
        (Wish(top_p=0.39), [3]),
        (Wish(top_p=0.41), [3, 1]),
        (Wish(top_p=0.79), [3, 1, 4]),
        (Wish(top_p=1e-38), [3]),
        (Wish(min_p=0.49), [3, 1, 4, 5]),
        (Wish(min_p=0.51), [3]),
        (Wish(min_p=0.49, top_k=3, top_p=0.6), [3, 1]),  # of 0.5, 0.25, 0.25
        (Wish(min_p=0.49, top_p=0.45), [3, 1]),  # 0.4 of all is below 0.45
        (Wish(top_k=2, top_p=0.45), [3]),  # 0.4 of all, but two thirds of the two that top-k left
        (Wish(temperature=0.5, min_p=0.3), [3]),  # at 0.5 they are a quarter as likely as the first
        (Wish(top_k=100), [3, 1, 4, 5]),
    ],
)
def test_hand_computed_truncations(wish: Wish, kept: list[int]) -> None:
    """Probabilities 0.4, 0.2, 0.2, 0.2 of tokens 3, 1, 4, 5; 0, 2 and 6 are impossible."""
    probs = np.array([[0, 0.2, 0, 0.4, 0.2, 0.2, 0]])
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(probs), jnp.float32)
    found = distribution(logits, rows_of([wish]), jnp.array([1]), VocabularyRule()).log_probs[0]
    assert set(np.flatnonzero(np.exp(found) > 0)) == set(kept)
    weights = probs[0, kept] ** (1 / wish.temperature)
    np.testing.assert_allclose(np.exp(np.asarray(found)[kept]), weights / weights.sum(), rtol=1e-5)


def test_neighbours_change_no_bit() -> None:
    """A row among others that truncate, bias and are greedy gives what it gives among plain ones."""
    rng, n = np.random.default_rng(1), 16
    logits = jnp.asarray(rng.normal(size=(n, VOCABULARY)) * 3, jnp.float32)
    positions = jnp.arange(n) + 3
    wishes = [wish(rng) for _ in range(n)]
    mixed = SAMPLE(logits, rows_of(wishes), positions)
    for row in range(n):
        for other in (Wish(), Wish(temperature=0.0), Wish(top_k=3), Wish(bias=((2, 1.0),)), Wish(top_p=0.5, min_p=0.1)):
            company = [other] * n
            company[row] = wishes[row]
            found = SAMPLE(logits, rows_of(company), positions)
            for part, whole in zip(found, mixed, strict=True):
                assert np.asarray(part)[row].tobytes() == np.asarray(whole)[row].tobytes(), (row, other, wishes[row])


def test_the_raw_log_prob_knows_no_wish_but_the_temperature() -> None:
    rng, n = np.random.default_rng(2), 64
    logits, wishes = jnp.asarray(rng.normal(size=(n, VOCABULARY)) * 3, jnp.float32), [wish(rng) for _ in range(n)]
    found = SAMPLE(logits, rows_of(wishes), jnp.arange(n))
    temperatures = np.array([one.temperature or 1.0 for one in wishes])[:, None]
    raw = np.array([log_softmax(np.asarray(logits, np.float64)[row, :KNOWN], temperatures[row]) for row in range(n)])
    np.testing.assert_allclose(found.raw_logprob, raw[np.arange(n), found.token], atol=1e-5, rtol=1e-5)
    plain = SAMPLE(logits, rows_of([Wish()] * n), jnp.arange(n))
    np.testing.assert_array_equal(plain.raw_logprob, plain.logprob)


@pytest.mark.parametrize("greedy", [Wish(temperature=0.0), Wish(temperature=0.0, top_k=1, top_p=0.1, min_p=0.5)])
def test_greedy_takes_the_lowest_of_the_likeliest_and_says_its_log_prob_at_temperature_1(greedy: Wish) -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [7, 40, 299]] = 2.0, 2.0, 9.0  # 299 is a padding row
    found = SAMPLE(jnp.asarray(logits), rows_of([greedy]), jnp.array([4]))
    assert int(found.token[0]) == 7
    np.testing.assert_allclose(found.logprob, log_softmax(logits[0, :KNOWN].astype(np.float64))[7], rtol=1e-6)
    biased = SAMPLE(jnp.asarray(logits), rows_of([replace(greedy, bias=((7, -0.5), (3, 2.25)))]), jnp.array([4]))
    assert int(biased.token[0]) == 3
    nearly = np.nextafter(np.float32(2.0), np.float32(3.0))  # one bit more, which log-probs may round away
    logits[0, 40] = nearly
    assert int(SAMPLE(jnp.asarray(logits), rows_of([greedy]), jnp.array([4])).token[0]) == 40


# ---- draws


def drawn_with(uniforms: tuple[float, float], probs: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> int:
    pair = tuple(jnp.array([value], jnp.float32) for value in uniforms)
    monkeypatch.setattr(sampling, "_uniforms", lambda key, positions: pair)
    with np.errstate(divide="ignore"):
        log_probs = jnp.asarray(np.log(probs), jnp.float32)[None]
    return int(draw(log_probs, jnp.zeros((1, 2), jnp.uint32), jnp.zeros(1, jnp.int32))[0])


ALMOST_1 = 1 - 2.0**-24
CORNERS = [(first, second) for first in (0.0, 0.5, ALMOST_1) for second in (0.0, 0.5, ALMOST_1)]


@pytest.mark.parametrize("v", [1, 2, 17, 255, 256, 257, 511, 1000, 70_000])
@pytest.mark.parametrize("uniforms", CORNERS)
def test_no_impossible_token_is_drawn(uniforms: tuple[float, float], v: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(v)
    for certain in {0, v // 2, v - 1}:
        assert drawn_with(uniforms, (np.arange(v) == certain).astype(float), monkeypatch) == certain
    holes = rng.dirichlet(np.full(v, 0.3)) * (rng.random(v) < 0.3)
    holes[[0, -1]] = 0
    if holes.any():
        probs = holes / holes.sum()
        assert np.float32(probs[drawn_with(uniforms, probs, monkeypatch)]) > 0
    tiny = np.full(v, 1e-12)
    tiny[v // 2] = 1
    assert drawn_with(uniforms, tiny, monkeypatch) < v


def test_an_index_has_its_weight_s_share_of_the_interval() -> None:
    weights = np.random.default_rng(3).dirichlet(np.ones(37)) * 5
    weights[[0, 9, 36]] = 0
    grid = (np.arange(20_000) + 0.5) / 20_000
    found = sampling._pick(jnp.broadcast_to(jnp.asarray(weights, jnp.float32), (len(grid), 37)), jnp.asarray(grid, jnp.float32))
    assert (np.diff(found) >= 0).all()
    np.testing.assert_allclose(np.bincount(found, minlength=37) / len(grid), weights / weights.sum(), atol=2 / len(grid))


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    """Standardised: (chi-square - degrees of freedom) / its standard deviation."""
    wanted = counts.sum() * probs
    return float(((counts - wanted) ** 2 / wanted).sum() - (len(probs) - 1)) / np.sqrt(2 * (len(probs) - 1))


@jax.jit
def draw_rows(probs: jax.Array, keys: jax.Array, positions: jax.Array) -> jax.Array:
    return draw(jnp.broadcast_to(jnp.log(probs), (len(keys), len(probs))), keys, positions)


def tokens_at(probs: np.ndarray, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.asarray(draw_rows(jnp.asarray(probs, jnp.float32), jnp.asarray(keys, jnp.uint32), jnp.asarray(positions, jnp.int32)))


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_draws_follow_the_distribution_over_positions_and_over_keys(alpha: float) -> None:
    rng, n = np.random.default_rng(4), DRAWS
    probs = np.maximum(rng.dirichlet(np.full(40, alpha)), 1e-3)
    probs = (probs / probs.sum()).repeat(8)[rng.permutation(320)] / 8  # more than one block
    one_key = np.tile(rng.integers(0, 2**32, 2), (n, 1))
    over_positions = tokens_at(probs, one_key, np.arange(n))
    over_keys = tokens_at(probs, np.stack([np.arange(n), np.full(n, 7)], axis=1), np.full(n, 12))
    for tokens in (over_positions, over_keys):
        assert abs(chi_square(np.bincount(tokens, minlength=320), probs)) < 4.5


@pytest.mark.parametrize("neighbour", ["next position", "next low word", "next high word", "words swapped"])
def test_neighbouring_draws_are_independent(neighbour: str) -> None:
    n, probs = DRAWS, np.full(16, 1 / 16)
    low, high = np.arange(n), np.full(n, 3)
    at = {
        "next position": (low, high, 6),
        "next low word": (low + 1, high, 5),
        "next high word": (low, high + 1, 5),
        "words swapped": (high, low, 5),
    }
    other_low, other_high, position = at[neighbour]
    first = tokens_at(probs, np.stack([low, high], axis=1), np.full(n, 5))
    second = tokens_at(probs, np.stack([other_low, other_high], axis=1), np.full(n, position))
    assert abs(chi_square(np.bincount(first * 16 + second, minlength=256), np.full(256, 1 / 256))) < 4.5


def test_a_draw_is_a_function_of_key_and_position_alone() -> None:
    probs = np.random.default_rng(6).dirichlet(np.ones(100))
    keys, positions = np.random.default_rng(7).integers(0, 2**32, (50, 2)), np.arange(50)
    whole = tokens_at(probs, keys, positions)
    order = np.random.default_rng(8).permutation(50)
    np.testing.assert_array_equal(tokens_at(probs, keys[order], positions[order]), whole[order])
    np.testing.assert_array_equal(tokens_at(probs, keys[:3], positions[:3]), whole[:3])


# ---- through an engine


def test_an_engine_heeds_every_wish() -> None:
    plain = request("plain", [3, 1, 2], new=20)
    asked = {
        "top_k": replace(request("top_k", [3, 1, 2], new=20), top_k=1),
        "all": replace(plain, key=("all", 0), top_k=17),
        "top_p": replace(request("top_p", [3, 1, 2], new=20), top_p=1e-6),
        "min_p": replace(request("min_p", [3, 1, 2], new=20), min_p=0.999),
        "long": replace(request("long", [3, 1, 2], new=20, stop_ids=(0, 5, 9)), min_new_tokens=15),
        "only": replace(request("only", [3, 1, 2], new=20, stop_ids=()), logit_bias=((11, 1e6),)),
        "never": replace(request("never", [3, 1, 2], new=20, stop_ids=()), logit_bias=tuple((t, -1e6) for t in range(16))),
    }
    greedy = request("greedy", [3, 1, 2], new=20, temperature=0.0)
    found = drain(engine(), [*asked.values(), plain, greedy])
    for name in ("top_k", "top_p", "min_p"):
        np.testing.assert_array_equal(found[name].completion_ids, found["greedy"].completion_ids)
        np.testing.assert_array_equal(found[name].logprobs, 0)
        np.testing.assert_allclose(found[name].raw_logprobs, found["greedy"].logprobs, atol=1e-6)
    np.testing.assert_array_equal(found["all"].completion_ids, found["plain"].completion_ids)
    assert not np.isin(found["long"].completion_ids[:15], (0, 5, 9)).any()
    np.testing.assert_array_equal(found["only"].completion_ids, 11)
    np.testing.assert_array_equal(found["never"].completion_ids, 16)
    for name, one in {**asked, "plain": plain, "greedy": greedy}.items():
        assert (found[name].raw_logprobs is None) == (not restricts(one, 17)) == (name in ("all", "plain", "greedy"))


def test_min_new_tokens_ends_exactly_there() -> None:
    """With a bias towards the stop id, the sample stops at the first place where it may."""
    found = drain(engine(), [replace(request("s", [4, 4], new=20), min_new_tokens=6, logit_bias=((0, 1e6),))])["s"]
    assert len(found.completion_ids) == 7
    assert found.completion_ids[-1] == 0
    assert found.logprobs[-1] == 0


def test_a_freed_slot_has_no_wishes() -> None:
    table = SamplingTable(2, 17)
    table.seat(1, replace(request("s", [4], temperature=0.0), top_k=3, top_p=0.5, min_p=0.1, min_new_tokens=2, logit_bias=((1, 1.0),)))
    table.free(1)
    found, plain = table.rows([0, 1], 2), plain_rows(2)
    for name in ("temperature", "top_k", "top_p", "min_p", "stop_ids", "first_stop", "bias_ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


def test_the_log_probs_of_a_plain_row_are_the_shared_function_s() -> None:
    logits = jnp.asarray(generator(0, "logits").normal(size=(4, VOCABULARY)), jnp.float32)
    found = jax.jit(lambda logits: distribution(logits, plain_rows(4), jnp.arange(4), RULE).log_probs)(logits)
    np.testing.assert_array_equal(found, jax.jit(lambda logits: log_distribution(logits, 1.0, RULE))(logits))
