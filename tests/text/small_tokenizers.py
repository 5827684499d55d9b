"""Tokenizers of each kind that the supported families use, trained on a few words or built from an alphabet."""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from slipstream.text.tokenizer import Tokenizer

WORDS = "the cat sat on the mat, naïve café — 東京 is far; 😀😀 \n\n hello there hello  world 1234 don't stop." * 3


def byte_level(
    special: Sequence[str] = ("<|end|>",), *, stop: str | None = None, plain: Sequence[str] = (), newlines_whole: bool = False
) -> Tokenizer:
    """Byte-level BPE: SmolLM2; Llama 3 and Qwen (`newlines_whole`: a run of newlines is one word, whatever follows it).

    `special` tokens make no text, `plain` added ones do.
    """
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if newlines_whole:
        words = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator([WORDS], trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False))
    return _finished(backend, special, stop, plain)


def metaspace(
    special: Sequence[str] = ("<s>", "</s>"), *, stop: str | None = None, strip: bool = True, plain: Sequence[str] = ()
) -> Tokenizer:
    """SentencePiece BPE with byte fallback: Mistral (`strip`: the first word's space is not decoded) and Gemma (it is)."""
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    words = "the cat sat on the mat hello there hello world " * 3
    trained.train_from_iterator([words], trainers.BpeTrainer(vocab_size=60, initial_alphabet=["▁", "\n"], show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Backend(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence(([normalizers.Prepend("▁")] if strip else []) + [normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return _finished(backend, special, stop, plain)


def with_decoder(tokenizer: Tokenizer, decoder: object) -> Tokenizer:
    """The same vocabulary under another decoder."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.decoder = decoder
    return Tokenizer(backend=backend, stop_ids=tokenizer.stop_ids)


def _finished(backend: Backend, special: Sequence[str], stop: str | None, plain: Sequence[str]) -> Tokenizer:
    backend.add_special_tokens(list(special))
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain])
    stop_id = backend.token_to_id(stop or special[-1])
    assert stop_id is not None
    return Tokenizer(backend=backend, stop_ids=(stop_id,))
