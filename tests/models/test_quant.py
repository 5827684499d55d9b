"""Weights in fewer bits: how far each one may move, what stays as it is, and that a quantised tree is a tree like any other."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from slipstream.models.attention.dense import dense
from slipstream.models.attention.rule import PackedRows
from slipstream.models.decoder import logits, packed_hidden_states
from slipstream.models.parameters import LayerParams, Params, declarations, leaf, unstack
from slipstream.models.quant import at_precision, quantisable, quantise
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision, Quantised, project
from tests.goldens.read import golden
from tests.models.families import golden_model

MATRICES = {"q", "k", "v", "o", "gate", "up", "down"}


def drawn(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Channels of unlike size, one of zeros, one with a single large weight."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape) * np.exp(rng.normal(size=shape[-1]) * 2)
    values[..., 1] = 0
    values[..., 2] = 1e-3
    values[(0,) * (len(shape) - 1) + (2,)] = 5.0
    return values.astype(np.float32)


def widened(weight: Quantised, inputs: tuple[int, ...]) -> np.ndarray:
    """stored * scale in float64."""
    return np.asarray(weight.stored.astype(jnp.float32), np.float64) * np.expand_dims(np.asarray(weight.scale, np.float64), inputs)


def test_int8_moves_a_weight_by_half_a_step_at_most() -> None:
    """A step is a 127th of the channel's largest magnitude, which is itself kept; zeros stay zeros."""
    values = drawn((40, 9))
    found = quantise(jnp.asarray(values), (0,), "int8")
    assert (found.stored.dtype, found.scale.dtype, found.scale.shape) == (jnp.int8, jnp.float32, (9,))
    largest = np.abs(values).max(axis=0)
    np.testing.assert_allclose(found.scale, largest / 127, rtol=1e-6)
    moved = np.abs(widened(found, (0,)) - values)
    assert (moved <= (0.5 + 1e-5) * largest / 127).all()
    assert moved[:, 3:].max() > 0.4 * (largest / 127)[3:].min()
    np.testing.assert_array_equal(np.abs(np.asarray(found.stored)).max(axis=0), [0 if size == 0 else 127 for size in largest])
    np.testing.assert_array_equal(np.asarray(found.stored)[:, 1], 0)
    np.testing.assert_array_equal(np.asarray(found.stored)[:, 2], [127] + 39 * [0])  # a thousandth of the largest rounds to 0.03 steps


def test_fp8_moves_a_weight_by_a_16th_of_itself_at_most() -> None:
    """e4m3: four significant bits down to a 448 * 64th of the channel's largest magnitude, then even steps; nothing becomes NaN."""
    values = drawn((40, 9))
    found = quantise(jnp.asarray(values), (0,), "fp8")
    assert found.stored.dtype == jnp.float8_e4m3fn
    largest = np.abs(values).max(axis=0)
    moved = np.abs(widened(found, (0,)) - values)
    smallest_step = largest / 448 * 2.0**-9
    assert (moved <= np.maximum(np.abs(values) / 16, smallest_step / 2) * (1 + 1e-5)).all()
    np.testing.assert_array_equal(widened(found, (0,))[:, 1], 0)
    assert not np.isnan(widened(found, (0,))).any()
    np.testing.assert_allclose(np.abs(widened(found, (0,))).max(axis=0), largest, rtol=1e-6)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_values_by_hand(precision: Precision) -> None:
    """One channel with its largest weight 127 (or 448), so that the scale is 1 and rounding is plain to see; ties go to even."""
    if precision == "int8":
        given, expected = [127.0, -127.0, 1.5, 2.5, -0.4, 0.0], [127, -127, 2, 2, 0, 0]
    else:
        given, expected = [448.0, -448.0, 17.0, 19.0, 0.0009, 300.0], [448, -448, 16, 20, 0, 288]  # steps of 2 at 16, of 32 at 256
    found = quantise(jnp.asarray(given)[:, None], (0,), precision)
    assert float(found.scale[0]) == 1.0
    np.testing.assert_array_equal(np.asarray(found.stored.astype(jnp.float32))[:, 0], expected)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_stacked_layers_are_quantised_as_each_alone(precision: Precision) -> None:
    """Three layers of a matrix with two input axes, as o is: the same bits, and a slice is a matrix that `project` applies."""
    values = np.stack([drawn((4, 6, 9), seed) for seed in range(3)])
    stacked = quantise(jnp.asarray(values), (1, 2), precision)
    assert stacked.scale.shape == (3, 9)
    for layer in range(3):
        alone = quantise(jnp.asarray(values[layer]), (0, 1), precision)
        jax.tree.map(np.testing.assert_array_equal, alone, jax.tree.map(lambda leaf, layer=layer: leaf[layer], stacked))


