"""Exact mode: the engine's log-probs are the learner's to the bit, whatever the company, order, pages, packing and program.

What is compared are bits (float32 as int32), counted: all of them, in every arrangement.
"""

from dataclasses import replace

import jax
import pytest

from slipstream.config.schema import BatchSection, ModelSection, RunConfig, SamplingSection
from slipstream.core.errors import RunFailed
from slipstream.engine import engine as engine_module
from slipstream.models import numerics
from slipstream.models.numerics import Numerics, barriers_hold
from slipstream.train.learner import Learner
from tests.engine import exact, small
from tests.engine.exact import PAGE, asked, sampler, scores, sequences
from tests.engine.exact_matrix import CELLS
from tests.engine.small import drain, request
from tests.goldens.read import FAMILIES
from tests.xla_products import xla_products

IN_CI = (("gemma3", "f32"), ("qwen3", "bf16"))  # windows, norms around each part, tied; normalised q and k, untied
FURTHER = (("gemma2", "bf16"), ("llama", "bf16"))  # soft caps; heads of 8, so XLA attends
ELSEWHERE = [(family, precision) for family in FAMILIES for precision in ("f32", "bf16") if (family, precision) not in IN_CI]
FAST_CELLS = (
    *("sampler: alone", "sampler: other company", "sampler: joining, leaving", "sampler: shuffled pages", "sampler: turns, pages kept"),
    *("learner: packed, scan", "learner: unrolled, remat, long row", "learner: gradient's program"),
)
OTHER_CELLS = [name for name in CELLS if name not in FAST_CELLS]


def check(cells: list[str], family: str, precision: str) -> None:
    counts = {name: CELLS[name](family, precision) for name in cells}
    assert all(count.exact for count in counts.values()), counts


@pytest.mark.parametrize("cell", FAST_CELLS)
@pytest.mark.parametrize(("family", "precision"), IN_CI)
def test_every_bit_is_the_same(family: str, precision: str, cell: str) -> None:
    check([cell], family, precision)


@pytest.mark.parametrize("cell", ["sampler: other company", "learner: packed, scan"])
@pytest.mark.parametrize(("family", "precision"), FURTHER)
def test_so_it_is_where_scores_are_capped_and_where_xla_attends(family: str, precision: str, cell: str) -> None:
    check([cell], family, precision)


def test_a_rounding_to_bfloat16_that_is_widened_at_once_is_kept() -> None:
    """A router's scores: without a barrier XLA dropped their rounding, in this arrangement alone."""
    check(["learner: remat, much padding"], "qwen3_moe", "bf16")


def test_a_learner_on_four_devices_of_another_process_is_exact() -> None:
    check(["learner: 4 devices elsewhere"], "gemma2", "f32")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "precision"), IN_CI)
def test_every_further_arrangement_is_exact(family: str, precision: str) -> None:
    check(OTHER_CELLS, family, precision)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "precision"), ELSEWHERE)
def test_every_family_is_exact(family: str, precision: str) -> None:
    check(list(CELLS), family, precision)


def test_exact_mode_is_refused_where_the_compiler_drops_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never silently the fast path: an engine that cannot be exact is not made."""
    assert barriers_hold()
    monkeypatch.setattr(numerics, "_compiler_options", lambda: None)
    assert not barriers_hold()
    with pytest.raises(RunFailed, match="does not keep barriers"):
        sampler("llama", "f32")


def test_exact_mode_never_computes_as_fast_mode_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced anew (the context is of no other test) with fast arithmetic out of order, sampler and score still work."""

    def exact_only(name: str):
        original = getattr(Numerics, name)

        def call(self: Numerics, *arrays: jax.Array) -> jax.Array:
            assert self.exact, f"{name} of fast mode"
            return original(self, *arrays)

        return call

    for name in ("seal", "total", "exp", "log", "product", "batched"):
        monkeypatch.setattr(Numerics, name, exact_only(name))
    spec = replace(small.SPEC, context=66)
    requests = [request("a", [1, 2, 3], stop_ids=()), replace(request("b", [4], stop_ids=()), top_k=5, top_p=0.9)]
    found = drain(small.engine(spec, exact=True, page_tokens=PAGE), requests)
    config = RunConfig(
        model=ModelSection(numerics="exact"),
        sampling=SamplingSection(page_tokens=PAGE),
        batch=BatchSection(row_tokens=32, rows_per_microbatch=1),
    )
    made = Learner(config, spec, small.params(0, spec))
    some = sequences(requests[:1], found)
    assert exact.same_scores(made.score(some, made.weights()), some).exact
    with pytest.raises(AssertionError, match="of fast mode"):
        drain(small.engine(replace(spec, context=67), page_tokens=PAGE), requests)


FAULTS = {
    "sums as XLA likes": {"total": lambda self, x: jax.numpy.sum(x, axis=-1, keepdims=True)},
    "products of all rows at once": {"product": lambda self, x, matrix, turned=False: x @ (matrix.T if turned else matrix)},
    "no barriers": {"seal": lambda self, x: x},
}
SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in list(FAULTS)[1:]]


@pytest.mark.parametrize("fault", [next(iter(FAULTS)), *SLOW])
def test_the_tests_can_see(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one part of the recipe some bits differ, so the counts above mean something. Where kernels are our own, no part is left
    to XLA that could go wrong alone: so by XLA's operations.
    """
    for name, replacement in FAULTS[fault].items():
        monkeypatch.setattr(Numerics, name, replacement)
    monkeypatch.setattr(engine_module, "barriers_hold", lambda: True)  # it would refuse to work without any
    jax.clear_caches()
    try:
        with xla_products():
            found = drain(sampler("gemma2", "f32"), asked("gemma2"))
            count = scores("gemma2", "f32", found)
        assert 0 <= count.equal < count.compared
    finally:
        jax.clear_caches()
