"""Products of packed matrices by our own code: against numpy, to the bit, whatever the rows, the threads and the processor."""

import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
import pytest

from slipstream.core.errors import UsageError
from slipstream.models.cpu import handler, packed
from slipstream.models.cpu.attention import attention_kernel
from slipstream.models.cpu.compiled import optimised, register, tiles_here
from slipstream.models.cpu.packed import Packed, product
from slipstream.models.cpu.product import BLOCK, PANEL, ROW_CHUNK, Form, product_kernel
from slipstream.models.cpu.tile import STORED, Registers, registers_of
from slipstream.models.numerics import EXACT, FAST
from slipstream.models.panels import laid_out
from slipstream.models.quant import at_precision
from slipstream.models.weight import Quantised
from tests.models.families import golden_model

pytestmark = pytest.mark.skipif(not packed.available(), reason="no products of ours on this processor")

pack = partial(packed.pack, in_pairs=False)  # `test_amx.py` has the others
WIDTHS = (1, 17, BLOCK + BLOCK // 2 - 1, BLOCK + BLOCK // 2, 3 * BLOCK + 5)  # inputs: about one block, then two and three


def drawn(rows: int, width: int, columns: int, stored: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(rows * 1_000 + width)
    x = rng.normal(size=(rows, width)) * 2.0 ** rng.integers(-6, 7, width)
    matrix = rng.normal(size=(width, columns)) * (30 if stored == "int8" else 1)
    return jnp.asarray(x, jnp.float32), jnp.asarray(matrix).astype(stored)


def chained(x: jax.Array, matrix: jax.Array) -> np.ndarray:
    """Each product added in one rounding, input after input, blocks added in order; long doubles round hardly ever twice."""
    wide, weights = np.asarray(x, np.longdouble), np.asarray(matrix.astype(jnp.float32), np.longdouble)
    width = wide.shape[1]
    blocks = max(1, (width + BLOCK // 2) // BLOCK)
    total = np.zeros((wide.shape[0], weights.shape[1]), np.float32)
    for block in range(blocks):
        own = np.zeros_like(total)
        for index in range(block * width // blocks, (block + 1) * width // blocks):
            own = (own + wide[:, index, None] * weights[index]).astype(np.float32)
        total += own
    return total


def same_bits(one: jax.Array | np.ndarray, other: jax.Array | np.ndarray) -> bool:
    return np.array_equal(np.asarray(one).view(np.int32), np.asarray(other).view(np.int32))


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_bit_is_numpys(stored: str, width: int) -> None:
    for rows in (1, 2, 7, 12, 25):
        x, matrix = drawn(rows, width, PANEL + 3, stored)
        assert same_bits(product(x, pack(matrix)), chained(x, matrix)), rows


@pytest.mark.parametrize("stored", STORED)
def test_a_row_knows_nothing_of_the_others(stored: str) -> None:
    """Up to several chunks of rows, and so many units that threads share them."""
    x, matrix = drawn(3 * ROW_CHUNK + 7, 200, 5 * PANEL, stored)
    whole, laid = product(x, pack(matrix)), pack(matrix)
    for first, end in ((0, 1), (5, 18), (190, 194), (ROW_CHUNK - 1, 2 * ROW_CHUNK + 1), (len(x) - 31, len(x))):
        assert same_bits(product(x[first:end], laid), whole[first:end]), (first, end)


IN_PAIRS = [False, pytest.param(True, marks=pytest.mark.skipif(not tiles_here(), reason="this processor multiplies no tiles (AMX)"))]


@pytest.mark.parametrize("in_pairs", IN_PAIRS)
@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_several_matrices_in_one_call_give_the_bits_of_each_alone(stored: str, in_pairs: bool) -> None:
    """Columns that fill panels, that end within one, and fewer than a vector; results rounded once, scaled before it."""
    count = ROW_CHUNK + 5
    matrices = [drawn(count, 96, columns, stored) for columns in (2 * PANEL, PANEL + 20, 3)]
    x = matrices[0][0].astype(jnp.bfloat16)
    laid = [packed.pack(matrix, in_pairs=in_pairs) for _, matrix in matrices]
    scales = [jnp.linspace(0.1, 2.0, matrix.shape[1], dtype=jnp.float32) for _, matrix in matrices]
    sums = [product(x, one) for one in laid]
    for dtype in (jnp.float32, jnp.bfloat16):
        for found, one in zip(packed.products(x, laid, dtype), sums, strict=True):
            assert np.array_equal(found, one.astype(dtype))
        for found, one, scale in zip(packed.products(x, laid, dtype, scales), sums, scales, strict=True):
            assert np.array_equal(found, (one * scale).astype(dtype))


def test_rounding_is_to_the_nearest_even_and_keeps_what_is_no_number() -> None:
    numbers = np.float32([1.00390625, 1.01171875, -1.00390625, 3.4e38, np.inf, -np.inf, 1e-30, 0.0])  # halfway twice, to even
    odd = np.uint32([0x7F800001, 0xFFFFFFFF, 0x7FC00000]).view(np.float32)
    given = jnp.asarray(np.concatenate([numbers, odd]))
    identity = pack(jnp.ones((1, 1), jnp.float32))
    found = np.asarray(packed.product(given[:, None], identity, jnp.bfloat16))[:, 0]
    assert np.array_equal(found[: len(numbers)], np.asarray(given.astype(jnp.bfloat16))[: len(numbers)])
    assert np.isnan(found[len(numbers) :].astype(np.float32)).all()


def test_no_rows_and_several_axes() -> None:
    x, matrix = drawn(6, 12, 5, "float32")
    assert product(x[:0], pack(matrix)).shape == (0, 5)
    assert same_bits(product(x.reshape(2, 3, 12), pack(matrix)), product(x, pack(matrix)).reshape(2, 3, 5))
    several = pack(matrix.reshape(3, 4, 5, 1), inputs=2)
    assert several.outputs == (5, 1)
    assert same_bits(product(x, several), product(x, pack(matrix)))


def test_a_matrix_that_lies_turned_gives_the_same_bits() -> None:
    x, matrix = drawn(9, 70, 41, "float32")
    assert same_bits(product(x, pack(matrix.T, turned=True)), product(x, pack(matrix)))
    assert same_bits(EXACT.product(x, matrix.T, turned=True), EXACT.product(x, matrix))


def test_what_is_no_number_stays_in_its_row_and_column() -> None:
    x, matrix = drawn(8, 40, PANEL, "float32")
    found = np.asarray(product(x.at[3, 5].set(jnp.nan), pack(matrix.at[7, 9].set(jnp.inf))))
    lost = ~np.isfinite(found)
    assert lost[3].all()
    assert lost[:, 9].all()
    assert lost.sum() == PANEL + 7


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_are_those_of_a_plain_product(turned: bool) -> None:
    x, matrix = drawn(20, 70, 33, "float32")
    lying = matrix.T if turned else matrix

    def loss(numerics, x, matrix):
        return jnp.sin(numerics.product(x, matrix, turned)).sum()

    for found, expected in zip(*(jax.grad(loss, (1, 2))(numerics, x / 64, lying / 8) for numerics in (EXACT, FAST)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_exact_products_of_bfloat16_are_rounded_once() -> None:
    x, matrix = drawn(5, 300, 40, "bfloat16")
    found = EXACT.product(x.astype(jnp.bfloat16), matrix)
    assert found.dtype == jnp.bfloat16
    assert np.array_equal(
        np.asarray(found), np.asarray(jnp.asarray(chained(x.astype(jnp.bfloat16).astype(jnp.float32), matrix)).astype(jnp.bfloat16))
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for other processors of this architecture")
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("held", [Registers(lanes=8, vectors=2, rows=6), Registers(lanes=4, vectors=4, rows=6)], ids=["avx2", "four lanes"])
def test_other_processors_give_the_same_bits(held: Registers, stored: str) -> None:
    name = f"test_product_{held.lanes}_{stored}"
    register(name, product_kernel(Form(stored=stored), held), "haswell")
    x, matrix = drawn(29, 700, 3 * PANEL, stored)
    shape = jax.ShapeDtypeStruct((len(x), 3 * PANEL), jnp.float32)
    assert same_bits(jax.ffi.ffi_call(name, shape)(x, pack(matrix).panels), product(x, pack(matrix)))


@pytest.mark.parametrize(
    "make",
    [partial(product_kernel, Form(stored="bfloat16")), partial(attention_kernel, "bfloat16", "bfloat16")],
    ids=["products", "attention"],
)
def test_there_is_code_for_arm(make) -> None:
    """Compiled, not run: vectors are multiplied and added in one instruction."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(cpu="neoverse-n1", opt=3)
    held = registers_of({}, "aarch64")
    assert held
    text = machine.emit_assembly(optimised(make(held), machine))
    assert text.count("fmla") > 60
    assert "fmaf" not in text


def test_which_processors_have_code() -> None:
    assert registers_of({"avx512f": True, "avx2": True, "fma": True}, "x86_64") == Registers(lanes=16, vectors=2, rows=12)
    assert registers_of({"avx512f": False, "avx2": True, "fma": True}, "x86_64") == Registers(lanes=8, vectors=2, rows=6)
    assert registers_of({"avx2": True, "fma": False}, "x86_64") is None
    assert registers_of({"sse2": True}, "x86_64") is None
    assert registers_of({"neon": True}, "arm64") == registers_of({}, "aarch64") == Registers(lanes=4, vectors=4, rows=6)


def test_many_callers_at_once_get_their_own_results() -> None:
    """More calls than threads, so that helpers come late, or find nothing left to do."""
    x, matrix = drawn(64, 256, 40 * PANEL, "float32")
    laid, call = pack(matrix), jax.jit(product)
    expected = [np.asarray(call(x + index, laid)) for index in range(8)]
    with ThreadPoolExecutor(8) as callers:
        for _ in range(20):
            found = list(callers.map(lambda index: np.asarray(call(x + index, laid)), range(8)))
            assert all(map(same_bits, found, expected))


def test_the_interface_of_xla_is_as_written_here() -> None:
    """The fields of C structures, in the header that comes with jaxlib."""
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    functions = re.findall(r"^  _XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\);", header, re.MULTILINE)
    names = list(handler.API.fields)
    assert functions.index("ThreadPool_Schedule") == names.index("schedule") - len(handler.BEFORE_FUNCTIONS)
    assert functions.index("ThreadPool_NumThreads") == names.index("count_threads") - len(handler.BEFORE_FUNCTIONS)
    assert "XLA_FFI_API_MAJOR 0\n" in header
    assert _fields(header, "CallFrame") == ["api", "ctx", "stage", "args", "rets", "attrs", "future"]
    assert _fields(header, "Buffer") == ["dtype", "data", "rank", "dims"]
    assert _fields(header, "ThreadPool_Schedule_Args") == ["ctx", "task", "data"]
    assert _fields(header, "ThreadPool_NumThreads_Args") == ["ctx", "num_threads"]


def _fields(header: str, name: str) -> list[str]:
    found = re.search(rf"struct XLA_FFI_{name} {{(.*?)\n}};", header, re.DOTALL)
    assert found, name
    names = re.findall(r"^  [^/\n]*?(\w+);", found.group(1), re.MULTILINE)
    assert names[:2] == ["struct_size", "extension_start"]
    return names[2:]


def test_an_interface_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a later XLA with other structures ends in an error, not in wrong numbers."""
    monkeypatch.setattr(handler, "API_VERSION", (7, 0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="version"):
        register("test_version", product_kernel(Form(stored="float32"), Registers(lanes=4, vectors=2, rows=2)))


@pytest.mark.parametrize(("family", "precision"), [("llama_tied", "f32"), ("qwen3", "bf16"), ("qwen2", "int8"), ("qwen3_moe", "int8")])
def test_what_of_a_model_is_packed(family: str, precision: str) -> None:
    spec, params = golden_model(family)
    found = laid_out(at_precision(params, spec, precision), spec)  # pyright: ignore[reportArgumentType]
    assert isinstance(found.layers, tuple)
    assert len(found.layers) == spec.layers
    layer = found.layers[0]
    stored = {"f32": "float32", "bf16": "bfloat16", "int8": "int8"}[precision]
    for name in ("q", "k", "v", "o", "gate", "up", "down"):
        weight = getattr(layer, name)
        inner = weight.stored if isinstance(weight, Quantised) else weight
        assert isinstance(weight, Quantised) == (precision == "int8")
        expert = spec.experts is not None and name in ("gate", "up", "down")
        assert isinstance(inner, jax.Array) if expert else isinstance(inner, Packed) and inner.panels.dtype.name == stored
    assert isinstance(found.embed, jax.Array)
    head = found.head.stored if isinstance(found.head, Quantised) else found.head
    assert isinstance(head, Packed)
    assert head.outputs == (spec.vocab,)


@pytest.mark.parametrize("tiles", [False, True])
def test_eight_bit_floats_are_packed_for_tiles_alone(tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "tiles_here", lambda: tiles)
    jax.clear_caches()
    spec, params = golden_model("llama")
    found = laid_out(at_precision(params, spec, "fp8"), spec)
    jax.clear_caches()
    assert isinstance(found.layers, tuple)
    assert isinstance(found.layers[0].q, Quantised)
    assert isinstance(found.layers[0].q.stored, Packed if tiles else jax.Array)


def test_only_two_words_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_PRODUCTS", "mine")
    packed.available.cache_clear()
    with pytest.raises(UsageError, match="must be own or xla"):
        packed.available()
    monkeypatch.setenv("SLIPSTREAM_PRODUCTS", "xla")
    assert not packed.available()
    assert packed.kind() == "XLA's"
    packed.available.cache_clear()
    monkeypatch.delenv("SLIPSTREAM_PRODUCTS")
    assert packed.kind().startswith("own, ")


def test_exact_mode_with_xlas_products_is_exact_too() -> None:
    """What devices without code of ours do, in a process of its own."""
    program = """
from tests.engine.exact_matrix import CELLS
from slipstream.models.cpu import packed
assert not packed.available()
for name in ("sampler: other company", "learner: packed, scan"):
    count = CELLS[name]("gemma2", "f32")
    assert count.exact, (name, count)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"SLIPSTREAM_PRODUCTS": "xla"})