@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize(
    ("shape", "inputs", "letters"), [((6, 9), 1, "ni,io->no"), ((6, 2, 9), 1, "ni,iab->nab"), ((4, 6, 9), 2, "nab,abo->no")]
)
def test_project_is_the_product_with_the_widened_matrix(precision: Precision, shape: tuple, inputs: int, letters: str) -> None:
    """Scales are applied after the product, so in float32 only its rounding is seen."""
    weight = quantise(jnp.asarray(drawn(shape)), tuple(range(inputs)), precision)
    x = np.random.default_rng(1).normal(size=(5, *shape[:inputs])).astype(np.float32)
    expected = np.einsum(letters, x, widened(weight, tuple(range(inputs))))
    found = project(jnp.asarray(x), weight, inputs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    half = project(jnp.asarray(x, jnp.bfloat16), weight, inputs)
    assert half.dtype == jnp.bfloat16
    rounded = np.einsum(letters, x.astype(ml_dtypes.bfloat16).astype(np.float64), widened(weight, tuple(range(inputs))))
    assert np.abs(np.asarray(half, np.float64) - rounded).max() <= 0.02 * np.abs(rounded).max()


def test_eight_bits_are_exact_in_bfloat16() -> None:
    """What `project` relies on when it widens to the type of activations."""
    for values in (np.arange(-127, 128).astype(np.int8), np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)):
        wide = values.astype(np.float32)
        np.testing.assert_array_equal(wide.astype(ml_dtypes.bfloat16).astype(np.float32), wide)


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        ("llama", "f32"),
        ("gemma2", "bf16"),
        ("llama", "int8"),
        ("llama_tied", "int8"),
        ("qwen2", "fp8"),
        ("qwen3_moe", "int8"),
        ("qwen3_moe", "fp8"),
    ],
)
def test_which_parameters_are_quantised(family: str, precision: Precision) -> None:
    """Matrices of layers, experts' too, and an untied output; embeddings (a tied one is also the output), norms, biases, routers not."""
    spec, params = golden_model(family)
    found = golden_at(family, precision)
    assert (found.head is None) == spec.tied
    eight = set()
    for declaration in declarations(spec):
        name, value, before = declaration.path[-1], leaf(found, declaration.path), leaf(params, declaration.path)
        assert quantisable(declaration) == (name in MATRICES | {"head"})
        if isinstance(value, Quantised):
            eight.add(name)
            kept = tuple(axis for axis in declaration.axes if axis not in declaration.fan_in)
            assert value.stored.shape == value.shape == before.shape
            assert value.scale.shape == tuple(spec.axis_size(axis) for axis in kept)
        else:
            dtype = jnp.float32 if precision == "f32" else jnp.bfloat16
            np.testing.assert_array_equal(value, before.astype(dtype))
            assert value.dtype == dtype
    assert eight == ((MATRICES | (set() if spec.tied else {"head"})) if precision in ("int8", "fp8") else set())


@cache
def golden_at(family: str, precision: Precision) -> Params:
    """A golden model as a sampler of that precision holds it; compiled, for all its matrices at once."""
    spec, params = golden_model(family)
    return jax.jit(at_precision, static_argnums=(1, 2))(params, spec, precision)


@partial(jax.jit, static_argnames=("spec", "scan"))
def row_logits(params: Params, spec: ModelSpec, tokens: jax.Array, scan: bool = True) -> jax.Array:
    one, positions = jnp.ones((1, tokens.shape[0]), jnp.int32), jnp.arange(tokens.shape[0])[None]
    rows = PackedRows(segments=one, parents=one, positions=positions)
    hidden = packed_hidden_states(params, spec, tokens[None], rows, dense, scan=scan, dtype=params.embed.dtype).hidden
    return logits(params, spec, hidden)[0]


# root mean square distance of logits from the golden ones, in units of their deviation: about 1.4 times what was measured.
# A mixture moves further, because a token near the edge of two experts may take the other one.
DISTANCES: dict[tuple[str, Precision], float] = {
    ("llama_tied", "bf16"): 0.03,
    ("llama_tied", "int8"): 0.05,
    ("llama_tied", "fp8"): 0.16,
    ("gemma2", "int8"): 0.05,
    ("gemma2", "fp8"): 0.16,
    ("qwen3_moe", "bf16"): 0.04,
    ("qwen3_moe", "int8"): 0.065,
    ("qwen3_moe", "fp8"): 0.33,
}


@pytest.mark.parametrize(("family", "precision"), DISTANCES)
def test_whole_models_in_fewer_bits(family: str, precision: Precision) -> None:
    """Logits stay near those of transformers in float32, and the best token is mostly the same."""
    spec, _ = golden_model(family)
    known = golden(family)
    found = np.asarray(row_logits(golden_at(family, precision), spec, known.tokens))
    off = np.sqrt(np.mean((found - known.logits) ** 2)) / known.logits.std()
    assert 0 < off < DISTANCES[family, precision]
    same = np.mean(found.argmax(-1) == known.logits.argmax(-1))
    assert same >= (0.6 if (family, precision) == ("qwen3_moe", "fp8") else 0.8)


def test_a_quantised_tree_is_a_tree_like_any_other() -> None:
    """Through jit, scan, unstacking and back through leaves: the unrolled layers compute what the scanned ones do."""
    spec, _ = golden_model("llama")
    eight = golden_at("llama", "int8")
    tokens = golden("llama").tokens
    apart = unstack(eight)
    assert isinstance(apart.layers, tuple)
    assert isinstance(eight.layers, LayerParams)
    for index, layer in enumerate(apart.layers):
        assert isinstance(layer.q, Quantised)
        assert isinstance(eight.layers.q, Quantised)
        np.testing.assert_array_equal(layer.q.stored, eight.layers.q.stored[index])
        np.testing.assert_array_equal(layer.q.scale, eight.layers.q.scale[index])
    scanned, unrolled = row_logits(eight, spec, tokens), row_logits(apart, spec, tokens, scan=False)
    np.testing.assert_allclose(scanned, unrolled, rtol=0, atol=0.1)
    leaves, shape = jax.tree.flatten(eight)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.unflatten(shape, leaves), eight)
