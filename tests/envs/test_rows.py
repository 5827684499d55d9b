"""Rows from files: what cannot be used is told and left out, test questions are never trained on, graders follow the config."""

import json
from pathlib import Path

import pytest

from slipstream.config.load import load_config
from slipstream.config.schema import PretrainedModel, RowsTask, RunConfig
from slipstream.core.errors import UsageError
from slipstream.core.records import OutcomeKind
from slipstream.envs.build import build_task
from slipstream.envs.rows import Rows, rows
from tests.envs.small_chat import byte_tokenizer, chatml, write_lines


def row(id: str, question: str, answer: object) -> str:
    return json.dumps({"id": id, "question": question, "answer": answer})


def task(directory: Path, seed: int = 0, **settings: object) -> Rows:
    config = RowsTask.model_validate({"train": str(directory / "train.jsonl"), "test": str(directory / "test.jsonl"), **settings})
    return rows(config, seed, byte_tokenizer(), chatml())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    train = [row(f"r-{n}", f"what is {n}?", f"thinking <<1+1=2>>\n#### {n}") for n in range(5)]
    write_lines(tmp_path / "train.jsonl", *train, "oops", row("long", "q" * 500, 1), row("bare", "why?", "because"), row("same", "t 0", 9))
    write_lines(tmp_path / "test.jsonl", *(row(f"t-{n}", f"t {n}", n) for n in range(8)))
    return tmp_path


def test_what_cannot_be_used_is_told_and_left_out(files: Path) -> None:
    found = task(files)
    assert {prompt.id for prompt in found.training} == {f"r-{n}" for n in range(5)}
    assert found.notes == (
        "train.jsonl line 6: not JSON: Expecting value at column 1; skipped",
        "train.jsonl line 8: no number in field 'answer'; skipped",
        "train.jsonl: 1 questions are also in test.jsonl; left out of training",
        "train.jsonl: 1 of 6 prompts exceed task.max_prompt_tokens = 256; left out",
    )
    assert found.max_prompt_tokens <= 256


def test_prompts_follow_the_seed_and_held_out_ones_do_not(files: Path) -> None:
    one, two = task(files, seed=1), task(files, seed=2)
    ids = [one.prompt(index).id for index in range(10)]
    assert sorted(id.split("@")[0] for id in ids[:5]) == [f"r-{n}" for n in range(5)]
    assert [id.split("@")[1] for id in ids] == [str(index) for index in range(10)]
    assert ids != [two.prompt(index).id for index in range(10)]
    assert [prompt.id for prompt in one.held_out(3)] == [prompt.id for prompt in two.held_out(8)][:3]
    assert len(one.held_out(100)) == 8


def test_the_question_and_the_instruction_are_asked_through_the_chat_template(files: Path) -> None:
    prompt = task(files, instruction="Be brief.").held_out(1)[0]
    number = prompt.id.removeprefix("t-")
    assert prompt.text == f"<|im_start|>user\nt {number}\n\nBe brief.<|im_end|>\n<|im_start|>assistant\n"


def test_the_grader_follows_the_configuration(files: Path) -> None:
    found = task(files, format_weight=0.5)
    prompt = next(prompt for prompt in found.training if prompt.id == "r-3")
    assert found.grade(prompt, "#### 3.0").reward == 1.5
    assert found.grade(prompt, "3").reward == 1.0
    exact = task(files, grader="exact", answer_field="question")
    prompt = exact.held_out(1)[0]
    assert exact.grade(prompt, f" {prompt.answer} ").kind is OutcomeKind.VALUE


def test_hopeless_data_is_refused_with_the_reason(files: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.jsonl: no row is left to use; 6 of 6 prompts exceed task\.max_prompt_tokens = 3"):
        task(files, max_prompt_tokens=3)
    with pytest.raises(UsageError, match=r"train\.jsonl has no usable row: 9 lines, all broken; the first: line 1: no field 'unknown'"):
        task(files, answer_field="unknown")
    with pytest.raises(UsageError, match="every question of"):
        task(files, train=str(files / "test.jsonl"))
    with pytest.raises(UsageError, match="does not exist"):
        task(files, test=str(files / "none.jsonl"))


@pytest.mark.parametrize("recipe", ["sums", "gsm8k"])
def test_the_recipes_load_and_a_packed_row_holds_their_longest_sample(recipe: str) -> None:
    config = load_config(recipe)
    longest = config.task.max_prompt_tokens if isinstance(config.task, RowsTask) else 52  # of sums: see the test with the real model
    assert longest + config.sampling.max_new_tokens <= config.batch.row_tokens
    assert isinstance(config.model.source, PretrainedModel)


def test_build_task_chooses_by_configuration(files: Path) -> None:
    settings = RowsTask(train=str(files / "train.jsonl"), test=str(files / "test.jsonl"))
    model = {"source": PretrainedModel(path="anywhere")}
    config = RunConfig.model_validate({"model": model, "task": settings})
    assert isinstance(build_task(config, byte_tokenizer(), chatml()), Rows)
    with pytest.raises(ValueError, match="needs the tokenizer"):
        build_task(config)
    assert build_task(RunConfig()).name == "3-digit addition"
