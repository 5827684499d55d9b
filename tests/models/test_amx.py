"""Products by tiles of bfloat16: against numpy, to the bit, whatever the rows and the type of the weights."""

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
import pytest

from slipstream.models import quant
from slipstream.models.cpu import amx
from slipstream.models.cpu.amx import BLOCK, INPUTS, amx_kernel
from slipstream.models.cpu.compiled import optimised, tiles_here
from slipstream.models.cpu.packed import pack, paired, product
from slipstream.models.cpu.product import PANEL, ROW_CHUNK, Form
from slipstream.models.cpu.tile import registers_of
from slipstream.models.numerics import EXACT, FAST
from slipstream.models.quant import arithmetic

has_tiles = pytest.mark.skipif(not tiles_here(), reason="this processor multiplies no tiles (AMX)")
WIDTHS = (INPUTS, 5 * INPUTS, BLOCK, 2 * BLOCK + INPUTS)  # inputs: one instruction, several, one block, three
ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49)


def drawn(rows: int, width: int, columns: int, stored: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(rows * 1_000 + width)
    x = rng.normal(size=(rows, width)) * 2.0 ** rng.integers(-6, 7, width)
    matrix = rng.normal(size=(width, columns)) * (30 if stored == "int8" else 1)
    return jnp.asarray(x, jnp.bfloat16), jnp.clip(jnp.asarray(matrix), -127, 127).astype(stored)


def by_instructions(x: jax.Array, matrix: jax.Array) -> np.ndarray:
    """Even and odd inputs of an instruction apart, each product added in one rounding; long doubles round hardly ever twice."""
    wide, weights = np.asarray(x, np.longdouble), np.asarray(matrix.astype(jnp.float32), np.longdouble)
    total = np.zeros((wide.shape[0], weights.shape[1]), np.float32)
    for first in range(0, wide.shape[1], INPUTS):
        halves = [np.zeros_like(total), np.zeros_like(total)]
        for index in range(first, first + INPUTS):
            halves[index % 2] = (halves[index % 2] + wide[:, index, None] * weights[index]).astype(np.float32)
        total += halves[0] + halves[1]
    return total


def same_bits(one: jax.Array | np.ndarray, other: jax.Array | np.ndarray) -> bool:
    return np.array_equal(np.asarray(one).view(np.int32), np.asarray(other).view(np.int32))


@has_tiles
@pytest.mark.parametrize("stored", amx.STORED)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_bit_is_numpys(stored: str, width: int) -> None:
    for rows in (1, 19, 33):
        x, matrix = drawn(rows, width, PANEL + 3, stored)
        assert same_bits(product(x, pack(matrix, in_pairs=True)), by_instructions(x, matrix)), rows


@has_tiles
@pytest.mark.parametrize("stored", amx.STORED)
def test_a_row_knows_nothing_of_the_others(stored: str) -> None:
    """Every number of rows in a tile and in two, and so many units that threads share them."""
    x, matrix = drawn(2 * ROW_CHUNK + 7, 2 * INPUTS, 5 * PANEL, stored)
    laid = pack(matrix, in_pairs=True)
    whole = product(x, laid)
    for rows in (*ROWS, ROW_CHUNK, ROW_CHUNK + 1):
        for first in (0, 3):
            assert same_bits(product(x[first : first + rows], laid), whole[first : first + rows]), (first, rows)


@has_tiles
@pytest.mark.parametrize("stored", ["int8", "float8_e4m3fn"])
def test_all_numbers_of_eight_bits_are_widened_as_they_are(stored: str) -> None:
    """One input of 1 and the others of 0 bring out one row of the matrix."""
    numbers = np.arange(256, dtype=np.uint8).view(stored)
    if stored == "int8":
        numbers = np.where(numbers == -128, np.int8(1), numbers)  # which `quantise` never gives
    matrix = jnp.asarray(np.tile(numbers, (INPUTS, 1)))
    found = product(jnp.zeros((1, INPUTS), jnp.bfloat16).at[0, 5].set(1), pack(matrix, in_pairs=True))
    expected = numbers.astype(np.float32)
    assert np.array_equal(np.asarray(found)[0][np.isfinite(expected)], expected[np.isfinite(expected)])


@has_tiles
def test_what_is_no_number_stays_in_its_row_and_column() -> None:
    x, matrix = drawn(40, 64, PANEL, "bfloat16")
    lost = ~np.isfinite(np.asarray(product(x.at[33, 5].set(jnp.nan), pack(matrix.at[7, 9].set(jnp.inf), in_pairs=True))))
    assert lost[33].all()
    assert lost[:, 9].all()
    assert lost.sum() == PANEL + 39


@has_tiles
def test_a_matrix_that_lies_turned_or_has_several_axes_is_packed_alike() -> None:
    x, matrix = drawn(9, 96, 41, "bfloat16")
    expected = product(x, pack(matrix, in_pairs=True))
    assert same_bits(product(x, pack(matrix.T, turned=True, in_pairs=True)), expected)
    assert same_bits(product(x, pack(matrix.reshape(3, 32, 41), inputs=2, in_pairs=True)), expected)
    assert product(x[:0], pack(matrix, in_pairs=True)).shape == (0, 41)


@has_tiles
@pytest.mark.parametrize("turned", [False, True])
def test_exact_products_of_bfloat16_are_rounded_once(turned: bool) -> None:
    """In the learner, which packs a matrix as it goes, and in the engine. The gradient is that of a plain product."""
    x, matrix = drawn(21, 3 * INPUTS, 40, "bfloat16")
    lying = matrix.T if turned else matrix
    expected = np.asarray(jnp.asarray(by_instructions(x, matrix)).astype(jnp.bfloat16))
    assert np.array_equal(np.asarray(EXACT.product(x, lying, turned)), expected)
    assert np.array_equal(np.asarray(EXACT.product(x, pack(matrix))), expected)

    def loss(numerics, x, matrix):
        return jnp.sin(numerics.product(x, matrix, turned).astype(jnp.float32)).sum()

    for found, plain in zip(*(jax.grad(loss, (1, 2))(numerics, x / 64, lying / 8) for numerics in (EXACT, FAST)), strict=True):
        np.testing.assert_allclose(found.astype(jnp.float32), plain.astype(jnp.float32), atol=0.02)


@has_tiles
def test_exact_arithmetic_with_tiles_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a sampler without them counts as another kind of device, not as one whose bits are wrong."""
    assert arithmetic("bf16", exact=True) == "cpu-amx/bf16/exact"
    assert arithmetic("f32", exact=True) == "cpu/f32/exact"
    assert arithmetic("int8", exact=False) == "cpu/int8"
    monkeypatch.setattr(quant, "tiles_here", lambda: False)
    assert arithmetic("bf16", exact=True) == "cpu/bf16/exact"


@has_tiles
def test_which_matrices_are_paired() -> None:
    assert paired(jnp.dtype("bfloat16"), INPUTS)
    assert paired(jnp.dtype("float8_e4m3fn"), 3 * INPUTS)
    assert not paired(jnp.dtype("float32"), INPUTS)
    assert not paired(jnp.dtype("bfloat16"), INPUTS + 2)


@pytest.mark.parametrize("stored", amx.STORED)
def test_there_is_code_for_processors_with_tiles(stored: str) -> None:
    """Compiled on any machine, not run."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu="sapphirerapids", opt=3)
    held = registers_of({"avx512f": True}, "x86_64")
    assert held
    text = machine.emit_assembly(optimised(amx_kernel(Form(stored=stored), held), machine))
    assert text.count("tdpbf16ps") >= 6  # two for the rows of one tile, four for those of two
    assert ("vperm" in text) == (stored != "bfloat16")
