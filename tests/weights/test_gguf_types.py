"""Every supported block type is read as its format defines it, against a dequantiser written here from the definitions, number by number.

The layouts are those of ggml's `ggml-common.h`. Values are in float64 until the end, so agreement is to float32 rounding.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from safetensors.numpy import load_file

from slipstream.core.errors import UsageError
from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.weights.gguf import import_gguf
from tests.weights.tiny_gguf import TOKENS, gguf_name, random_tensors, write_gguf

WIDE = ModelSpec(
    vocab=len(TOKENS),
    d_model=256,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=128,
    d_ff=512,
    rope=RopeSpec(theta=1e4),
    norm_eps=1e-5,
    tied=True,
    context=64,
)
NAME = "model.layers.0.mlp.down_proj.weight"  # [256, 512]: two blocks of 256 a row


def half(data: bytes) -> float:
    return struct.unpack("<e", data)[0]


def q4_0(block: bytes) -> list[float]:
    d, quants = half(block[:2]), block[2:]
    return [d * ((byte & 15) - 8) for byte in quants] + [d * ((byte >> 4) - 8) for byte in quants]


def q4_1(block: bytes) -> list[float]:
    d, m, quants = half(block[:2]), half(block[2:4]), block[4:]
    return [d * (byte & 15) + m for byte in quants] + [d * (byte >> 4) + m for byte in quants]


def fifth_bits(block: bytes) -> list[int]:
    return [int.from_bytes(block, "little") >> place & 1 for place in range(32)]


def q5_0(block: bytes) -> list[float]:
    d, high, quants = half(block[:2]), fifth_bits(block[2:6]), block[6:]
    low = [byte & 15 for byte in quants] + [byte >> 4 for byte in quants]
    return [d * (value + 16 * bit - 16) for value, bit in zip(low, high, strict=True)]


def q5_1(block: bytes) -> list[float]:
    d, m, high, quants = half(block[:2]), half(block[2:4]), fifth_bits(block[4:8]), block[8:]
    low = [byte & 15 for byte in quants] + [byte >> 4 for byte in quants]
    return [d * (value + 16 * bit) + m for value, bit in zip(low, high, strict=True)]


def q8_0(block: bytes) -> list[float]:
    return [half(block[:2]) * value for value in struct.unpack("<32b", block[2:])]


def six_bit_pair(packed: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of one of eight groups of 32, out of twelve bytes."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    last = packed[group + 4]
    return last & 15 | packed[group - 4] >> 6 << 4, last >> 4 | packed[group] >> 6 << 4


def q4_k(block: bytes) -> list[float]:
    d, dmin, packed, quants = half(block[:2]), half(block[2:4]), block[4:16], block[16:]
    values = []
    for group in range(8):
        scale, minimum = six_bit_pair(packed, group)
        part = quants[group // 2 * 32 : group // 2 * 32 + 32]
        values += [d * scale * (byte >> 4 if group % 2 else byte & 15) - dmin * minimum for byte in part]
    return values


def q5_k(block: bytes) -> list[float]:
    d, dmin, packed, high, quants = half(block[:2]), half(block[2:4]), block[4:16], block[16:48], block[48:]
    values = []
    for group in range(8):
        scale, minimum = six_bit_pair(packed, group)
        part = quants[group // 2 * 32 : group // 2 * 32 + 32]
        for place, byte in enumerate(part):
            low = byte >> 4 if group % 2 else byte & 15
            values.append(d * scale * (low + 16 * (high[place] >> group & 1)) - dmin * minimum)
    return values


def q6_k(block: bytes) -> list[float]:
    low, high, scales, d = block[:128], block[128:192], struct.unpack("<16b", block[192:208]), half(block[208:])
    values = []
    for index in range(256):
        side, place = divmod(index, 128)  # two halves, each of four quarters of 32
        quarter, lane = divmod(place, 32)
        byte = low[64 * side + 32 * (quarter % 2) + lane]
        four = byte >> 4 if quarter >= 2 else byte & 15
        two = high[32 * side + lane] >> 2 * quarter & 3
        values.append(d * scales[index // 16] * ((two << 4 | four) - 32))
    return values


DEQUANTISERS: dict[str, Callable[[bytes], list[float]]] = {
    "F32": lambda block: list(struct.unpack("<f", block)),
    "F16": lambda block: [half(block)],
    "BF16": lambda block: list(struct.unpack("<f", b"\0\0" + block)),
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where a block has its float16 scales; all its other bytes may be anything."""


def random_blocks(kind: str) -> np.ndarray:
    """Raw bytes of the tensor [rows, bytes a row] with scales of usual size; every bit pattern of the rest."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rng = np.random.default_rng(len(kind) + elements)
    if kind in ("F32", "F16", "BF16"):
        values = rng.normal(size=(256, 512)).astype(np.float32)
        if kind == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype({"F32": np.float32, "F16": np.float16}[kind]).view(np.uint8)
    blocks = rng.integers(0, 256, (256 * 512 // elements, size), np.uint8)
    for place in HALVES[kind]:
        blocks[:, place : place + 2] = rng.normal(scale=0.02, size=len(blocks)).astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(256, -1)


def with_blocks(path: Path, kind: str, raw: np.ndarray) -> Path:
    """The tiny model with the raw tensor in place of one."""
    rest = {name: tensor for name, tensor in random_tensors(WIDE).items() if name != NAME}

    def add(writer: GGUFWriter) -> None:
        if kind in ("F32", "F16"):
            writer.add_tensor(gguf_name(NAME), raw.view(np.float32 if kind == "F32" else np.float16))
        else:
            writer.add_tensor(gguf_name(NAME), raw, raw_dtype=GGMLQuantizationType[kind])

    return write_gguf(path, rest, spec=WIDE, more=add)


@pytest.mark.parametrize("kind", DEQUANTISERS)
def test_blocks_are_read_as_their_format_says(tmp_path: Path, kind: str) -> None:
    raw = random_blocks(kind)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    blocks = raw.tobytes()
    expected = [value for place in range(0, len(blocks), size) for value in DEQUANTISERS[kind](blocks[place : place + size])]
    made = import_gguf(with_blocks(tmp_path / "a.gguf", kind, raw), tmp_path / "out", dtype="float32")
    assert kind in made.tensor_types
    found = load_file(tmp_path / "out" / "model.safetensors")[NAME]
    np.testing.assert_allclose(found, np.array(expected).reshape(256, 512), rtol=1e-6, atol=1e-6)
    assert np.std(found) > 0.01


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_XS", "IQ2_S", "TQ1_0", "F64"])
def test_other_types_are_refused_by_name_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = np.zeros((256, 512 // elements * size), np.uint8)
    with pytest.raises(UsageError, match=rf"has tensors of type {kind} \(tensor blk\.0\.ffn_down\.weight\); only F32, F16, BF16, Q4_0"):
        import_gguf(with_blocks(tmp_path / "a.gguf", kind, raw), tmp_path / "out")
    assert not (tmp_path / "out").exists()
