"""The decoder computes what Llama's definition says, however its layers are run, and packed segments never meet."""

import math
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models.attention.chunked import chunked
from slipstream.models.attention.dense import attend, dense
from slipstream.models.attention.rule import AttentionRule, PackedRows, related
from slipstream.models.decoder import logits as decoder_logits
from slipstream.models.decoder import packed_hidden_states
from slipstream.models.parameters import Declaration, Params, declarations, from_leaves
from slipstream.models.spec import ModelSpec, RopeSpec
from tests.models.llama_oracle import file_tensors, log_softmax, oracle_logits

SPEC = ModelSpec(
    vocab=13,
    d_model=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    d_ff=40,
    rope=RopeSpec(theta=500.0),
    norm_eps=1e-5,
    tied=False,
    context=64,
)
SHAPES = {
    "grouped, untied": SPEC,
    "grouped, tied": replace(SPEC, tied=True),
    "one key head": replace(SPEC, kv_heads=1, layers=1),
    "as many key heads": replace(SPEC, kv_heads=4, layers=1, head_dim=6),  # heads * head_dim is not d_model
}
LAYOUTS = {"unrolled": (False, False), "scan, remat": (True, True)}
WIDTH = 24  # of a packed row, unless said otherwise
TOKENS = np.random.default_rng(5).integers(0, SPEC.vocab, 18)


@cache
def varied(spec: ModelSpec) -> Params:
    """Weights of the declared spread; norm weights are not all one, so that they matter. From numpy: nothing to compile."""
    rng = np.random.default_rng(3)

    def draw(declaration: Declaration) -> jax.Array:
        deviation = math.prod(spec.axis_size(axis) for axis in declaration.fan_in) ** -0.5
        values = rng.normal(size=declaration.shape(spec))
        return jnp.asarray(1 + 0.3 * values if declaration.init == "ones" else deviation * values, jnp.float32)

    return from_leaves({declaration.path: draw(declaration) for declaration in declarations(spec)})


def packed_logits(
    params: Params, spec: ModelSpec, segments: list[np.ndarray], width: int = WIDTH, layout: tuple[bool, bool] = (False, False)
):
    """Logits [width, v] of one packed row that holds the segments."""
    tokens, positions, ids = (np.zeros((1, width), np.int32) for _ in range(3))
    start = 0
    for index, segment in enumerate(segments):
        place = slice(start, start + len(segment))
        tokens[0, place], positions[0, place], ids[0, place] = segment, np.arange(len(segment)), index + 1
        start += len(segment)
    return row_logits(params, spec, tokens, positions, ids, ids, *layout)


@partial(jax.jit, static_argnames=("spec", "scan", "remat"))
def row_logits(
    params: Params, spec: ModelSpec, tokens: jax.Array, positions: jax.Array, ids: jax.Array, parents: jax.Array, scan: bool, remat: bool
):
    rows = PackedRows(segments=jnp.asarray(ids), parents=jnp.asarray(parents), positions=jnp.asarray(positions))
    hidden = packed_hidden_states(params, spec, tokens, rows, dense, scan=scan, remat=remat).hidden
    return decoder_logits(params, spec, hidden)[0]


@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES)
def test_logits_are_those_of_the_definition(spec: ModelSpec) -> None:
    params = varied(spec)
    found = packed_logits(params, spec, [TOKENS])[: len(TOKENS)]
    np.testing.assert_allclose(found, oracle_logits(file_tensors(params, spec), spec, TOKENS), atol=1e-4, rtol=0)


def test_gradient_is_the_slope_of_the_definition() -> None:
    """Along random directions in parameter space, by central differences of the float64 oracle."""
    spec, tokens = replace(SPEC, tied=True), TOKENS[:7]
    params = varied(spec)

    def loss(params: Params) -> jax.Array:
        logprobs = jax.nn.log_softmax(packed_logits(params, spec, [tokens], len(tokens)))
        return logprobs[jnp.arange(6), tokens[1:]].sum()

    def oracle_loss(params: Params) -> float:
        logprobs = log_softmax(oracle_logits(file_tensors(params, spec), spec, tokens))
        return float(sum(logprobs[index, tokens[index + 1]] for index in range(6)))

    gradient = jax.jit(jax.grad(loss))(params)
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), params)
        moved = [jax.tree.map(lambda leaf, d, s=sign: np.asarray(leaf, np.float64) + s * 1e-5 * d, params, direction) for sign in (1, -1)]
        slope = (oracle_loss(moved[0]) - oracle_loss(moved[1])) / 2e-5
        products = jax.tree.map(lambda g, d: float(np.sum(np.asarray(g, np.float64) * d)), gradient, direction)
        assert sum(jax.tree.leaves(products)) == pytest.approx(slope, rel=1e-4, abs=1e-3)


