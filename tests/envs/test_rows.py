"""Rows from files: what cannot be used is told and left out, test questions are never trained on, graders follow the configuration."""

import json
from pathlib import Path

import pytest

from slipstream.config.load import load_config
from slipstream.config.schema import PretrainedModel, RowsTask, RunConfig
from slipstream.core.errors import RunFailed, UsageError
from slipstream.core.records import OutcomeKind
from slipstream.envs.build import build_task
from slipstream.envs.from_files import rows_plan
from slipstream.envs.rows import Rows, rows_task
from tests.envs.small_chat import byte_tokenizer, chatml, write_lines


def row(id: str, question: str, answer: object, **more: object) -> str:
    return json.dumps({"id": id, "question": question, "answer": answer, **more})


def task(directory: Path, seed: int = 0, **settings: object) -> Rows:
    config = RowsTask.model_validate({"train": str(directory / "train.jsonl"), "test": str(directory / "test.jsonl"), **settings})
    return rows_task(rows_plan(config), seed, byte_tokenizer(), chatml())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    train = [row(f"r-{n}", f"what is {n}?", f"thinking <<1+1=2>>\n#### {n}") for n in range(5)]
    write_lines(
        tmp_path / "train.jsonl", *train, "oops", row("long", "q" * 500, 1), row("bare", "why?", "because"), row("same", "T  0.", 9)
    )
    write_lines(tmp_path / "test.jsonl", *(row(f"t-{n}", f"t {n}", n) for n in range(8)))
    return tmp_path


def test_what_cannot_be_used_is_told_and_left_out(files: Path) -> None:
    found = task(files)
    assert {prompt.id for prompt in found.training} == {f"r-{n}" for n in range(5)}
    assert found.notes == (
        "train.jsonl line 6: not JSON: Expecting value at column 1; skipped",
        "train.jsonl line 8 (bare): no number in field 'answer'; skipped",
        "train.jsonl: 1 questions are also in test.jsonl; left out of training",
        "train.jsonl: 1 of 6 prompts exceed task.max_prompt_tokens = 256; left out",
    )
    assert found.max_prompt_tokens <= 256


def test_bad_rows_can_be_refused_all_at_once(files: Path) -> None:
    with pytest.raises(UsageError) as refused:
        task(files, bad_rows="refuse")
    assert str(refused.value).splitlines() == [
        f"{files / 'train.jsonl'}: 2 of 9 rows cannot be used (task.bad_rows is 'refuse'):",
        "  line 6: not JSON: Expecting value at column 1",
        "  line 8 (bare): no number in field 'answer'",
    ]


def test_prompts_follow_the_seed_and_held_out_ones_do_not(files: Path) -> None:
    one, two = task(files, seed=1), task(files, seed=2)
    ids = [one.prompt(index).id for index in range(10)]
    assert sorted(id.split("@")[0] for id in ids[:5]) == [f"r-{n}" for n in range(5)]
    assert [id.split("@")[1] for id in ids] == [str(index) for index in range(10)]
    assert ids != [two.prompt(index).id for index in range(10)]
    assert [prompt.id for prompt in one.held_out(3)] == [prompt.id for prompt in two.held_out(8)][:3]
    assert len(one.held_out(100)) == 8


def test_the_question_is_asked_in_the_form_that_the_hash_names(files: Path) -> None:
    plain = task(files, instruction="Be brief.")
    prompt = plain.held_out(1)[0]
    number = prompt.id.removeprefix("t-")
    assert prompt.text == f"<|im_start|>user\nt {number}\n\nBe brief.<|im_end|>\n<|im_start|>assistant\n"
    led = task(files, instruction="", system="You count.")
    expected = f"<|im_start|>system\nYou count.<|im_end|>\n<|im_start|>user\nt {number}<|im_end|>\n<|im_start|>assistant\n"
    assert led.held_out(1)[0].text == expected
    hashes = [task(files, **settings).format_hash for settings in ({}, {"seed": 5}, {"instruction": ""}, {"system": "You count."})]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_worked_examples_stand_before_the_question_and_are_not_trained_on(files: Path) -> None:
    solved = [row(f"s-{n}", f"sum {n}", n, solution=f"It is <<0+{n}>>{n}.\n#### {n}") for n in range(3)]
    write_lines(files / "train.jsonl", row("unsolved", "no solution", 1), *solved)
    found = task(files, name="gsm8k", shots=2, instruction="Go.", max_prompt_tokens=500)
    assert sorted(prompt.id for prompt in found.training) == ["s-2", "unsolved"]
    assert found.prompt(0).text.startswith(
        "<|im_start|>user\nsum 0\n\nGo.<|im_end|>\n<|im_start|>assistant\nIt is 0.\n#### 0<|im_end|>\n<|im_start|>user\nsum 1"
    )
    assert found.format_hash != task(files, name="gsm8k", instruction="Go.").format_hash
    with pytest.raises(UsageError, match=r"task\.shots = 4: .* has 3 rows with a solution to show; lower it"):
        task(files, name="gsm8k", shots=4)


