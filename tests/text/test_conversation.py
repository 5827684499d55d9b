"""Token ids are the truth: a conversation only grows, by what was sampled and by what its template writes between the turns."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from slipstream.core.errors import UsageError
from slipstream.text.chat import compile_template
from slipstream.text.conversation import Conversation, open_conversation
from slipstream.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace
from tests.text.templates import CHATML, GEMMA, LLAMA3, MISTRAL, QWEN3, QWEN25, TOOLS

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
CALL: dict[str, Any] = {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "function": {"name": "add", "arguments": {"a": 1}}}]}
RESULT: dict[str, Any] = {"role": "tool", "content": "3", "tool_call_id": "abcdefghi"}
QWEN_SPECIAL = ("<|im_start|>", "<|im_end|>")
LLAMA_SPECIAL = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>")
FAMILIES: dict[str, tuple[str, Tokenizer, str]] = {  # template, tokenizer, what stands between a stop token and the next turn's text
    "chatml": (CHATML, byte_level(QWEN_SPECIAL), "\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"),
    "qwen 2.5": (QWEN25, byte_level(QWEN_SPECIAL), "\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"),
    "qwen 3": (QWEN3, byte_level(QWEN_SPECIAL), "\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"),
    "llama 3": (
        LLAMA3,
        byte_level(LLAMA_SPECIAL, newlines_whole=True),
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": (MISTRAL, metaspace(("<s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "</s>")), "[INST] Why?[/INST]"),
    "gemma": (
        GEMMA,
        metaspace(("<s>", "<start_of_turn>", "<end_of_turn>"), strip=False),
        "\n<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n",
    ),
}
families = pytest.mark.parametrize("family", FAMILIES)


def opened(family: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> Conversation:
    source, tokenizer, _ = FAMILIES[family]
    return open_conversation(compile_template(source, {"bos_token": "<s>", "eos_token": "</s>"}), tokenizer, messages or [USER], **options)


def written(conversation: Conversation, start: int = 0) -> str:
    """The text of the ids from `start` on, special tokens written out; without the space that metaspace puts after each of them."""
    text = conversation.tokenizer.backend.decode(conversation.token_ids[start:].tolist(), skip_special_tokens=False)
    return re.sub(r"(\[INST]|\[/?TOOL_RESULTS]) +", r"\1 ", text)


def said(conversation: Conversation, text: str, *, stopped: bool = True) -> list[int]:
    tokenizer = conversation.tokenizer
    return [*tokenizer.encode(text).tolist(), *(tokenizer.stop_ids[:1] if stopped else ())]


@families
def test_after_a_stop_token_comes_what_the_template_writes_after_it(family: str) -> None:
    """For example the newline after <|im_end|>, which no model samples."""
    first = opened(family)
    turn = said(first, " \nYes \n")
    second = first.after_model_turn(turn)
    third = second.extend([{"role": "user", "content": "Why?"}])
    assert second.token_ids.tolist() == first.token_ids.tolist() + turn
    assert written(third, len(second.token_ids)) == FAMILIES[family][2]
    assert third.token_ids[: len(second.token_ids)].tolist() == second.token_ids.tolist()
    assert third.model_chose.tolist() == [False] * len(first.token_ids) + [True] * len(turn) + [False] * (
        len(third.token_ids) - len(second.token_ids)
    )
    assert (third.token_ids.dtype, third.model_chose.dtype) == (np.int32, np.bool_)


@families
@pytest.mark.parametrize("text", ["Yes", ""])
def test_a_turn_cut_by_length_is_closed_by_the_environment(family: str, text: str) -> None:
    first = opened(family)
    turn = said(first, text, stopped=False)
    third = first.after_model_turn(turn).extend([{"role": "user", "content": "Why?"}])
    start = len(first.token_ids) + len(turn)
    (stop,) = first.tokenizer.stop_ids
    assert third.token_ids[start] == stop
    assert not third.model_chose[start:].any()
    assert written(third, start + 1) == FAMILIES[family][2]


@families
def test_the_ids_are_those_of_the_rendered_text(family: str) -> None:
    """What is added has the ids that it has in the whole text, tokenised at once; so has all of it, where the template lets it."""
    conversation = opened(family)
    messages = [USER]
    for question in ("Why?", "the cat sat — 東京 😀"):
        turn = conversation.after_model_turn(said(conversation, "hello there"))
        conversation = turn.extend([{"role": "user", "content": question}])
        messages += [{"role": "assistant", "content": "hello there"}, {"role": "user", "content": question}]
        whole = conversation.tokenizer.encode(conversation.template.render(messages, add_generation_prompt=True)).tolist()
        added = conversation.token_ids[len(turn.token_ids) :].tolist()
        assert whole[-len(added) :] == added
    if family != "mistral":  # which writes a space before what was said
        assert conversation.token_ids.tolist() == whole


def test_thinking_stays_though_the_template_would_strip_it() -> None:
    first = opened("qwen 3", enable_thinking=True)
    thought = "<think>\nhm\n</think>\n\nYes"
    third = first.after_model_turn(said(first, thought)).extend([{"role": "user", "content": "Why?"}])
    assert written(third) == (
        f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{thought}<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_variables_reach_every_turn() -> None:
    first = opened("qwen 3", enable_thinking=False)
    third = first.after_model_turn(said(first, "Yes")).extend([{"role": "user", "content": "Why?"}])
    assert written(third).count("<|im_start|>assistant\n<think>\n\n</think>\n\n") == 2


@pytest.mark.parametrize(
    ("family", "results", "text"),
    [
        ("qwen 2.5", 1, "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        (
            "qwen 2.5",
            2,
            "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
        ("qwen 3", 1, "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("llama 3", 1, "<|start_header_id|>ipython<|end_header_id|>\n\n3<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("mistral", 1, '[TOOL_RESULTS] {"content": 3, "call_id": "abcdefghi"}[/TOOL_RESULTS]'),
    ],
)
@pytest.mark.parametrize("stopped", [True, False])
def test_tool_results(family: str, results: int, text: str, stopped: bool) -> None:
    """The call that the model wrote stays as it wrote it; the template is told only that there was one."""
    first = opened(family, tools=TOOLS)
    turn = said(first, '{"name":"add" , "arguments":{}}', stopped=stopped)
    second = first.after_model_turn(turn, CALL)
    third = second.extend([RESULT] * results)
    added = written(third, len(second.token_ids))
    stop = first.tokenizer.backend.id_to_token(first.tokenizer.stop_ids[0])
    assert added == (text if stopped else stop + text)
    assert third.messages[1]["tool_calls"][0]["function"]["name"] == "add"


def test_another_stop_token_takes_the_place_of_the_templates() -> None:
    """Llama 3 ends a call with <|eom_id|> where its template writes <|eot_id|>."""
    source, tokenizer, after = FAMILIES["llama 3"]
    ids = tuple(tokenizer.backend.token_to_id(token) for token in ("<|eot_id|>", "<|eom_id|>"))
    both = Tokenizer(backend=tokenizer.backend, stop_ids=ids)
    first = open_conversation(compile_template(source, {"bos_token": "<s>"}), both, [USER])
    third = first.after_model_turn([ids[1]]).extend([{"role": "user", "content": "Why?"}])
    assert written(third, len(first.token_ids)) == "<|eom_id|>" + after


def test_a_template_without_stop_token_loses_no_message() -> None:
    """The stop token of a later message is not taken for the end of the model's turn."""
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'user' %}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    tokenizer = byte_level(QWEN_SPECIAL)
    first = open_conversation(compile_template(source), tokenizer, [USER])
    second = first.after_model_turn(tokenizer.encode("Yes"))
    assert written(second.extend([USER]), len(second.token_ids)) == "\nuser: Hi<|im_end|>\n"


