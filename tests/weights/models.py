"""A decoder small enough for file tests, and the special ids that go with it."""

from dataclasses import replace

from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.weights.special_ids import SpecialIds

TINY = ModelSpec(
    vocab=11,
    d_model=8,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=6,
    d_ff=12,
    rope=RopeSpec(theta=5000.0),
    norm_eps=1e-5,
    tied=True,
    context=32,
)
UNTIED = replace(TINY, tied=False)
SPECIAL = SpecialIds(bos=1, eos=(2, 3), pad=0)
