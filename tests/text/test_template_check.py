"""Templates that break the prefix property are told, with the place; templates that keep it are not."""

from typing import Any

import pytest

from slipstream.text.chat import compile_template
from slipstream.text.template_check import FaultKind, TemplateFault, check_template
from slipstream.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace
from tests.text.templates import CHATML, GEMMA, LLAMA3, MISTRAL, QWEN3, QWEN25, TOOLS
from tests.text.test_conversation import LLAMA_SPECIAL, QWEN_SPECIAL

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
CHAT = byte_level(QWEN_SPECIAL, newlines_whole=True)


def faults(source: str, tokenizer: Tokenizer = CHAT, **options: Any) -> dict[FaultKind, TemplateFault]:
    template = compile_template(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return {fault.kind: fault for fault in check_template(template, tokenizer, **options)}


@pytest.mark.parametrize(
    ("source", "tokenizer", "options", "kinds"),
    [
        (PLAIN, CHAT, {}, set()),
        (CHATML, CHAT, {}, set()),
        (QWEN25, CHAT, {"tools": TOOLS}, set()),
        (QWEN25, CHAT, {"tools": TOOLS, "role": "tool"}, set()),
        (QWEN3, CHAT, {}, {FaultKind.THINKING}),
        (QWEN3, CHAT, {"enable_thinking": False}, {FaultKind.THINKING, FaultKind.TRIMMED}),
        (LLAMA3, byte_level(LLAMA_SPECIAL, newlines_whole=True), {}, {FaultKind.TRIMMED, FaultKind.DATE}),
        (GEMMA, metaspace(("<s>", "<start_of_turn>", "<end_of_turn>"), strip=False), {}, {FaultKind.TRIMMED}),
        (MISTRAL, metaspace(("<s>", "[INST]", "[/INST]", "</s>")), {}, {FaultKind.TURN}),
        (MISTRAL, metaspace(("<s>", "[INST]", "[/INST]", "</s>")), {"tools": TOOLS}, {FaultKind.TURN, FaultKind.HISTORY}),
    ],
)
def test_the_families(source: str, tokenizer: Tokenizer, options: dict[str, Any], kinds: set[FaultKind]) -> None:
    assert set(faults(source, tokenizer, **options)) == kinds


@pytest.mark.parametrize(
    ("source", "kind", "expected", "found"),
    [
        (PLAIN.replace("m.content", "m.content | trim"), FaultKind.TRIMMED, "<|assistant|>\n  Yes", "<|assistant|>Yes, 4.<|im_end|>"),
        (PLAIN.replace("m.content", "m.content | upper"), FaultKind.TURN, "", "YES, 4."),
        (PLAIN.replace("m.content", "m.content.split('</think>')[-1]"), FaultKind.THINKING, "<think>", "\n\nYes, 4."),
        (PLAIN.replace("<|im_end|>", "{{ '<|im_end|>' if m.role == 'user' }}"), FaultKind.NOT_CLOSED, "<|im_end|>", ""),
        (PLAIN.replace("in messages", "in messages | reverse"), FaultKind.HISTORY, "", ""),
        (PLAIN.replace("{% for", "{{ messages | length }}{% for", 1), FaultKind.HISTORY, "", ""),
        (PLAIN.replace("<|assistant|>", "<|bot|>"), FaultKind.TURN, "<|bot|>", "<|assistant|>"),
        (PLAIN + "{{ strftime_now('%Y') }}", FaultKind.DATE, "2025", "2031"),
        (PLAIN.replace("in messages", "in messages if m.content != 'Sure?'"), FaultKind.HISTORY, "Sure?", ""),
        (PLAIN.replace("{% for", "{{ raise_exception('not today') }}{% for"), FaultKind.REFUSED, "", "not today"),
        ("{% for m in messages %}{{ 1 / (2 - loop.index) }}{% endfor %}", FaultKind.REFUSED, "", "division by zero"),
    ],
)
def test_each_kind_is_told_with_its_place(source: str, kind: FaultKind, expected: str, found: str) -> None:
    fault = faults(source)[kind]
    assert expected in fault.expected
    assert found in fault.found
    assert fault.expected != fault.found
    assert max(len(fault.expected), 0 if kind is FaultKind.REFUSED else len(fault.found)) <= 80
    assert str(fault).startswith(f"{kind.value}: {fault.property}")


def test_tokens_that_merge_across_the_opening_are_told() -> None:
    """An opening that ends in two newlines: one token, but two before a word, for a tokenizer that cuts words as GPT-2 does."""
    fault = faults(LLAMA3, byte_level(LLAMA_SPECIAL))[FaultKind.BOUNDARY]
    assert fault.expected.endswith("'ĊĊ'")
    assert fault.found.endswith("'Ċ'")


def test_thinking_that_stays_is_no_fault_where_it_is_kept_for_tools() -> None:
    """Qwen 3 strips thinking only before the last question: tool results are none."""
    thinking = faults(QWEN3, role="user")[FaultKind.THINKING]
    assert "<think>" in thinking.expected + thinking.found
    kept = faults(QWEN3, role="tool", enable_thinking=False)
    assert FaultKind.HISTORY not in kept
