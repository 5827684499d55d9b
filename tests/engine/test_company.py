"""A sample is a function of prompt, seed, temperature and weights: no company, slot, order or moment changes a bit of it."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.records import FinishReason, Sample
from slipstream.engine import engine as engine_module
from slipstream.engine import programs, row_counts
from slipstream.models.numerics import EXACT
from tests.engine.small import MAX_TOKENS, PER_DISPATCH, SLOTS, SPEC, assert_same, drain, engine, mixed_requests, request, weights

REQUESTS = mixed_requests()


@pytest.fixture(scope="module")
def alone() -> dict[str, Sample]:
    """Each request in an engine of its own, so in slot 0."""
    return {one.key[0]: drain(engine(), [one])[one.key[0]] for one in REQUESTS}


def assert_all_same(found: dict[str, Sample], expected: dict[str, Sample]) -> None:
    assert found.keys() == expected.keys()
    for name, sample in found.items():
        assert_same(sample, expected[name])


def test_the_workload_is_worth_running(alone: dict[str, Sample]) -> None:
    reasons = {sample.finish_reason for sample in alone.values()}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
    assert len({tuple(sample.completion_ids) for sample in alone.values()}) == len(alone)


def test_together(alone: dict[str, Sample]) -> None:
    found = drain(engine(), REQUESTS)
    assert_all_same(found, alone)
    assert {sample.slot for sample in found.values()} == set(range(SLOTS))


@pytest.mark.parametrize("seed", range(3))
def test_shuffled(alone: dict[str, Sample], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(REQUESTS))
    assert_all_same(drain(engine(), [REQUESTS[index] for index in order]), alone)


def test_arriving_in_the_middle(alone: dict[str, Sample]) -> None:
    running, found = engine(), {}
    for one in REQUESTS:
        running.submit(one)
        found |= {sample.key[0]: sample for sample in running.step()}
    assert_all_same(found | drain(running), alone)


def test_every_slot(alone: dict[str, Sample]) -> None:
    """Behind 0 to 3 long-lived neighbours a request runs in slot 0 to 3."""
    for neighbours in range(SLOTS):
        before = [request(f"n{index}", [index + 1] * 25, new=12) for index in range(neighbours)]
        found = drain(engine(), [*before, REQUESTS[5]])["r5"]
        assert found.slot == neighbours
        assert_same(found, alone["r5"])


def test_in_a_used_engine(alone: dict[str, Sample]) -> None:
    """Slots keep old keys and values; they are never seen."""
    running = engine()
    for order in (REQUESTS, REQUESTS[::-1]):
        assert_all_same(drain(running, order), alone)


@pytest.mark.parametrize("per_dispatch", [1, 4])
def test_any_number_of_tokens_per_dispatch(alone: dict[str, Sample], per_dispatch: int) -> None:
    assert_all_same(drain(engine(per_dispatch=per_dispatch), REQUESTS), alone)


def test_few_samples_go_through_a_program_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One begins while the prompts of the others are computed, ten go on in one of 32 rows, and the last of them end in one of 8."""
    launched: list[int] = []

    def told(*arguments, **options):
        launched.append(len(arguments[3].token))
        return programs.decode(*arguments, **options)

    monkeypatch.setattr(row_counts, "LEAST_WIDTH", SPEC.d_model)
    running = engine(slots=32, page_tokens=16, exact=True)  # where no device may refuse
    assert [line for line in running.warm_up() if line.startswith("decode")] == [
        f"decode: {rows} rows, up to {PER_DISPATCH} tokens each, tables of 3 pages of 16 tokens" for rows in (8, 32)
    ]
    monkeypatch.setattr(engine_module, "decode", told)
    found = drain(running, REQUESTS)
    assert (launched[0], launched[1], launched[-1], set(launched)) == (8, 32, 8, {8, 32})
    launched.clear()
    assert_all_same(found, {one.key[0]: drain(running, [one])[one.key[0]] for one in REQUESTS})
    assert set(launched) == {8}


