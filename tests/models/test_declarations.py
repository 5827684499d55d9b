"""Every parameter follows from its one declaration: count, shape, place in files, fresh values."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models.parameters import LayerParams, Params, count, declarations, from_leaves, initialise, leaf, unstack
from slipstream.models.spec import ExpertSpec, ModelSpec, RopeSpec

SPEC = ModelSpec(
    vocab=97,
    d_model=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=6,
    d_ff=80,
    rope=RopeSpec(theta=1e4),
    norm_eps=1e-5,
    tied=False,
    context=64,
)


@pytest.mark.parametrize("tied", [True, False])
def test_count_is_llamas(tied: bool) -> None:
    spec = replace(SPEC, tied=tied)
    attention = 32 * 4 * 6 + 2 * (32 * 2 * 6) + 4 * 6 * 32
    layer = attention + 3 * (32 * 80) + 2 * 32
    assert count(spec) == 97 * 32 * (1 if tied else 2) + 3 * layer + 32
    assert count(spec) == sum(leaf.size for leaf in jax.tree.leaves(initialise(spec, 0)))


def published(**fields: Any) -> ModelSpec:
    """A spec from the numbers in a model's published config.json; what does not count parameters is left as it is."""
    return ModelSpec(**{"rope": RopeSpec(theta=1e4), "norm_eps": 1e-6, "tied": True, "context": 8192} | fields)


