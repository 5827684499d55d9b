"""Low-rank adapters: beside a matrix and merged into it they are the same model; only they are trained; peft's files hold them."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slipstream.core.errors import RunFailed, UsageError
from slipstream.models.attention.dense import dense
from slipstream.models.attention.rule import PackedRows
from slipstream.models.decoder import logits, packed_hidden_states
from slipstream.models.lora import TARGETS, Adapters, LayerAdapters, LoraSpec, adapted, initial_adapters, merge
from slipstream.models.parameters import LayerParams, Params
from slipstream.models.quant import at_precision
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Adapter, project
from slipstream.weights.peft import read_adapters, write_adapters
from tests.goldens.read import ADAPTED, ADAPTER, golden
from tests.models.families import golden_model

ALL = LoraSpec(rank=3, alpha=6.0, targets=TARGETS)
TOKENS = golden(ADAPTED).tokens


@partial(jax.jit, static_argnames="spec")
def row_logits(params: Params, spec: ModelSpec, adapters: Adapters | None, tokens) -> jax.Array:
    one, positions = jnp.ones((1, tokens.shape[0]), jnp.int32), jnp.arange(tokens.shape[0])[None]
    rows = PackedRows(segments=one, parents=one, positions=positions)
    return logits(params, spec, packed_hidden_states(params, spec, tokens[None], rows, dense, scan=True, adapters=adapters).hidden)[0]


def random_adapters(spec: ModelSpec, lora: LoraSpec, seed: int = 0) -> Adapters:
    """Adapters that matter: both matrices random."""
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.Array) -> jax.Array:
        return leaf if leaf.ndim == 1 else jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(lora.rank * 8), jnp.float32)

    return jax.tree.map(draw, initial_adapters(spec, lora, 0))


def test_project_adds_the_low_rank_product() -> None:
    """By hand: 2 inputs, 3 outputs, rank 1, scale 2. x W = (1, 2, 3) + (4, 5, 6); x down = 1 + 2 * 2 = 3 -> ..."""
    weight, down, up = jnp.asarray([[1.0, 2, 3], [4, 5, 6]]), jnp.asarray([[1.0], [2]]), jnp.asarray([[1.0, 0, -1]])
    adapter = Adapter(down=down, up=up, scale=2.0)
    np.testing.assert_array_equal(project(jnp.ones((1, 2)), weight, adapter=adapter), [[5 + 2 * 3 * 1, 7, 9 - 2 * 3]])


def test_project_over_two_input_axes() -> None:
    """As o does: every letter summed by numpy in float64."""
    rng = np.random.default_rng(0)
    x, weight, down, up = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 4, 6), (4, 6, 7), (4, 6, 2), (2, 7)))
    found = project(jnp.asarray(x), jnp.asarray(weight), inputs=2, adapter=Adapter(down=jnp.asarray(down), up=jnp.asarray(up), scale=0.5))
    expected = np.einsum("nhk,hkd->nd", x, weight) + 0.5 * np.einsum("nhk,hkr,rd->nd", x, down, up)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_fresh_adapters_change_nothing_and_are_drawn_by_name() -> None:
    spec, params = golden_model(ADAPTED)
    fresh = initial_adapters(spec, ALL, seed=4)
    np.testing.assert_array_equal(row_logits(params, spec, fresh, TOKENS), row_logits(params, spec, None, TOKENS))
    jax.tree.map(np.testing.assert_array_equal, merge(params, fresh), params)
    few, other = initial_adapters(spec, replace(ALL, targets=("o",)), seed=4), initial_adapters(spec, ALL, seed=5)
    assert fresh.layers.o is not None
    assert few.layers.o is not None
    assert other.layers.o is not None
    assert few.layers.q is None
    np.testing.assert_array_equal(few.layers.o.down, fresh.layers.o.down)
    assert not np.array_equal(other.layers.o.down, fresh.layers.o.down)
    np.testing.assert_array_equal(fresh.layers.o.scale, np.full(spec.layers, 2.0))
    inputs = spec.heads * spec.head_dim
    assert np.std(fresh.layers.o.down) == pytest.approx(inputs**-0.5, rel=5 / np.sqrt(2 * fresh.layers.o.down.size))


@pytest.mark.parametrize("target", TARGETS)
def test_merged_is_the_same_model_as_beside(target: str) -> None:
    """One matrix at a time, of a model with two query heads to a key head and heads wider than the stream; the adapter matters."""
    spec, params = golden_model("qwen3")
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.d_model) == (4, 2, 16, 32)
    lora = replace(ALL, targets=(target,))
    every = initial_adapters(spec, ALL, seed=0)  # the same tree for all targets, so that one compilation serves them
    only = getattr(random_adapters(spec, lora).layers, target)
    beside = row_logits(params, spec, Adapters(layers=replace(every.layers, **{target: only})), TOKENS)
    merged = row_logits(merge(params, Adapters(layers=LayerAdapters(**{target: only}))), spec, None, TOKENS)
    np.testing.assert_allclose(beside, merged, rtol=0, atol=2e-5)
    assert np.abs(np.asarray(beside) - np.asarray(row_logits(params, spec, None, TOKENS))).max() > 0.1


def test_merging_adds_the_product_to_the_matrix_of_its_layer() -> None:
    spec, params = golden_model("qwen3")
    adapters = random_adapters(spec, ALL)
    before, after = params.layers, merge(params, adapters).layers
    assert isinstance(before, LayerParams)
    assert isinstance(after, LayerParams)
    contractions = {name: "ehr,rd->ehd" if name == "o" else "er,rhk->ehk" if name in "qkv" else "er,rf->ef" for name in TARGETS}
    for name, letters in contractions.items():
        adapter = getattr(adapters.layers, name)
        for layer in range(spec.layers):
            product = np.einsum(letters, np.float64(adapter.down[layer]), np.float64(adapter.up[layer]))
            expected = np.float64(getattr(before, name)[layer]) + 2.0 * product
            np.testing.assert_allclose(getattr(after, name)[layer], expected, rtol=0, atol=1e-6, err_msg=name)
    assert after.attention_norm is before.attention_norm


def test_merging_into_eight_bits_is_refused() -> None:
    spec, params = golden_model(ADAPTED)
    with pytest.raises(ValueError, match="q is quantised"):
        merge(at_precision(params, spec, "int8"), random_adapters(spec, replace(ALL, targets=("q",))))


def test_adapters_work_beside_a_quantised_base() -> None:
    """The adapter's share is added to the eight-bit product, so the difference it makes is that in full precision, nearly."""
    spec, params = golden_model(ADAPTED)
    adapters, eight = random_adapters(spec, ALL), at_precision(params, spec, "int8")
    eight = replace(eight, embed=params.embed)  # activations in float32: what is compared is the weights
    with_adapters, without = row_logits(eight, spec, adapters, TOKENS), row_logits(eight, spec, None, TOKENS)
    full, base = row_logits(params, spec, adapters, TOKENS), row_logits(params, spec, None, TOKENS)
    moved = np.abs(np.asarray(full) - np.asarray(base)).max()
    assert np.abs(np.asarray(with_adapters) - np.asarray(full)).max() < 0.1 * moved
    assert np.abs(np.asarray(with_adapters) - np.asarray(without)).max() > 0.5 * moved


