"""GGUF files of Qwen and Llama 3: rows stay where they are, biases and head norms arrive, rotary factors and tokenizers are rebuilt."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from slipstream.core.errors import UsageError
from slipstream.models.spec import RopeSpec
from slipstream.weights.gguf import import_gguf
from slipstream.weights.hf_config import read_spec
from tests.weights.tiny_gguf import SPEC, TOKENS, random_tensors, write_gguf

ROWS = {"q_proj": 2e-3, "up_proj": 0.02, "down_proj": 0.25}  # of F16, Q8_0 and Q4_1 at values around 1


@pytest.mark.parametrize(("family", "own"), [("qwen2", {"qkv_bias": True}), ("qwen3", {"qk_norm": True})])
def test_files_of_qwen_are_read_without_turning_rows(tmp_path: Path, family: str, own: dict[str, bool]) -> None:
    spec = replace(SPEC, family=family, **own)
    wanted = random_tensors(spec)
    made = import_gguf(
        write_gguf(tmp_path / "a.gguf", wanted, spec=spec, architecture=family, pre="qwen2"), tmp_path / "out", dtype="float32"
    )
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert made.spec == read_spec(tmp_path / "out") == spec
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        tolerance = next((value for part, value in ROWS.items() if part in name and "weight" in name), 0.0)
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=tolerance, err_msg=name)


def pieces(tmp_path: Path, pre: str, text: str) -> list[str]:
    """How the rebuilt tokenizer cuts a text into words, with spaces shown as they are."""
    out = tmp_path / pre
    import_gguf(write_gguf(tmp_path / f"{pre}.gguf", random_tensors(), pre=pre), out)
    backend = Tokenizer.from_file(str(out / "tokenizer.json"))
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [text[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(text)]


def test_words_are_those_of_each_tokenizer(tmp_path: Path) -> None:
    text = "Don't PAY  12345€\n\n x=y!\r\n"
    assert pieces(tmp_path, "qwen2", text) == ["Don", "'t", " PAY", " ", " ", *"12345", "€\n\n", " x", "=y", "!\r\n"]
    assert pieces(tmp_path, "llama-bpe", text) == ["Don", "'t", " PAY", " ", " ", "123", "45", "€\n\n", " x", "=y", "!\r\n"]
    assert pieces(tmp_path, "smollm", "a 12'll") == ["a", " ", "1", "2", "'ll"]


def test_only_qwen_composes_characters(tmp_path: Path) -> None:
    assert pieces(tmp_path, "qwen2", "e\u0301") == ["\u00e9"]
    assert pieces(tmp_path, "llama-bpe", "e\u0301") != ["\u00e9"]


def test_a_begin_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", random_tensors(), pre="llama-bpe", more=lambda writer: writer.add_add_bos_token(True))
    import_gguf(path, tmp_path / "out")
    backend = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert backend.encode("he").tokens == ["<|im_start|>", "he"]
    assert backend.encode("he", add_special_tokens=False).tokens == ["he"]


def test_unused_tokens_at_the_end_are_rows_without_a_token(tmp_path: Path) -> None:
    spec = replace(SPEC, vocab=SPEC.vocab + 3)

    def padded(writer: GGUFWriter) -> None:
        for name, values in (("tokens", [*TOKENS, "[PAD1]", "[PAD2]"]), ("token_type", [3] * 3 + [1] * (len(TOKENS) - 3) + [5] * 2)):
            writer.kv_data[0].pop(f"tokenizer.ggml.{name}")
            writer.add_array(f"tokenizer.ggml.{name}", values)

    import_gguf(write_gguf(tmp_path / "a.gguf", random_tensors(spec), spec=spec, more=padded), tmp_path / "out")
    assert Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).get_vocab_size() == len(TOKENS)


def llama3_factors(theta: float, width: int, factor: float) -> np.ndarray:
    """What llama.cpp's converter writes, frequency by frequency (context 8192, low 1, high 4)."""
    found = []
    for pair in range(width // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / width)
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192:
            found.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


WIDE_HEADS = replace(SPEC, head_dim=64, rope=RopeSpec(theta=5e5))


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_factors_of_llama3_become_its_scaling(tmp_path: Path, factor: float) -> None:
    factors = llama3_factors(5e5, 64, factor)
    assert 1 < np.median(np.unique(factors)) < factor  # some are in between
    path = write_gguf(
        tmp_path / "a.gguf",
        random_tensors(WIDE_HEADS),
        spec=WIDE_HEADS,
        more=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    made = import_gguf(path, tmp_path / "out")
    wanted = RopeSpec(theta=5e5, scaling="llama3", factor=factor, low_factor=1.0, high_factor=4.0, original_context=8192)
    assert made.spec.rope == read_spec(tmp_path / "out").rope == wanted


@pytest.mark.parametrize(
    "factors",
    [np.linspace(1, 8, 32), np.ones(32), np.full(32, np.nan), llama3_factors(1e4, 64, 8.0), llama3_factors(5e5, 32, 8.0)],
    ids=["longrope", "ones", "nan", "other base", "other width"],
)
def test_other_factors_are_refused(tmp_path: Path, factors: np.ndarray) -> None:
    path = write_gguf(
        tmp_path / "a.gguf",
        random_tensors(WIDE_HEADS),
        spec=WIDE_HEADS,
        more=lambda writer: writer.add_tensor("rope_freqs.weight", factors.astype(np.float32)),
    )
    with pytest.raises(UsageError, match=r"rope_freqs\.weight holds other factors than those of Llama 3"):
        import_gguf(path, tmp_path / "out")