@pytest.fixture(scope="module")
def layouts() -> dict[str, tuple[jax.Array, Params]]:
    """For each way of running the layers: logits and the gradient of a scalar of them."""
    params, segments = varied(SPEC), [TOKENS[:10], TOKENS[10:15]]
    weight = jax.random.normal(jax.random.key(9), (18, SPEC.vocab))
    found = {}
    for name, (scan, remat) in LAYOUTS.items():

        def scalar(params: Params, scan: bool = scan, remat: bool = remat) -> tuple[jax.Array, jax.Array]:
            logits = packed_logits(params, SPEC, segments, 18, (scan, remat))
            return jnp.sum(weight * logits), logits

        (_, logits), gradient = jax.jit(jax.value_and_grad(scalar, has_aux=True))(params)
        found[name] = (logits, gradient)
    return found


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "unrolled"])
def test_scan_and_remat_change_nothing(layouts: dict, name: str) -> None:
    """Float32: the compiler may fuse differently, so equal within 1e-5 of each leaf's largest entry."""
    (logits, gradient), (plain_logits, plain_gradient) = layouts[name], layouts["unrolled"]
    np.testing.assert_allclose(logits, plain_logits, atol=1e-5, rtol=0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.abs(b).max())), gradient, plain_gradient)


@pytest.fixture(scope="module", params=[dense, chunked], ids=["dense", "chunked"])
def two_segments(request: pytest.FixtureRequest):
    """Of a row with segments of 7 and of 6 tokens: its logits, and the gradient of a loss over the positions observed."""
    params, attention = varied(SPEC), request.param

    @jax.jit
    def run(tokens: jax.Array, observed: jax.Array) -> tuple[jax.Array, Params]:
        positions = jnp.asarray([[*range(7), *range(6), 0, 0, 0]])
        ids = jnp.asarray([[1] * 7 + [2] * 6 + [0] * 3])
        rows = PackedRows(segments=ids, parents=ids, positions=positions)

        def observed_loss(params: Params) -> tuple[jax.Array, jax.Array]:
            hidden = packed_hidden_states(params, SPEC, tokens, rows, attention).hidden
            logits = decoder_logits(params, SPEC, hidden)[0]
            return jnp.sum(jnp.sin(logits) * observed[:, None]), logits

        gradient, logits = jax.grad(observed_loss, has_aux=True)(params)
        return logits, gradient

    return run


@pytest.mark.parametrize("changed", range(16))
def test_a_change_in_one_segment_or_in_the_padding_is_not_felt_in_another(two_segments, changed: int) -> None:
    row = np.resize(TOKENS, 16)[None]
    other = row.copy()
    other[0, changed] = (other[0, changed] + 1) % SPEC.vocab
    segment = np.repeat([1, 2, 0], [7, 6, 3])
    apart = jnp.asarray((segment > 0) & (segment != segment[changed]))
    (logits, gradient), (other_logits, other_gradient) = two_segments(row, apart), two_segments(other, apart)
    np.testing.assert_array_equal(logits[apart], other_logits[apart])
    jax.tree.map(np.testing.assert_array_equal, gradient, other_gradient)
    assert not np.array_equal(logits[changed], other_logits[changed])


def test_a_segment_reads_as_if_it_were_alone() -> None:
    params, first, second = varied(SPEC), TOKENS[:7], TOKENS[7:16]
    row = packed_logits(params, SPEC, [first, second])
    tensors = file_tensors(params, SPEC)
    np.testing.assert_allclose(row[:7], oracle_logits(tensors, SPEC, first), atol=1e-4, rtol=0)
    np.testing.assert_allclose(row[7:16], oracle_logits(tensors, SPEC, second), atol=1e-4, rtol=0)


