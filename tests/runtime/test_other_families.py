"""A run from a model directory of another family: a mixture of experts, whose chat template does not keep to token ids."""

import json
from pathlib import Path

import pytest

from slipstream.text.tokenizer import character_tokenizer
from tests.goldens.read import write_directory
from tests.runtime.runs import rows, run, sets

ALPHABET = "\n" + "".join(chr(code) for code in range(32, 125))  # 95 ids of 96 rows of the embedding
TRIMMING = "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] | trim + ' ' }}{% endfor %}a:"
SETTINGS = (
    *("run.steps=2", "batch.prompts_per_step=2", "batch.group_size=2", "batch.row_tokens=64", "sampling.max_new_tokens=8"),
    *("sampling.slots=4", "evaluation.prompts=2", "sampling.precision=int8", "model.learner_layers=scan", "model.learner_precision=bf16"),
    "optimizer.warmup_steps=0",
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    write_directory("qwen3_moe", model)
    character_tokenizer(ALPHABET).save(model)
    (model / "chat_template.jinja").write_text(TRIMMING)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    for name, added in (("train", 1), ("test", 2)):
        questions = [{"id": f"{name}{a}", "question": f"{a}+{added}", "answer": str(a + added)} for a in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    task = {"kind": "rows", "train": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl"), "instruction": "Sum?"}
    lines = ["[model.source]", 'kind = "pretrained"', f"path = {json.dumps(str(model))}", "[task]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in task.items()]
    path = tmp_path / "recipe.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_a_mixture_of_experts_trains_and_its_template_is_reported(recipe: Path, tmp_path: Path) -> None:
    errors = run(tmp_path / "runs" / "moe", str(recipe), *sets(SETTINGS))
    metrics = rows(tmp_path / "runs" / "moe" / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2]
    faults = [row["detail"] for row in rows(tmp_path / "runs" / "moe" / "events.jsonl") if row["kind"] == "template_fault"]
    assert any(fault.startswith("trimmed:") for fault in faults)
    assert "chat template, trimmed" in errors
