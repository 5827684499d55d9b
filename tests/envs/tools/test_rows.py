"""Rows with tools, in a model's own format of calls: ids are extended, calls and failures counted, the last turn is judged."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from slipstream.config.load import load_config
from slipstream.config.schema import RowsTask, RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.errors import ConfigError, UsageError
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, FinishReason, ModelTurn, OutcomeKind
from slipstream.envs.build import build_task
from slipstream.envs.environment import Interactive
from slipstream.envs.host import EnvironmentHost
from slipstream.envs.tools.environment import ToolEnvironment
from slipstream.envs.tools.rows import RowsWithTools
from slipstream.envs.tools.tool import ToolFailed
from slipstream.text.chat import compile_template
from slipstream.text.tool_calls import ToolFormat
from tests.envs.small_chat import byte_tokenizer, chatml, write_lines
from tests.text.templates import QWEN25

TOKENIZER = byte_tokenizer()
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = [json.dumps({"id": f"r{n}", "question": f"What is {n} * 7?", "answer": str(7 * n)}) for n in range(8)]
    write_lines(tmp_path / "train.jsonl", *rows[:6])
    write_lines(tmp_path / "test.jsonl", *rows[6:])
    write_lines(tmp_path / "library.jsonl", '{"title": "Seven", "text": "a prime number"}')
    return tmp_path


def task(files: Path, template: str = QWEN25, **settings: object) -> RowsWithTools:
    given = {"train": str(files / "train.jsonl"), "test": str(files / "test.jsonl"), "max_prompt_tokens": 2000, "tools": ("calculator",)}
    found = build_task(RunConfig(task=RowsTask(**(given | settings))), TOKENIZER, compile_template(template))
    assert isinstance(found, RowsWithTools)
    assert isinstance(found, Interactive)
    return found


def turn(text: str, room: int = 5000) -> ModelTurn:
    ids = np.append(TOKENIZER.encode(text), 1).astype(np.int32)
    return ModelTurn(token_ids=ids, text=text, finish_reason=FinishReason.STOP, room=room)


def episode(found: RowsWithTools, *texts: str) -> Iterator[EnvironmentTurn | EpisodeEnd]:
    """The answers to a model that says these texts."""
    with closing(EnvironmentHost(found, clock=SystemClock())) as host:
        for text in texts:
            host.answer(("t", 0), found.held_out(1)[0], turn(text))
            assert host.wait(60.0)
            ((_, answer),) = host.answered()
            yield answer


def written(answer: EnvironmentTurn) -> str:
    return TOKENIZER.backend.decode(answer.token_ids.tolist(), skip_special_tokens=False)


def test_a_call_is_made_and_its_result_put_behind_the_models_own_tokens(files: Path) -> None:
    found = task(files)
    prompt = found.held_out(1)[0]
    assert '"name": "calculator"' in prompt.text  # the model is told of its tools
    first, end = episode(found, f"Let me see.\n{CALL}", f"#### {prompt.answer}")
    assert written(first) == "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert (end.outcome.reward, end.outcome.calls, end.outcome.failed_calls) == (1.0, 1, 0)
    assert end.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "1/0"}}</tool_call>', "Error: division by zero"),
        (
            '<tool_call>{"name": "calculater", "arguments": {}}</tool_call>',
            "Error: there is no tool 'calculater'; did you mean calculator?",
        ),
        ('<tool_call>{"name": "calculator", "arguments": {"x": 1}}</tool_call>', "Error: no such argument: x; it takes expression"),
        ('<tool_call>{"name": "calculator", </tool_call>', "Error: the call could not be read: its JSON is broken"),
        ("<tool_call>", "Error: the call could not be read: its JSON has no end"),
    ],
)
def test_what_the_model_did_wrong_is_said_to_it_and_counted(files: Path, call: str, answer: str) -> None:
    first, end = episode(task(files), call, "#### no idea")
    assert f"<tool_response>\n{answer}" in written(first)
    assert (end.outcome.kind, end.outcome.calls, end.outcome.failed_calls) == (OutcomeKind.UNPARSEABLE, 1, 1)


def test_several_calls_are_answered_in_their_order_up_to_a_limit(files: Path) -> None:
    several = "".join(CALL.replace("6*7", f"{n}+0") for n in range(10))
    first, end = episode(task(files), several, "#### 1")
    results = [part.split("\n")[1] for part in written(first).split("<tool_response>")[1:]]
    assert results[:8] == [str(n) for n in range(8)]
    assert results[8:] == ["Error: only 8 calls are made in one turn"] * 2
    assert (end.outcome.calls, end.outcome.failed_calls) == (10, 2)


def test_a_broken_tool_is_an_infrastructure_failure(files: Path) -> None:
    class Broken:
        name, schema = "calculator", {}

        def call(self, arguments: object) -> str:
            raise ToolFailed("no cell can be had")

        def close(self) -> None: ...

    found = task(files)
    environment = ToolEnvironment([Broken()], ToolFormat.HERMES, TOKENIZER, found.grade)
    environment.start(found.held_out(1)[0])
    with pytest.raises(ToolFailed):
        environment.step(turn(CALL))
    object.__setattr__(found, "tools", (Broken(),))
    (end,) = episode(found, CALL)
    assert (end.outcome.kind, end.outcome.reward) == (OutcomeKind.INFRASTRUCTURE, None)
    assert "no cell can be had" in end.outcome.detail


def test_search_and_limits_follow_the_configuration(files: Path) -> None:
    found = task(files, tools=("search", "calculator"), search_file=str(files / "library.jsonl"), max_turns=1)
    assert (found.limits.turns, found.limits.step_s) == (1, 60.0)
    assert found.format_hash != task(files).format_hash
    call = '<tool_call>{"name": "search", "arguments": {"query": "prime"}}</tool_call>'
    (end,) = episode(found, call)
    assert (end.outcome.kind, end.outcome.detail) == (OutcomeKind.UNPARSEABLE, "no answer in 1 turns")
    environment = found.environment(found.held_out(1)[0])
    environment.start(found.held_out(1)[0])
    assert environment.step(turn(call)).messages[0]["content"] == "[1] Seven: a prime number"


def test_what_cannot_have_tools_is_refused(files: Path) -> None:
    with pytest.raises(UsageError, match=r"task\.tools = \['calculator'\]: the model's chat template has no tool calls of a known format"):
        task(files, template=chatml().source)
    files_given = [f"task.train={files / 'train.jsonl'}", f"task.test={files / 'test.jsonl'}"]
    with pytest.raises(ConfigError) as refused:
        load_config("gsm8k", [*files_given, 'task.tools=["search"]', "task.reward_workers=3"])
    assert [problem.field for problem in refused.value.problems] == ["task.search_file", "task.reward_workers"]
    with pytest.raises(ConfigError) as refused:
        load_config("gsm8k", [*files_given, "task.max_turns=3", "task.search_file=x"])
    assert [problem.field for problem in refused.value.problems] == ["task.max_turns", "task.search_file"]


def test_python_runs_in_a_cell(files: Path) -> None:
    from slipstream.envs.tools.python import PythonTool
    from slipstream.envs.tools.tool import ToolError

    with closing(PythonTool(at_once=2, seconds=2.0)) as tool:
        assert tool.call({"code": "print(2**10)"}) == "1024"
        assert tool.call({"code": "x = 1"}) == "(the program printed nothing)"
        assert len(tool.call({"code": "print('a' * 9000)"})) < 2100
        for code, why in {
            "print('so far')\n1/0": "so far\nZeroDivisionError: division by zero",
            "def f(:": "SyntaxError",
            "raise SystemExit(3)": "the program ended with status 3",
            "while True: pass": "the program did not end in time",
        }.items():
            with pytest.raises(ToolError, match=why):
                tool.call({"code": code})
