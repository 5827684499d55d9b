"""`slipstream bench products`: the matrices of the layers, and a row for each system and count."""

import pytest

from slipstream.cli.bench.limits import Limits
from slipstream.cli.bench.products import _measure, _shapes
from slipstream.models.cpu import packed
from tests.models.families import golden_model


def test_the_matrices_are_those_of_a_dense_layer() -> None:
    spec, _ = golden_model("llama")
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    attention = [(spec.d_model, queries), (spec.d_model, keys), (spec.d_model, keys), (queries, spec.d_model)]
    assert _shapes(spec) == [*attention, (spec.d_model, spec.d_ff), (spec.d_model, spec.d_ff), (spec.d_ff, spec.d_model)]
    experts, _ = golden_model("qwen3_moe")
    assert len(_shapes(experts)) == 4


@pytest.mark.skipif(not packed.available(), reason="no products of ours on this processor")
@pytest.mark.parametrize("system", ["xla float32", "own float32", "own bfloat16", "own int8"])
def test_every_system_is_measured(system: str) -> None:
    limits = Limits(flops_per_second={"float32": 1e6, "bfloat16": 1e6}, bytes_per_second=1e12)  # so that products are the limit
    row = _measure(2, [(64, 96), (96, 64)], system, 20, limits)
    assert (row["system"], row["rows"]) == (system, 20)
    operations = 2 * 20 * 2 * 2 * 64 * 96
    assert row["gflops_per_second"] == pytest.approx(operations / row["milliseconds"] / 1e6, rel=0.2, abs=0.1)
    assert row["share_of_limit"] == pytest.approx(operations / 1e6 / (row["milliseconds"] / 1e3), rel=0.2)