@families
def test_messages_cannot_pass_for_the_models_turn(family: str) -> None:
    """Whatever a user writes, also the marks by which the model's turn is found in the rendered text."""
    marks = " ".join(f"ModelTurn{index}x" for index in range(3))
    first = opened(family, [{"role": "user", "content": marks}])
    second = first.after_model_turn(said(first, "Yes"))
    third = second.extend([{"role": "user", "content": f"{marks} Why?"}])
    assert written(third, len(second.token_ids)) == FAMILIES[family][2].replace("Why?", f"{marks} Why?")


def test_a_tokenizer_that_puts_a_space_first_puts_none_between_turns() -> None:
    source, tokenizer, _ = FAMILIES["mistral"]
    first = open_conversation(compile_template(source, {"bos_token": "<s>", "eos_token": "</s>"}), tokenizer, [USER])
    second = first.after_model_turn(said(first, "hello"))
    third = second.extend([{"role": "user", "content": "hello"}])
    tokens = [tokenizer.backend.id_to_token(id) for id in third.token_ids[len(second.token_ids) :]]
    assert tokens[0] == "[INST]"


def test_spaces_that_a_stop_token_swallows_are_not_added() -> None:
    """As in tokenising the whole text: an added token may take the spaces to its right."""
    tokenizer = byte_level(("<|im_start|>",))
    tokenizer.backend.add_special_tokens([AddedToken("<|im_end|>", rstrip=True, normalized=False)])
    stop = tokenizer.backend.token_to_id("<|im_end|>")
    tokenizer = Tokenizer(backend=tokenizer.backend, stop_ids=(stop,))
    first = open_conversation(compile_template(CHATML), tokenizer, [USER])
    second = first.after_model_turn([stop])
    third = second.extend([USER])
    assert third.token_ids[len(second.token_ids)] == tokenizer.backend.token_to_id("<|im_start|>")


