"""Tool calls are read as written, and what cannot be read is told, kept and never raised."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.text.tool_calls import AssistantTurn, MalformedCall, ToolCall, ToolFormat, parse_turn, tool_format
from tests.text.templates import CHATML, LLAMA3, QWEN25

HERMES, LLAMA = ToolFormat.HERMES, ToolFormat.LLAMA3


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def only(turn: AssistantTurn) -> ToolCall | MalformedCall:
    (call,) = turn.calls
    return call


def test_thinking_content_and_calls() -> None:
    first, second = hermes('{"name": "add", "arguments": {"a": 1, "b": 2.0}}'), hermes('{"arguments": "{\\"q\\": [1]}", "name": "find"}')
    turn = parse_turn(f"<think>\nI <tool_call> it.\n</think>\n\nLet me see.\n{first}\nand\n{second}\n", HERMES)
    assert turn == AssistantTurn(
        thinking="I <tool_call> it.",
        content="Let me see.\nand",
        calls=(
            ToolCall(name="add", arguments={"a": 1, "b": 2.0}, raw=first),
            ToolCall(name="find", arguments={"q": [1]}, raw=second),
        ),
    )


@pytest.mark.parametrize("text", ["", " \n", "No call: {a} <tool_cal> </tool_call>", '{"name": "x"', "<think in tags>", "a </think> b"])
def test_text_without_calls_stays_as_it_is(text: str) -> None:
    assert parse_turn(text, HERMES) == AssistantTurn(thinking=None, content=text, calls=())


def test_thinking_without_end_or_beginning() -> None:
    call = hermes('{"name": "f", "arguments": {}}')
    assert parse_turn(f"<think>so {call}", HERMES) == AssistantTurn(thinking=f"so {call}", content="", calls=())
    opened = parse_turn(f"so {call}</think>\n\nYes.", HERMES, thinking_open=True)
    assert opened == AssistantTurn(thinking=f"so {call}", content="Yes.", calls=())
    assert parse_turn("so", HERMES, thinking_open=True) == AssistantTurn(thinking="so", content="", calls=())


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("12345678901234567890123", 12345678901234567890123),
        ("1.0", 1.0),
        ("1", 1),
        ("true", True),
        ("-0.5e-3", -0.0005),
        ("null", None),
        ('"</tool_call>"', "</tool_call>"),
        ('"<tool_call>{}</tool_call>"', "<tool_call>{}</tool_call>"),
        ('"}}{{\\"}"', '}}{{"}'),
        ('{"a": {"b": [{"c": "}"}]}}', {"a": {"b": [{"c": "}"}]}}),
        ('"\\u00e9\\ud83d\\ude00\\n"', "é😀\n"),
        ('"東京"', "東京"),
        ('"; {"', "; {"),
        ('"</function>"', "</function>"),
        ('"<|python_tag|>{}"', "<|python_tag|>{}"),
        ('"<function=g>{}</function>"', "<function=g>{}</function>"),
    ],
)
def test_arguments_keep_their_value_and_type(written: str, value: Any) -> None:
    texts = {
        HERMES: [hermes(f'{{"name": "f", "arguments": {{"x": {written}}}}}')],
        LLAMA: [
            f'{{"name": "f", "parameters": {{"x": {written}}}}}',
            f'<|python_tag|>{{"name": "f", "parameters": {{"x": {written}}}}}',
            f'<function=f>{{"x": {written}}}</function>',
        ],
    }
    for format, written_calls in texts.items():
        for text in written_calls:
            call = only(parse_turn(text, format))
            assert isinstance(call, ToolCall), call
            assert (call.name, repr(call.arguments), call.raw) == ("f", repr({"x": value}), text)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("", "no end|broken"),
        ("hello", "its JSON is broken"),
        ("[1]", "no object but a list"),
        ("[]", "no object but a list"),
        ("3", "no object but a number"),
        ("true", "no object but true or false"),
        ("null", "no object but null"),
        ('"f"', "no object but a text"),
        ("{}", 'no "name"'),
        ('{"name": 3, "KEY": {}}', '"name" is 3'),
        ('{"name": "", "KEY": {}}', '"name" is ""'),
        ('{"name": "f"}', 'no "KEY"'),
        ('{"name": "f", "KEY": null}', "arguments are no object but null"),
        ('{"name": "f", "KEY": [1]}', "arguments are no object but a list"),
        ('{"name": "f", "KEY": "[1]"}', "arguments are no object but a list"),
        ('{"name": "f", "KEY": "{} {}"}', "text follows"),
        ('{"name": "f", "KEY": "x"}', "its JSON is broken"),
        ('{"name": "f", "name": "g", "KEY": {}}', 'the key "name" appears twice'),
        ('{"name": "f", "KEY": {"a": {"b": 1, "b": 1}}}', 'the key "b" appears twice'),
        ('{"name": "f", "KEY": "{\\"a\\": 1, \\"a\\": 2}"}', 'the key "a" appears twice'),
        ('{"name": "f", "KEY": {"x": NaN}}', "NaN is no JSON"),
        ('{"name": "f", "KEY": {"x": -Infinity}}', "-Infinity is no JSON"),
        ('{"name": "f", "KEY": {"x": 1e999}}', "number that cannot be read"),
        ('{"name": "f", "KEY": {"x": ' + "9" * 5000 + "}}", "number that cannot be read"),
        ('{"name": "f", "KEY": {"x": "\\ud83d"}}', "half of a surrogate pair"),
        ('{"name": "f", "KEY": {"x": ' + "[" * 100_000 + "]" * 100_000 + "}}", "nested too deep"),
        ('{"name": "f", "KEY": {"x": "a\nb"}}', "its JSON is broken: Invalid control"),
        ("{'name': 'f', 'KEY': {}}", "its JSON is broken"),
    ],
)
def test_what_cannot_be_called_is_told_and_kept(body: str, cause: str) -> None:
    hermes_text = "before " + hermes(body.replace("KEY", "arguments")) + " after"
    llama_text = "<|python_tag|>" + body.replace("KEY", "parameters")
    for text, format, key in ((hermes_text, HERMES, "arguments"), (llama_text, LLAMA, "parameters")):
        turn = parse_turn(text, format)
        call = only(turn)
        assert isinstance(call, MalformedCall)
        assert any(part in call.cause for part in cause.replace("KEY", key).split("|")), call.cause
        assert call.raw.strip() == text.removeprefix("before ").removesuffix(" after").strip()
        assert turn.content == ("before\nafter" if format is HERMES else "")


@pytest.mark.parametrize("end", range(len("<tool_call>"), len(hermes('{"name": "f", "arguments": {"x": "é"}}'))))
def test_a_call_cut_anywhere_is_malformed(end: int) -> None:
    """A completion that ran out of tokens: the call is never made, never lost, never taken for content."""
    text = "so " + hermes('{"name": "f", "arguments": {"x": "é"}}')[:end]
    turn = parse_turn(text, HERMES)
    call = only(turn)
    assert isinstance(call, MalformedCall)
    assert ("so " + call.raw, turn.content) == (text, "so")
    assert "no end" in call.cause or "comes no </tool_call>" in call.cause


def test_a_broken_call_does_not_swallow_the_next() -> None:
    good = hermes('{"name": "g", "arguments": {}}')
    for bad in ('<tool_call>{"name": "f", ', '<tool_call>{"name": "f"', "<tool_call>", '<tool_call>{"name": "f", "arguments": {}} '):
        first, second = parse_turn(bad + good, HERMES).calls
        assert isinstance(first, MalformedCall)
        assert first.raw == bad
        assert second == ToolCall(name="g", arguments={}, raw=good)
    first, second = parse_turn('<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}} x</tool_call>' + good, HERMES).calls
    assert isinstance(first, MalformedCall)
    assert first.raw.endswith(" x</tool_call>")
    assert isinstance(second, ToolCall)


def test_llama_calls_one_after_the_other() -> None:
    one, two = '{"name": "f", "parameters": {"x": "a;b"}}', '{"type": "function", "name": "g", "parameters": {}}'
    for separator in (";", "; ", " ;\n"):
        turn = parse_turn(f"  {one}{separator}{two}\n", LLAMA)
        assert [call.name if isinstance(call, ToolCall) else call for call in turn.calls] == ["f", "g"]
        assert turn.content == ""
    assert [type(call) for call in parse_turn(f"{one};", LLAMA).calls] == [ToolCall]
    assert parse_turn(f"{two} is how I call.", LLAMA).content == "is how I call."
    told = parse_turn(f"Searching.<|python_tag|>{one}; {{}} {two}", LLAMA)
    assert told.content == "Searching."
    assert [type(call) for call in told.calls] == [ToolCall, MalformedCall, MalformedCall]
    assert told.calls[2] == MalformedCall(cause="between two calls comes no semicolon", raw=two)


def test_llama_functions_in_tags() -> None:
    turn = parse_turn('Now <function=f>{"n": 5}</function> and <function=g>"{}"</function> <function=h>{"n": ', LLAMA)
    assert turn.calls[:2] == (
        ToolCall(name="f", arguments={"n": 5}, raw='<function=f>{"n": 5}</function>'),
        ToolCall(name="g", arguments={}, raw='<function=g>"{}"</function>'),
    )
    assert isinstance(turn.calls[2], MalformedCall)
    assert turn.calls[2].raw == '<function=h>{"n": '
    assert turn.content == "Now\nand"


@pytest.mark.parametrize("text", ['{"answer": 4}', "{x | x > 0}", 'I say {"name": "f", "parameters": {}}', "[1]", "7", "{"])
def test_json_that_is_no_call_is_a_llama_models_content(text: str) -> None:
    assert parse_turn(text, LLAMA) == AssistantTurn(thinking=None, content=text, calls=())


@pytest.mark.parametrize("text", ['{"name": "f", "parameters": {"x', '{"name": "Ann", "age": 3}', '{"type": "function", "name": '])
def test_json_that_begins_as_a_call_is_one_and_told_when_broken(text: str) -> None:
    call = only(parse_turn(text, LLAMA))
    assert isinstance(call, MalformedCall)
    assert call.raw == text


def test_each_format_ignores_the_others_marks() -> None:
    """A tool's text that the model repeats in its content is no call of the other format."""
    llama = '{"name": "f", "parameters": {}}'
    for text in (llama, f"<|python_tag|>{llama}", "<function=f>{}</function>"):
        assert parse_turn(text, HERMES).calls == ()
    assert parse_turn(hermes('{"name": "f", "arguments": {}}'), LLAMA).calls == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(st.characters(codec="utf-8")), json_values, max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1).filter(str.isidentifier), arguments), min_size=1, max_size=3), st.booleans())
