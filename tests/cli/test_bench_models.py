"""`slipstream bench models`: prefill, decode and training run, and each has its figures."""

from slipstream.cli.bench.limits import Limits
from slipstream.cli.bench.models import _decode, _prefill, _training
from tests.models.families import golden_model


def test_every_kind_of_work_is_measured() -> None:
    spec, params = golden_model("llama")
    limits = Limits(flops_per_second={"float32": 1e9, "bfloat16": 1e9}, bytes_per_second=1e9)
    rows = [_prefill(spec, params, limits, "bf16"), _decode(spec, params, limits, "f32", 8), _training(spec, params, limits, scan=True)]
    assert [row["work"] for row in rows] == ["prefill", "decode", "forward + backward"]
    assert all(row["tokens_per_second"] > 0 for row in rows)