def test_the_gradient_by_adapters_is_the_slope_and_the_base_needs_none() -> None:
    """Fresh adapters: `down` has no slope yet because `up` is zero, `up` has one. Checked by moving each matrix in float32."""
    spec, params = golden_model(ADAPTED)

    def loss(adapters: Adapters, params: Params) -> jax.Array:
        return jnp.sum(jnp.sin(row_logits(jax.lax.stop_gradient(params), spec, adapters, TOKENS)))

    slopes = jax.jit(jax.grad(loss, (0, 1)))
    by_adapters, by_params = slopes(initial_adapters(spec, ALL, seed=0), params)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(by_params))
    for name in TARGETS:
        gradient = getattr(by_adapters.layers, name)
        assert not np.asarray(gradient.down).any(), name
        assert (np.abs(np.asarray(gradient.up)).reshape(spec.layers, -1).max(axis=1) > 0).all(), name
    adapters, rng = random_adapters(spec, ALL), np.random.default_rng(1)
    gradient, _ = slopes(adapters, params)
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) * (leaf.ndim > 1), adapters)
    ends = [float(loss(jax.tree.map(lambda a, d, s=sign: a + s * 1e-3 * d, adapters, direction), params)) for sign in (1, -1)]
    slope = sum(float(jnp.sum(g * d)) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
    assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(slope, rel=0.02, abs=0.5)


def test_targets_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets \['w'\]: must be some of q, k, v, o, gate, up, down"):
        LoraSpec(rank=1, alpha=1.0, targets=("w",))
    with pytest.raises(ValueError, match="rank = 0: must be at least 1"):
        LoraSpec(rank=0, alpha=1.0, targets=("q",))
    spec, _ = golden_model("qwen3_moe")
    with pytest.raises(ValueError, match="targets gate, up: matrices of experts have no adapters; choose q, k, v, o"):
        adapted(spec, LoraSpec(rank=1, alpha=1.0, targets=("q", "gate", "up")))


def test_the_golden_adapter_gives_its_logits() -> None:
    """What peft computes with the adapter that peft wrote, beside the base and merged into it."""
    spec, params = golden_model(ADAPTED)
    lora, adapters = read_adapters(ADAPTER, spec)
    assert lora == LoraSpec(rank=4, alpha=8.0, targets=("q", "v", "o", "gate", "down"))
    with np.load(ADAPTER / "golden.npz") as known:
        np.testing.assert_allclose(row_logits(params, spec, adapters, known["tokens"]), known["logits"], atol=1e-4, rtol=0)
        np.testing.assert_allclose(row_logits(merge(params, adapters), spec, None, known["tokens"]), known["logits"], atol=1e-4, rtol=0)


def test_what_is_written_is_what_was_read(tmp_path: Path) -> None:
    """To the bit: the golden files' own tensors, and random ones of every module through a second reading; and the same bytes twice."""
    spec, _ = golden_model(ADAPTED)
    lora, adapters = read_adapters(ADAPTER, spec)
    write_adapters(tmp_path / "golden", spec, lora, adapters, ADAPTED)
    written, known = (load_file(path / "adapter_model.safetensors") for path in (tmp_path / "golden", ADAPTER))
    assert written.keys() == known.keys()
    for name, tensor in known.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    config, theirs = (json.loads((path / "adapter_config.json").read_text()) for path in (tmp_path / "golden", ADAPTER))
    assert {field: theirs[field] for field in config} == config

    odd = LoraSpec(rank=3, alpha=2.5, targets=TARGETS)
    drawn = random_adapters(spec, odd)
    for name in ("once", "again"):
        write_adapters(tmp_path / name, spec, odd, drawn, "some/model")
    again, read = read_adapters(tmp_path / "once", spec)
    assert again == odd
    jax.tree.map(np.testing.assert_array_equal, read, drawn)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    assert sorted(path.name for path in (tmp_path / "once").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def changed(tmp_path: Path, fields: dict | None = None, tensors: dict | None = None, dropped: tuple[str, ...] = ()) -> Path:
    """The golden adapter with other fields in its configuration, or other tensors in its file."""
    config = json.loads((ADAPTER / "adapter_config.json").read_text()) | (fields or {})
    held = load_file(ADAPTER / "adapter_model.safetensors") | (tensors or {})
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: tensor for name, tensor in held.items() if name not in dropped}, tmp_path / "adapter_model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "modules",
    [
        r"model\.layers\.\d+\.(self_attn\.[qvo]_proj|mlp\.(gate|down)_proj)",
        ["self_attn.q_proj", "v_proj", "o_proj", "mlp.gate_proj", "mlp.down_proj"],
    ],
    ids=["a pattern", "parts of names"],
)
def test_other_ways_to_name_the_same_modules(tmp_path: Path, modules: str | list[str]) -> None:
    spec, _ = golden_model(ADAPTED)
    lora, adapters = read_adapters(changed(tmp_path, {"target_modules": modules}), spec)
    known_lora, known = read_adapters(ADAPTER, spec)
    assert lora == known_lora
    jax.tree.map(np.testing.assert_array_equal, adapters, known)