def test_the_grader_follows_the_configuration(files: Path) -> None:
    found = task(files, format_weight=0.5)
    prompt = next(prompt for prompt in found.training if prompt.id == "r-3")
    assert found.grade(prompt, "#### 3.0").reward == 1.5
    assert found.grade(prompt, "3").reward == 1.0
    exact = task(files, grader="exact", answer_field="question")
    prompt = exact.held_out(1)[0]
    assert exact.grade(prompt, f" {prompt.answer} ").kind is OutcomeKind.VALUE


def test_each_prompt_is_graded_by_its_own_row(files: Path) -> None:
    """Row ids of both files may be equal: what a run adds to training prompts tells them apart."""
    write_lines(files / "train.jsonl", row("a", "one", 1), row("a@2", "two", 2))
    write_lines(files / "test.jsonl", row("a", "three", 3), row("a@1", "four", 4))
    found = task(files)
    for prompt in [found.prompt(index) for index in range(4)] + found.held_out(2):
        wanted = {"one": 1, "two": 2, "three": 3, "four": 4}[prompt.text.split("\n")[1]]
        assert found.grade(prompt, f"#### {wanted}").reward == 1.0, prompt.id


def test_a_function_of_the_user_judges(files: Path) -> None:
    (files / "judge.py").write_text(
        "def reward(row, response):\n"
        "    if response == 'crash':\n        raise KeyError('no such thing')\n"
        "    row['answer'] = 'changed'\n    return {'nan': float('nan'), 'text': 'much'}.get(response, len(response) * row['weight'])\n"
    )
    write_lines(files / "train.jsonl", json.dumps({"id": "free", "question": "say something", "weight": 0.25}))
    write_lines(files / "test.jsonl", json.dumps({"id": "other", "question": "say more", "weight": 2}))
    found = task(files, reward=f"{files / 'judge.py'}:reward")
    prompt = found.prompt(0)
    outcomes = [found.grade(prompt, reply) for reply in ("four", "", "crash", "nan", "text")]
    assert [(outcome.kind, outcome.reward) for outcome in outcomes] == [
        (OutcomeKind.VALUE, 1.0),
        (OutcomeKind.WRONG, 0.0),
        (OutcomeKind.INFRASTRUCTURE, None),
        (OutcomeKind.INFRASTRUCTURE, None),
        (OutcomeKind.INFRASTRUCTURE, None),
    ]
    assert outcomes[2].detail == "the reward function raised KeyError: 'no such thing'"
    assert outcomes[3].detail == "the reward function returned nan"
    assert outcomes[4].detail == "the reward function returned str 'much', not a number"
    assert found.item(prompt).row.fields.get("answer") is None
    assert found.grade(found.held_out(1)[0], "ab").reward == 4.0
    assert found.failures.counts[OutcomeKind.INFRASTRUCTURE] == 3


def test_a_grader_that_never_worked_ends_the_run(files: Path) -> None:
    (files / "judge.py").write_text("def reward(row, response):\n    return 1 / len(response)\n")
    settings = {"reward": f"{files / 'judge.py'}:reward"}
    found = task(files, **settings)
    prompt = found.prompt(0)
    for _ in range(19):
        assert found.grade(prompt, "").kind is OutcomeKind.INFRASTRUCTURE
    with pytest.raises(RunFailed, match=r"judge\.py:reward' failed on each of its first 20 answers; the last: .* division by zero"):
        found.grade(prompt, "")
    saved = task(files, **settings)
    assert saved.grade(prompt, "x").reward == 1.0
    assert [saved.grade(prompt, "").kind for _ in range(25)] == [OutcomeKind.INFRASTRUCTURE] * 25