@pytest.mark.parametrize(("part", "decode_programs"), [("nothing", 2), ("logprob", 1), ("keys", 1)])
def test_a_device_that_gives_few_rows_other_bits_has_one_program(part: str, decode_programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single bit of one row is enough. Tried in exact numerics, in which every device gives the same otherwise."""

    def other_bits(params, spec, pages, rows, **options):
        pages, drawn = programs.decode(params, spec, pages, rows, **options)
        if len(rows.token) == 8 and part == "logprob":
            drawn = replace(drawn, logprob=drawn.logprob.at[0, 5].multiply(1 + 2.0**-23))
        elif len(rows.token) == 8 and part == "keys":
            pages = replace(pages, keys=pages.keys.at[1, 5, 0, 3, 0].multiply(1 + 2.0**-23))
        return pages, drawn

    monkeypatch.setattr(row_counts, "LEAST_WIDTH", SPEC.d_model)
    monkeypatch.setattr(row_counts, "decode", other_bits)
    monkeypatch.setattr(row_counts, "SAMPLING", EXACT)
    assert sum(line.startswith("decode") for line in engine(slots=32, page_tokens=16).warm_up()) == decode_programs


@pytest.mark.parametrize(("slots", "counts"), [(1, (1,)), (31, (31,)), (32, (8, 32)), (34, (34,)), (64, (16, 64)), (128, (8, 32, 128))])
def test_row_counts(slots: int, counts: tuple[int, ...]) -> None:
    assert row_counts.row_counts(slots, 256) == counts
    assert row_counts.row_counts(slots, 255) == (slots,)


def test_a_group_that_shares_its_prompt_is_its_samples_one_by_one() -> None:
    group = [request(f"g{index}", [3, 1, 4, 1, 5, 9]) for index in range(6)]
    together = drain(engine(), group)
    for one in group:
        assert_same(together[one.key[0]], drain(engine(), [one])[one.key[0]])
    assert len({tuple(sample.completion_ids) for sample in together.values()}) == 6


def test_the_seed_and_nothing_else_is_the_randomness() -> None:
    prompt, other = [5, 6, 7], [5, 6, 8]
    requests = {
        "one": request("one", prompt, seed=1),
        "again": request("again", prompt, seed=1),
        "low word": request("low word", prompt, seed=2),
        "high word": request("high word", prompt, seed=1 + 2**32),
        "largest": request("largest", prompt, seed=2**64 - 1),
        "elsewhere": request("elsewhere", other, seed=1),
    }
    found = drain(engine(), [replace(one, stop_ids=()) for one in requests.values()])
    assert_same(found["again"], found["one"])
    different = ["one", "low word", "high word", "largest", "elsewhere"]
    assert len({tuple(found[name].completion_ids) for name in different}) == len(different)
    assert len({found[name].logprobs.tobytes() for name in different}) == len(different)


def test_greedy_ignores_the_seed() -> None:
    found = drain(engine(), [request("a", [2, 3], seed=1, temperature=0.0), request("b", [2, 3], seed=2, temperature=0.0)])
    assert_same(found["a"], found["b"])


def test_nothing_is_compiled_after_the_warm_up() -> None:
    """One program each, whatever the mixture; measuring after a swap has none of its own."""

    def compiled() -> tuple[int, int, int]:
        return programs.copy_pages.compiled(), programs.prefill.compiled(), programs.decode.compiled()

    running = engine(replace(SPEC, context=65), on_swap="auto")  # a context of its own makes its programs new
    before = compiled()
    names = [line.partition(":")[0] for line in running.warm_up()]
    assert names == ["copy_pages", "prefill", "decode"]
    after = compiled()
    assert after[1:] == (before[1] + 1, before[2] + 1)  # copies know no model: others may have compiled theirs
    for version, order in enumerate((REQUESTS, REQUESTS[::2], REQUESTS[::-3])):
        for one in order:
            running.submit(one)
            running.step()
        running.load(weights(version))
        drain(running)
    assert running.last_swap is not None
    drain(running, [request(f"p{length}", [1] * length, new=MAX_TOKENS - length) for length in range(1, MAX_TOKENS - 5)])
    assert compiled() == after