def test_all_linear_means_all_seven(tmp_path: Path) -> None:
    spec, _ = golden_model(ADAPTED)
    drawn = random_adapters(spec, ALL)
    write_adapters(tmp_path, spec, ALL, drawn, ADAPTED)
    config = json.loads((tmp_path / "adapter_config.json").read_text()) | {"target_modules": "all-linear"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    lora, read = read_adapters(tmp_path, spec)
    assert lora == ALL
    jax.tree.map(np.testing.assert_array_equal, read, drawn)


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank(tmp_path: Path) -> None:
    spec, _ = golden_model(ADAPTED)
    lora, adapters = read_adapters(changed(tmp_path, {"use_rslora": True}), spec)
    assert lora.alpha == 16.0  # 8 / sqrt(4) = 4 = 16 / 4
    assert adapters.layers.q is not None
    np.testing.assert_array_equal(adapters.layers.q.scale, 4.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_are_widened(tmp_path: Path, dtype: str) -> None:
    """The golden tensors are exact in bfloat16, and small enough for float16 to round them little."""
    halves = {
        name: tensor.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
        for name, tensor in load_file(ADAPTER / "adapter_model.safetensors").items()
    }
    spec, _ = golden_model(ADAPTED)
    _, adapters = read_adapters(changed(tmp_path, tensors=halves), spec)
    _, known = read_adapters(ADAPTER, spec)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(adapters))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6), adapters, known)