def test_test_rows_do_not_leak_into_training(files: Path) -> None:
    shared = "a farmer counts his sheep every evening and writes the number on the wall of the barn"
    write_lines(files / "test.jsonl", row("t", f"{shared}. How many are there?", 1))
    train = [row("whole", f"{shared}:  how many are there".upper(), 1), row("part", f"Once {shared}, again.", 2), row("other", "q", 3)]
    write_lines(files / "train.jsonl", *train)
    assert [prompt.id for prompt in task(files, decontaminate_words=0).training] == ["part", "other"]
    found = task(files)
    assert [prompt.id for prompt in found.training] == ["other"]
    assert found.notes == (
        "train.jsonl: 1 questions are also in test.jsonl; left out of training",
        "train.jsonl: 1 questions share 13 words in a row with one of test.jsonl; left out of training",
    )
    assert [prompt.id for prompt in found.reserved] == ["t"]


def test_the_curriculum_orders_the_first_pass_by_measured_rates(files: Path) -> None:
    rates = {"r-0": 0.5, "r-1": 0.0, "r-2": 1.0, "r-3": 0.25, "unknown": 1.0}
    write_lines(files / "rates.jsonl", *(json.dumps({"id": id, "pass_rate": rate, "n": 8}) for id, rate in rates.items()))
    settings = {"pass_rates": str(files / "rates.jsonl")}
    easy, hard = (task(files, curriculum=order, **settings) for order in ("easy_first", "hard_first"))
    assert [easy.prompt(index).id for index in range(5)] == ["r-2@0", "r-0@1", "r-3@2", "r-1@3", "r-4@4"]
    assert [hard.prompt(index).id for index in range(5)] == ["r-1@0", "r-3@1", "r-0@2", "r-2@3", "r-4@4"]
    plain = task(files)
    assert [easy.prompt(index).id for index in range(5, 20)] == [plain.prompt(index).id for index in range(5, 20)]
    write_lines(files / "rates.jsonl", json.dumps({"id": "unknown", "pass_rate": 1.0}))
    with pytest.raises(UsageError, match=r"task\.pass_rates = .*: none of its 1 ids is a row of"):
        task(files, curriculum="easy_first", **settings)


def test_hopeless_data_is_refused_with_the_reason(files: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.jsonl: no row is left to use; 6 of 6 prompts exceed task\.max_prompt_tokens = 3"):
        task(files, max_prompt_tokens=3)
    with pytest.raises(
        UsageError, match=r"(?s)train\.jsonl: no usable row for task\.name = 'custom'.*: 9 bad rows:\n  line 1 \(r-0\): no field"
    ):
        task(files, answer_field="unknown")
    with pytest.raises(UsageError, match=r"task\.name = 'gsm9k': no such task in the catalogue; did you mean gsm8k"):
        task(files, name="gsm9k")
    with pytest.raises(UsageError, match="does not exist"):
        task(files, test=str(files / "none.jsonl"))


def test_the_training_file_is_no_test(files: Path) -> None:
    (files / "copy.jsonl").write_bytes((files / "test.jsonl").read_bytes())
    with pytest.raises(UsageError, match="they hold the same rows; give different files"):
        task(files, train=str(files / "test.jsonl"))
    with pytest.raises(UsageError, match="they hold the same rows; give different files"):
        task(files, train=str(files / "copy.jsonl"))
    with pytest.raises(UsageError, match=r"hub:a/b:train is also in hub:a/b:train"):
        task(files, train="hub:a/b:train", test="hub:a/b:train")
    write_lines(files / "copy.jsonl", row("t-1", "T 1", 1), row("t-2", "t 2?", 2))
    with pytest.raises(UsageError, match=r"every question of copy\.jsonl is also in test\.jsonl"):
        task(files, train=str(files / "copy.jsonl"))


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
    built = build_task(config, byte_tokenizer(), chatml())
    assert isinstance(built, Rows)
    assert built.name == "rows test"
    with pytest.raises(ValueError, match="needs the tokenizer"):
        build_task(config)
    countdown = RunConfig.model_validate(
        {"model": model, "task": {"kind": "countdown", "size": 20, "held_out": 0.5, "max_prompt_tokens": 500}}
    )
    assert build_task(countdown, byte_tokenizer(), chatml()).name == "countdown"
    assert build_task(RunConfig()).name == "3-digit addition"
