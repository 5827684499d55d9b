"""An agent of two turns through whole runs: a small model learns from it, pinned runs repeat to the bit, evaluations ask it too."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from slipstream.runtime.chaos.promises import final_weights
from tests.runtime.runs import rows, run, sets
from tests.runtime.serving import write_tiny_model

pytestmark = pytest.mark.slow

AGENT = '''
from openai import AsyncOpenAI

VOWELS = set("aeiouAEIOU")

async def agent(base_url, api_key, prompt):
    """Two turns of six tokens; the reward is the share of letters up to "n" among what the model said."""
    messages = list(prompt["messages"])
    said = ""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        for turn in range(2):
            answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=6)
            text = answer.choices[0].message.content
            said += text
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
    return {"reward": sum("a" <= letter <= "n" for letter in said) / 12}
'''


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of the tiny model and the agent."""
    folder = tmp_path_factory.mktemp("agents")
    write_tiny_model(folder / "tiny")
    (folder / "agent.py").write_text(AGENT)
    for name, questions in (("train", "abcdefghijklmnop"), ("test", "qrst")):
        lines = [json.dumps({"id": letter, "question": f"{letter}?"}) for letter in questions]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "recipe.toml").write_text(f"""
[run]
steps = 16
[mode]
kind = "inflight"
eta = 1
[model.source]
kind = "pretrained"
path = {json.dumps(str(folder / "tiny"))}
[task]
kind = "rows"
train = {json.dumps(str(folder / "train.jsonl"))}
test = {json.dumps(str(folder / "test.jsonl"))}
agent = {json.dumps(f"{folder / 'agent.py'}:agent")}
instruction = ""
max_prompt_tokens = 24
episode_seconds = 120.0
[sampling]
max_new_tokens = 24
slots = 16
[batch]
prompts_per_step = 8
group_size = 8
row_tokens = 48
rows_per_microbatch = 16
[optimizer]
learning_rate = 5e-3
warmup_steps = 2
b2 = 0.99
[evaluation]
every_steps = 8
prompts = 4
[checkpoint]
every_steps = 8
""")
    return folder / "recipe.toml"


def test_a_small_model_learns_from_an_agent_of_two_turns(recipe: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", str(recipe))
    metrics, evaluations = rows(tmp_path / "run" / "metrics.jsonl"), rows(tmp_path / "run" / "eval.jsonl")
    first, last = (float(np.mean([row["reward_mean"] for row in metrics[some]])) for some in (slice(0, 3), slice(-3, None)))
    assert last > first + 0.2, (first, last)
    assert all(row["turns_mean"] > 1.5 for row in metrics)
    assert all(row["age_max"] <= 1 for row in metrics)
    assert {row["side_turns_mean"] for row in metrics} == {0.0}
    assert all(row["mismatch_abs_max"] < 1e-3 for row in metrics if row["mismatch_abs_max"] is not None)
    assert len(evaluations) >= 3
    assert all(row["outcomes"].get("infrastructure", 0) == 0 for row in evaluations)
    scores = slipstream("eval", "--run", str(tmp_path / "run"), "--n", "4", "--k", "1", "--temperature", "1", "--json")
    assert json.loads(scores)["pass@1"] >= 0


def test_pinned_runs_of_an_agent_repeat_and_replay(recipe: Path, tmp_path: Path) -> None:
    settings = sets(["run.steps=6", "mode.kind=lagged", "task.agents_at_once=24"])
    for name in ("one", "two"):
        run(tmp_path / name, str(recipe), *settings)
    columns = ["ticket_index", "sample_index", "prompt_ids", "completion_ids", "logprobs", "loss_mask", "reward"]

    def table(name: str) -> list[dict[str, object]]:
        return [
            row for path in sorted((tmp_path / name / "rollouts").iterdir()) for row in pq.read_table(path, columns=columns).to_pylist()
        ]

    assert table("one") == table("two")
    assert final_weights(tmp_path / "one") == final_weights(tmp_path / "two")
    slipstream("replay", str(tmp_path / "one"))  # each turn is drawn again from the ids before it


def slipstream(*arguments: str) -> str:
    """A command's standard output; it must succeed."""
    done = subprocess.run([sys.executable, "-m", "slipstream.cli.main", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
