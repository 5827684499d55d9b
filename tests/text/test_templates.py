"""The templates of the supported families render what the models were trained on, character by character."""

from typing import Any

import pytest

from slipstream.core.errors import UsageError
from slipstream.text.chat import compile_template
from tests.text.templates import CHATML, GEMMA, LLAMA3, MISTRAL, QWEN3, QWEN25, TOOLS

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
REPLY: dict[str, Any] = {"role": "assistant", "content": "Yes"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
THOUGHT: dict[str, Any] = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}
CALL: dict[str, Any] = {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "function": {"name": "add", "arguments": {"a": 1}}}]}
RESULT: dict[str, Any] = {"role": "tool", "content": "3", "tool_call_id": "abcdefghi"}
TOOL_JSON = '{"type": "function", "function": {"name": "add", "parameters": {"a": "<int>"}}}'
LLAMA_START = "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 01 Jan 2025\n\n"
QWEN_USER = "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "messages", "options", "text"),
    [
        (CHATML, [USER], {}, "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (CHATML, [SYSTEM, USER], {}, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            QWEN25,
            [USER, {**CALL, "content": None}, RESULT, RESULT],
            {"tools": TOOLS},
            "<|im_start|>system\nYou are Q.\n\n# Tools\n<tools>\n" + TOOL_JSON + "\n</tools>\n"
            'Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n' + QWEN_USER + "<|im_start|>assistant\n"
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n3\n'
            "</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
        (QWEN3, [USER], {"enable_thinking": False}, QWEN_USER + "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (QWEN3, [USER, THOUGHT, USER], {}, QWEN_USER + "<|im_start|>assistant\nYes<|im_end|>\n" + QWEN_USER + "<|im_start|>assistant\n"),
        (
            QWEN3,
            [USER, THOUGHT],
            {"add_generation_prompt": False},
            QWEN_USER + "<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes<|im_end|>\n",
        ),
        (
            LLAMA3,
            [SYSTEM, USER, CALL, RESULT],
            {},
            LLAMA_START + "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "add", "parameters": {"a": 1}}<|eot_id|>'
            "<|start_header_id|>ipython<|end_header_id|>\n\n3<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            MISTRAL,
            [USER, REPLY, USER, CALL, RESULT],
            {"tools": TOOLS},
            "<s>[INST] Hi[/INST] Yes</s>[AVAILABLE_TOOLS] [" + TOOL_JSON + "][/AVAILABLE_TOOLS][INST] Hi[/INST][TOOL_CALLS] "
            '[{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]</s>'
            '[TOOL_RESULTS] {"content": 3, "call_id": "abcdefghi"}[/TOOL_RESULTS]',
        ),
        (
            GEMMA,
            [USER, REPLY, USER],
            {},
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYes<end_of_turn>\n<start_of_turn>user\nHi<end_of_turn>\n"
            "<start_of_turn>model\n",
        ),
    ],
)
def test_rendered_text(source: str, messages: list[dict[str, Any]], options: dict[str, Any], text: str) -> None:
    template = compile_template(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render(messages, **{"add_generation_prompt": True, **options}) == text


@pytest.mark.parametrize(
    ("source", "messages", "message"),
    [
        (GEMMA, [SYSTEM, USER], "refused the messages: System role not supported"),
        (GEMMA, [USER, USER], "refused the messages: roles must alternate"),
        (MISTRAL, [SYSTEM, USER], "refused the messages: only user, assistant and tool"),
        (LLAMA3, [USER, {**CALL, "tool_calls": CALL["tool_calls"] * 2}], "one tool call at a time"),
        (MISTRAL, [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}], "ids of tool calls have 9 characters"),
    ],
)
def test_what_a_template_refuses_is_told_in_its_words(source: str, messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compile_template(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, add_generation_prompt=True)