def branched_logits(prefix: np.ndarray, branches: list[np.ndarray]) -> list[jax.Array]:
    """Logits of each branch [tokens, v], in one row after a prefix that they share."""
    tokens, positions, ids, parents = (np.zeros((1, WIDTH), np.int32) for _ in range(4))
    stop = len(prefix)
    tokens[0, :stop], positions[0, :stop], ids[0, :stop], parents[0, :stop] = prefix, np.arange(stop), 1, 1
    places = []
    for index, branch in enumerate(branches):
        places.append(slice(stop, stop := stop + len(branch)))
        tokens[0, places[-1]], ids[0, places[-1]], parents[0, places[-1]] = branch, index + 2, 1
        positions[0, places[-1]] = len(prefix) + np.arange(len(branch))
    logits = row_logits(varied(SPEC), SPEC, tokens, positions, ids, parents, False, False)
    return [logits[place] for place in places]


def test_branches_of_a_shared_prompt_read_as_if_each_were_alone() -> None:
    prefix, branches, tensors = TOKENS[:5], [TOKENS[5:11], TOKENS[7:14], TOKENS[4:8]], file_tensors(varied(SPEC), SPEC)
    found = branched_logits(prefix, branches)
    for logits, branch in zip(found, branches, strict=True):
        expected = oracle_logits(tensors, SPEC, [*prefix, *branch])[len(prefix) :]
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)
    branches[1] = (branches[1] + 1) % SPEC.vocab
    changed = branched_logits(prefix, branches)
    np.testing.assert_array_equal(changed[0], found[0])
    np.testing.assert_array_equal(changed[2], found[2])
    assert not np.array_equal(changed[1], found[1])


def test_padding_changes_nothing() -> None:
    """Other widths are other shapes, so equal to rounding only."""
    params = varied(SPEC)
    narrow, wide = packed_logits(params, SPEC, [TOKENS]), packed_logits(params, SPEC, [TOKENS], 40)
    np.testing.assert_allclose(wide[:18], narrow[:18], atol=1e-5, rtol=0)
    assert np.isfinite(np.asarray(wide)).all()


def test_the_packed_mask_is_the_past_of_the_same_segment_and_its_parent() -> None:
    """Rows: two plain segments and padding; a shared prompt (1) with two branches (2, 3) and a stranger (4)."""
    segments = np.array([[1, 1, 2, 2, 2, 0, 0], [1, 1, 2, 2, 3, 4, 4]])
    parents = np.array([[1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 4, 4]])
    positions = np.array([[0, 1, 0, 1, 2, 0, 0], [0, 1, 2, 3, 2, 0, 1]])
    rows = PackedRows(segments=jnp.asarray(segments), parents=jnp.asarray(parents), positions=jnp.asarray(positions))
    for window in (0, 1, 2, 3):
        found = np.asarray(related(rows, rows, window))
        np.testing.assert_array_equal(found, related(rows, rows, jnp.int32(window)))
        for row, query, key in np.ndindex(found.shape):
            family = segments[row, key] in (segments[row, query], parents[row, query])
            distance = positions[row, query] - positions[row, key]
            assert found[row, query, key] == (family and 0 <= distance < (window or 99))


def test_attention_is_causal_over_garbage() -> None:
    """What lies at masked keys has no influence, however large."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 5, 2, 4), (1, 1, 4, 5), (1, 1, 5, 4)))
    allowed = jnp.asarray(np.tril(np.ones((1, 5, 5), bool)))
    plain = attend(jnp.asarray(q), jnp.asarray(k), jnp.asarray(v), allowed, AttentionRule(scale=0.5))
    k[..., 3:], v[..., 3:, :] = 1e6, -1e6
    np.testing.assert_array_equal(
        attend(jnp.asarray(q), jnp.asarray(k), jnp.asarray(v), allowed, AttentionRule(scale=0.5))[:, :3], plain[:, :3]
    )


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="kv_heads = 3 does not divide heads = 4"):
        replace(SPEC, kv_heads=3)
    with pytest.raises(ValueError, match="head_dim = 7 is odd"):
        replace(SPEC, head_dim=7)