def test_calls_written_by_a_serialiser_come_back(calls: list[tuple[str, dict[str, Any]]], ascii: bool) -> None:
    def parsed(text: str, format: ToolFormat) -> str:
        return repr([(call.name, call.arguments) for call in parse_turn(text, format).calls if isinstance(call, ToolCall)])

    def written(key: str) -> list[str]:
        return [json.dumps({"name": name, key: values}, ensure_ascii=ascii) for name, values in calls]

    assert parsed("".join(hermes(call) for call in written("arguments")), HERMES) == repr(calls)
    assert parsed("; ".join(written("parameters")), LLAMA) == repr(calls)


MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<function=f>", "</function>", ";", "\n"]
PARTS = ['{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"a": "', '"}}', "{", "}", "[", '"', "text", "1e999", "\\ud800"]
marks = st.sampled_from([*MARKS, *PARTS])


@settings(max_examples=500, deadline=None)
@given(st.lists(marks, max_size=12).map("".join), st.sampled_from(ToolFormat), st.booleans())
def test_nothing_raises_and_nothing_is_lost(text: str, format: ToolFormat, is_open: bool) -> None:
    """Every character but spaces, separators and thinking marks is in the thinking, the content or a call's raw text."""
    turn = parse_turn(text, format, thinking_open=is_open)
    kept = "".join([turn.thinking or "", turn.content, *(call.raw for call in turn.calls)])

    def characters(told: str) -> list[str]:
        return sorted(told.replace("<think>", "").replace("</think>", "").replace(";", "").replace("\n", "").replace(" ", ""))

    assert characters(kept) == characters(text)


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize("piece", ["<tool_call>", "<function=f>", "<tool_call>{", '<tool_call>["', "{", "[", '{"a":', ";", "<think>"])
def test_a_hostile_text_costs_no_more_than_its_length(format: ToolFormat, piece: str) -> None:
    """20,000 marks without an end: far past any stack, and quadratic work would take minutes."""
    turn = parse_turn(piece * 20_000, format)
    assert turn.content or turn.calls or turn.thinking


@pytest.mark.parametrize(
    ("source", "format"),
    [
        (QWEN25, HERMES),
        (LLAMA3, LLAMA),
        ("... <|python_tag|> ...", LLAMA),
        (CHATML, None),
        ("<tool_call>\n<function=name>\n<parameter=x>", None),
        ("", None),
    ],
)
def test_the_format_is_told_by_the_template(source: str, format: ToolFormat | None) -> None:
    assert tool_format(source) is format