GEMMA = {"family": "gemma", "norm_plus_one": True, "sandwich_norms": True, "activation": "gelu_tanh", "scale_embedding": True}
MIXTURE = ExpertSpec(count=128, per_token=8, d_ff=768, normalise=True)
PUBLISHED = {
    "SmolLM2-135M": (134_515_008, published(vocab=49152, d_model=576, layers=30, heads=9, kv_heads=3, head_dim=64, d_ff=1536)),
    "Llama-3.2-1B": (1_235_814_400, published(vocab=128256, d_model=2048, layers=16, heads=32, kv_heads=8, head_dim=64, d_ff=8192)),
    "Mistral-7B": (
        7_241_732_096,
        published(vocab=32000, d_model=4096, layers=32, heads=32, kv_heads=8, head_dim=128, d_ff=14336, tied=False),
    ),
    "Qwen2.5-0.5B": (
        494_032_768,
        published(vocab=151936, d_model=896, layers=24, heads=14, kv_heads=2, head_dim=64, d_ff=4864, qkv_bias=True),
    ),
    "Qwen3-0.6B": (
        596_049_920,
        published(vocab=151936, d_model=1024, layers=28, heads=16, kv_heads=8, head_dim=128, d_ff=3072, qk_norm=True),
    ),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        published(
            vocab=151936,
            d_model=2048,
            layers=48,
            heads=32,
            kv_heads=4,
            head_dim=128,
            d_ff=6144,
            qk_norm=True,
            experts=MIXTURE,
            tied=False,
        ),
    ),
    "Gemma-2-2B": (2_614_341_888, published(vocab=256000, d_model=2304, layers=26, heads=8, kv_heads=4, head_dim=256, d_ff=9216, **GEMMA)),
    "Gemma-3-1B": (
        999_885_952,
        published(vocab=262144, d_model=1152, layers=26, heads=4, kv_heads=1, head_dim=256, d_ff=6912, qk_norm=True, **GEMMA),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_count_is_the_published_one(name: str) -> None:
    """The number of parameters that the model's page states, an embedding that is also the output counted once."""
    known, spec = PUBLISHED[name]
    assert count(spec) == known


def test_count_of_a_mixture_by_hand() -> None:
    """Qwen3-30B-A3B: each layer has 128 experts of three 2048 x 768 matrices and a router; 3.3 of the 30.5 thousand million are used."""
    layer = 2048 * (32 + 4 + 4) * 128 + 32 * 128 * 2048 + 2 * 128 + 2 * 2048 + 2048 * 128 + 128 * 3 * 2048 * 768
    known, spec = PUBLISHED["Qwen3-30B-A3B"]
    assert count(spec) == known == 48 * layer + 2 * 151936 * 2048 + 2048


def test_shapes_and_names() -> None:
    params = initialise(SPEC, 0)
    by_path = {declaration.path: declaration for declaration in declarations(SPEC)}
    assert len(by_path) == len(jax.tree.leaves(params)) == 12
    for path, declaration in by_path.items():
        assert leaf(params, path).shape == declaration.shape(SPEC)
    assert by_path[("layers", "q")].shape(SPEC) == (3, 32, 4, 6)
    assert by_path[("layers", "q")].file_shape(SPEC) == (24, 32)
    assert by_path[("layers", "o")].file_shape(SPEC) == (32, 24)
    assert by_path[("layers", "down")].file_shape(SPEC) == (32, 80)
    names = [name for declaration in by_path.values() for _, name in declaration.tensors(SPEC)]
    assert len(names) == len(set(names)) == 3 + 9 * 3


def test_from_file_and_to_file_are_inverses() -> None:
    rng = np.random.default_rng(0)
    for declaration in declarations(SPEC):
        tensor = rng.normal(size=declaration.file_shape(SPEC))
        inside = declaration.from_file(tensor, SPEC)
        assert inside.shape == (declaration.shape(SPEC)[len(declaration.stack) :])
        np.testing.assert_array_equal(declaration.to_file(inside, SPEC), tensor)


def test_a_row_of_a_files_matrix_is_one_output_feature() -> None:
    """q: row h * head_dim + k holds what head h's entry k sums over; o: column h * head_dim + k is what it contributes."""
    by_path = {declaration.path: declaration for declaration in declarations(SPEC)}
    q = np.arange(24 * 32).reshape(24, 32)
    np.testing.assert_array_equal(by_path[("layers", "q")].from_file(q, SPEC)[:, 2, 5], q[2 * 6 + 5])
    o = np.arange(32 * 24).reshape(32, 24)
    np.testing.assert_array_equal(by_path[("layers", "o")].from_file(o, SPEC)[2, 5], o[:, 2 * 6 + 5])


def test_fresh_weights_have_the_declared_spread() -> None:
    """Mean 0 and deviation 1/sqrt(fan in), to 5 standard errors; norms are ones."""
    params = initialise(SPEC, 11)
    fan_in = {"embed": 32, "head": 32, "q": 32, "k": 32, "v": 32, "o": 24, "gate": 32, "up": 32, "down": 80}
    for declaration in declarations(SPEC):
        values = np.asarray(leaf(params, declaration.path), np.float64)
        name = declaration.path[-1]
        if name not in fan_in:
            np.testing.assert_array_equal(values, 1.0)
            continue
        deviation, n = fan_in[name] ** -0.5, values.size
        assert abs(values.mean()) < 5 * deviation / math.sqrt(n)
        assert values.std() == pytest.approx(deviation, abs=5 * deviation / math.sqrt(2 * n))


def test_draws_depend_on_seed_and_name_alone() -> None:
    params, again, other = initialise(SPEC, 1), initialise(SPEC, 1), initialise(SPEC, 2)
    jax.tree.map(np.testing.assert_array_equal, params, again)
    assert not np.array_equal(params.embed, other.embed)
    assert params.head is not None
    assert not np.array_equal(params.embed, params.head.T)
    layers, moved = params.layers, initialise(replace(SPEC, d_ff=64, tied=True), 1)  # another width and tying move nothing else
    assert isinstance(layers, LayerParams)
    assert isinstance(moved.layers, LayerParams)
    np.testing.assert_array_equal(params.embed, moved.embed)
    for name in ("q", "k", "v", "o"):
        np.testing.assert_array_equal(getattr(layers, name), getattr(moved.layers, name))
    assert not np.array_equal(layers.k, layers.v)
    assert not np.array_equal(layers.gate[0], layers.gate[1])


def test_lower_precision_is_the_same_draw_rounded() -> None:
    full, half = initialise(SPEC, 1), initialise(SPEC, 1, jnp.bfloat16)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.astype(jnp.bfloat16), b), full, half)


def test_unstacking_keeps_every_layer() -> None:
    params = initialise(SPEC, 1)
    split = unstack(params)
    assert isinstance(split.layers, tuple)
    assert isinstance(params.layers, LayerParams)
    assert len(split.layers) == 3
    for index, layer in enumerate(split.layers):
        jax.tree.map(lambda one, all_, index=index: np.testing.assert_array_equal(one, all_[index]), layer, params.layers)
    assert split.embed is params.embed


def test_a_tree_from_leaves_is_the_tree() -> None:
    params = initialise(replace(SPEC, tied=True), 1)
    rebuilt = from_leaves({d.path: leaf(params, d.path) for d in declarations(replace(SPEC, tied=True))})
    assert isinstance(rebuilt, Params)
    assert rebuilt.head is None
    jax.tree.map(np.testing.assert_array_equal, rebuilt, params)
