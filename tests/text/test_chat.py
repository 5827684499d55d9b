"""Chat templates render with the switches models were trained with, in a sandbox, and say so when they refuse."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from slipstream.core.errors import UsageError
from slipstream.text.chat import compile_template, read_chat_template

CHATML = """{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
{{ '<|im_start|>system\\nYou are terse.<|im_end|>\\n' }}
    {% endif %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""
USER = [{"role": "user", "content": "Hi <b>"}]


def test_block_lines_leave_no_trace() -> None:
    """trim_blocks and lstrip_blocks: indentation and newlines of control lines vanish, those of output lines stay."""
    text = compile_template(CHATML).render(USER, add_generation_prompt=True)
    system = "<|im_start|>system\nYou are terse.<|im_end|>\n\n"
    assert text == system + "<|im_start|>user\nHi <b><|im_end|>\n\n<|im_start|>assistant\n\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <b>"}'),
        ("{{ {'é': 1} | tojson(indent=1) }}", '{\n "é": 1\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%d %B %Y') }}", "04 March 2031"),
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi <b>"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}!", "user!"),
        ("{% if tools is none %}no tools{% endif %}", "no tools"),
        ("{{ enable_thinking }}", "False"),
        ("{{ undefined_name }}", ""),
    ],
)
def test_helpers_behave_as_templates_expect(source: str, text: str) -> None:
    template = compile_template(source, {"bos_token": "<s>"}, date=datetime(2031, 3, 4))
    assert template.render(USER, enable_thinking=False) == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "refused"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "refused"),
        ("{% for i in range(10000000) %}x{% endfor %}", "refused"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safe"),
    ],
)
def test_a_template_that_fails_or_escapes_is_an_error_with_its_message(source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compile_template(source).render(USER)


def test_a_syntax_error_is_told() -> None:
    with pytest.raises(UsageError, match="not valid"):
        compile_template("{% if %}")


def test_the_template_is_found_in_each_place(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    with pytest.raises(UsageError, match="has no chat template"):
        read_chat_template(tmp_path)
    config.write_text(json.dumps({"chat_template": "one {{ eos_token }}", "eos_token": {"content": "</s>"}, "pad_token": None}))
    assert read_chat_template(tmp_path).render(USER) == "one </s>"
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "two"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert read_chat_template(tmp_path).render(USER) == "two"
    config.write_text(json.dumps({"chat_template": named[:1]}))
    with pytest.raises(UsageError, match='none of the chat templates tools is called "default"'):
        read_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("three")
    assert read_chat_template(tmp_path).render(USER) == "three"
    config.write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        read_chat_template(tmp_path)