def test_turns_alternate() -> None:
    first = opened("chatml")
    with pytest.raises(ValueError, match="it is the model's turn"):
        first.extend([USER])
    second = first.after_model_turn([])
    with pytest.raises(ValueError, match="turn is over"):
        second.after_model_turn([1])
    with pytest.raises(UsageError, match="System role not supported"):
        opened("gemma", [{"role": "system", "content": "x"}])
    gemma = opened("gemma")
    with pytest.raises(UsageError, match="roles must alternate"):
        gemma.after_model_turn(said(gemma, "Yes")).extend([USER, USER])


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ("!= 'tool'", "leaves out the messages after a model's turn .role 'tool'"),
        ("!= 'assistant'", "does not write what the assistant said"),
    ],
)
def test_a_template_that_leaves_messages_out_is_an_error(shown: str, message: str) -> None:
    source = f"{{% for m in messages if m.role {shown} %}}{{{{ m.content }}}}{{% endfor %}}"
    first = open_conversation(compile_template(source), byte_level(), [USER])
    second = first.after_model_turn([5])
    with pytest.raises(UsageError, match=message):
        second.extend([RESULT])


def test_a_template_that_wants_a_result_after_each_call() -> None:
    """It refuses a conversation that ends in a call, which only serves to find where the turn ends."""
    source = FAMILIES["qwen 2.5"][0] + "{% if messages[-1].tool_calls %}{{ raise_exception('no result') }}{% endif %}"
    first = open_conversation(compile_template(source), byte_level(QWEN_SPECIAL), [USER])
    second = first.after_model_turn(said(first, "add"), CALL)
    added = written(second.extend([RESULT]), len(second.token_ids))
    assert added == "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    turns=st.lists(st.tuples(st.lists(st.integers(0, 200), max_size=6), st.booleans(), st.text(max_size=8)), max_size=4),
)
def test_every_conversation_begins_with_what_it_was(family: str, turns: list[tuple[list[int], bool, str]]) -> None:
    """Any ids, stopped or not, any answers: ids are kept, the mask tells who chose them, and each extension is the same."""
    conversation = opened(family)
    (stop,) = conversation.tokenizer.stop_ids
    chosen: list[int] = []
    for ids, stopped, answer in turns:
        turn = [*ids, *([stop] if stopped else [])]
        before = conversation.token_ids.tolist()
        after = conversation.after_model_turn(turn)
        again = after.extend([{"role": "user", "content": answer}])
        assert again.token_ids[: len(before) + len(turn)].tolist() == before + turn
        assert again.is_models_turn
        conversation, chosen = again, chosen + turn
    assert conversation.token_ids[conversation.model_chose].tolist() == chosen
    assert len(conversation.token_ids) == len(conversation.model_chose)
