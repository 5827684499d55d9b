"""`slipstream bench rows`: every operation is measured, by XLA and by our own kernels."""

import pytest

from slipstream.cli.bench.rows import _measure, _operations
from slipstream.models.cpu import packed
from tests.models.families import golden_model

pytestmark = pytest.mark.skipif(not packed.available(), reason="no kernels of ours on this processor")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_operation_is_measured(dtype: str) -> None:
    spec, _ = golden_model("llama")
    found = [_measure(operation, 4) for operation in _operations(spec, 4, dtype)]
    assert [row["operation"] for row in found] == ["sum and norm", "turn", "gate", "log-probs", "draw"]
    for row in found:
        assert row["rows"] == 4
        assert row["times_as_fast"] == pytest.approx(row["xla_microseconds"] / row["own_microseconds"], rel=0.05, abs=0.01)