FIELDS = {
    "peft_type": ("LOHA", "not supported; only LORA is"),
    "use_dora": (True, "only false is"),
    "fan_in_fan_out": (True, "only false is"),
    "lora_bias": (True, "only false is"),
    "bias": ("all", "only none is"),
    "modules_to_save": (["lm_head"], "nothing else is trained"),
    "rank_pattern": ({"q_proj": 8}, "same modules, rank and alpha"),
    "alpha_pattern": ({"q_proj": 8}, "same modules, rank and alpha"),
    "layers_to_transform": ([0], "all layers have adapters"),
    "exclude_modules": (["q_proj"], "all layers have adapters"),
    "init_lora_weights": ("pissa", "belongs to a base changed by it"),
    "r": (0, "must be a whole number above 0"),
    "lora_alpha": ("8", "must be a number above 0"),
    "use_rslora": ("yes", "must be true or false"),
    "target_modules": (["q_proj", "lm_head", "w_pack"], "no adapters for lm_head, w_pack"),
    "trainable_token_indices": ([5], "unknown field that may change the mathematics"),
    "a_field_of_tomorrow": (1, "unknown field that may change the mathematics"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_cannot_be_applied_is_refused_by_name(tmp_path: Path, field: str) -> None:
    value, words = FIELDS[field]
    with pytest.raises(UsageError) as error:
        read_adapters(changed(tmp_path, {field: value}), golden_model(ADAPTED)[0])
    assert "adapter_config.json describes adapters that cannot be applied, 1 problem:\n" in str(error.value)
    assert f"  {field} = {value!r}: " in str(error.value)
    assert words in str(error.value)


def test_all_fields_are_judged_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{len(FIELDS)} problems"):
        read_adapters(changed(tmp_path, {field: value for field, (value, _) in FIELDS.items()}), golden_model(ADAPTED)[0])


@pytest.mark.parametrize("modules", ["", [], None, 7, "(", "model.norm", [3]])
def test_modules_that_name_nothing_are_refused(tmp_path: Path, modules: object) -> None:
    with pytest.raises(UsageError, match="target_modules = "):
        read_adapters(changed(tmp_path, {"target_modules": modules}), golden_model(ADAPTED)[0])


@pytest.mark.parametrize("modules", [["q_proj", "gate_proj"], "all-linear"], ids=str)
def test_adapters_of_experts_are_refused(tmp_path: Path, modules: object) -> None:
    with pytest.raises(UsageError, match="matrices of experts have no adapters; only those of attention have"):
        read_adapters(changed(tmp_path, {"target_modules": modules}), golden_model("qwen3_moe")[0])


def test_every_wrong_tensor_is_listed_at_once(tmp_path: Path) -> None:
    block = "base_model.model.model.layers."
    directory = changed(
        tmp_path,
        tensors={
            f"{block}0.self_attn.q_proj.lora_A.weight": np.zeros((4, 31), np.float32),
            f"{block}0.self_attn.q_proj.lora_B.weight": np.zeros((48, 4), np.int32),
            f"{block}2.self_attn.q_proj.lora_A.weight": np.zeros((4, 32), np.float32),
            "base_model.model.lm_head.weight": np.zeros((2, 2), np.float32),
        },
        dropped=(f"{block}1.mlp.down_proj.lora_B.weight", f"{block}1.self_attn.o_proj.lora_A.weight"),
    )
    with pytest.raises(UsageError) as error:
        read_adapters(directory, golden_model(ADAPTED)[0])
    first, *lines = str(error.value).splitlines()
    assert first.endswith("adapter_model.safetensors does not hold the adapters that its configuration declares, 6 problems:")
    assert lines == [
        f"  {block}0.self_attn.q_proj.lora_A.weight: shape [4, 31]; [4, 48] expected",
        f"  {block}0.self_attn.q_proj.lora_B.weight: type I32; one of F32, F16, BF16, F64 expected",
        f"  {block}1.self_attn.o_proj.lora_A.weight: missing; shape [4, 48] expected",
        f"  {block}1.mlp.down_proj.lora_B.weight: missing; shape [48, 4] expected",
        "  base_model.model.lm_head.weight: extra, shape [2, 2]; no such tensor is expected",
        f"  {block}2.self_attn.q_proj.lora_A.weight: extra, shape [4, 32]; no such tensor is expected",
    ]


def test_files_that_are_not_there_or_not_whole(tmp_path: Path) -> None:
    spec, _ = golden_model(ADAPTED)
    with pytest.raises(UsageError, match=r"has no adapter_config\.json"):
        read_adapters(tmp_path, spec)
    directory = changed(tmp_path)
    whole = (directory / "adapter_model.safetensors").read_bytes()
    (directory / "adapter_model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(UsageError, match="is not a whole safetensors file"):
        read_adapters(directory, spec)
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(UsageError, match=r"has no adapter_model\.safetensors; \*\.bin files are not read"):
        read_adapters(directory, spec)


def test_writing_where_nothing_can_be_written_keeps_its_word(tmp_path: Path) -> None:
    spec, _ = golden_model(ADAPTED)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="the adapters cannot be written to"):
        write_adapters(tmp_path / "file", spec, ALL, random_adapters(spec, ALL), ADAPTED)
    with pytest.raises(ValueError, match=r"not scaled by alpha / rank = 2\.0"):
        write_adapters(tmp_path / "other", spec, ALL, random_adapters(spec, replace(ALL, alpha=5.0)), ADAPTED)
    assert not (tmp_path / "other").exists()
