"""Randomness is a function of the place alone: the same place draws the same, different places draw unrelated numbers."""

import itertools

import numpy as np
import pytest

from slipstream.core.rng import generator, key_words, stream_seed

GOLDEN_WORDS = (2581936743, 3623523869)
GOLDEN_DRAWS = [536507, 865107, 669093, 917127]


def test_words_never_change() -> None:
    """Seeds are stored in runs and must mean the same in every version of the program (fixed values, made once)."""
    assert key_words(0, "sample", "12+30=@0", 3) == GOLDEN_WORDS
    assert generator(7, "row order", 2).integers(0, 1_000_000, 4).tolist() == GOLDEN_DRAWS


def test_the_same_place_draws_the_same_whatever_was_drawn_before() -> None:
    first = generator(1, "prompt", 5).random(100)
    generator(1, "prompt", 4).random(1_000)
    assert np.array_equal(generator(1, "prompt", 5).random(100), first)


@pytest.mark.parametrize(
    "other",
    [
        (1, "a", "bc"),
        (1, "abc"),
        (1, "ab", "c", ""),
        (1, "ab", "C"),
        (2, "ab", "c"),
        (-1, "ab", "c"),
        (1, "c", "ab"),
        (
            1,
            "ab:c",
        ),
        (1, "ab\x00c"),
    ],
)
def test_parts_are_kept_apart(other: tuple[int, str, str]) -> None:
    assert key_words(*other) != key_words(1, "ab", "c")


def test_a_number_is_not_its_text_and_numpy_changes_nothing() -> None:
    assert key_words(0, "p", 1) != key_words(0, "p", "1")
    assert key_words(0, "p", 1) == key_words(np.int64(0), "p", np.int32(1))  # type: ignore[arg-type]
    assert key_words(0, "p", 12) != key_words(0, "p", 1, 2)


def test_no_two_places_of_a_run_share_a_stream() -> None:
    places = itertools.product(range(4), ("prompt", "sample"), range(250), range(20))
    seeds = [stream_seed(seed, purpose, prompt, sample) for seed, purpose, prompt, sample in places]
    assert len(set(seeds)) == len(seeds)


def test_neighbouring_places_are_unrelated_bit_for_bit() -> None:
    """Each of the 64 bits is set in half of the seeds and differs from the neighbour's in half of them, within 5 standard errors."""
    count = 4_000
    seeds = np.array([stream_seed(0, "sample", index) for index in range(count)], np.uint64)
    bits = (seeds[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    error = 0.5 / np.sqrt(count)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * error
    assert np.abs((bits[1:] != bits[:-1]).mean(axis=0) - 0.5).max() < 5 * error


def test_neighbouring_generators_are_uncorrelated() -> None:
    count = 2_000
    draws = np.array([generator(0, "prompt", index).random(2) for index in range(count)])
    assert abs(draws.mean() - 0.5) < 5 * np.sqrt(1 / 12 / draws.size)
    assert abs(np.corrcoef(draws[1:, 0], draws[:-1, 0])[0, 1]) < 5 / np.sqrt(count)
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 5 / np.sqrt(count)


def test_words_are_the_halves_of_the_seed() -> None:
    low, high = key_words(3, "x", 9)
    assert 0 <= low < 2**32
    assert 0 <= high < 2**32
    assert stream_seed(3, "x", 9) == high * 2**32 + low
