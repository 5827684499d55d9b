"""`slipstream generate` and `score` on files: rows out for rows in, seeds that depend on nothing else, all bad lines told at once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.cli.main import app
from slipstream.core.clock import ManualClock
from slipstream.core.errors import UsageError
from slipstream.core.rng import stream_seed
from slipstream.runtime.countdown import Countdown
from tests.goldens.read import golden
from tests.runtime.serving import write_tiny_model

PROMPTS = [
    {"id": "text", "prompt": "Hello"},
    {"id": 2, "messages": [{"role": "user", "content": "Hello"}]},
    {"id": "ids", "prompt_ids": [5, 6, 7], "prompt": "not this one", "answer": "kept out"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(directory)
    return directory


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def generate(model: Path, folder: Path, rows: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    prompts, out = write(folder / "prompts.jsonl", rows), folder / "out.jsonl"
    call = ["generate", "--model", str(model), "--prompts", str(prompts), "--out", str(out), "--max-tokens", "16", "--quiet"]
    app([*call, *options], standalone_mode=False)
    return read(out)


def score(model: Path, folder: Path, rows: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    source, out = write(folder / "in.jsonl", rows), folder / "scores.jsonl"
    app(["score", "--model", str(model), "--in", str(source), "--out", str(out), "--quiet", *options], standalone_mode=False)
    return read(out)


def test_rows_come_in_the_order_of_the_prompts_with_all_their_fields(model: Path, tmp_path: Path) -> None:
    rows = generate(model, tmp_path, PROMPTS, "--n", "2", "--seed", "3")
    assert [(row["id"], row["sample"]) for row in rows] == [(prompt["id"], sample) for prompt in PROMPTS for sample in range(2)]
    assert rows[0]["prompt_ids"] == [42, 71, 78, 78, 81]
    assert rows[2]["prompt_ids"] == [87, 28, 42, 71, 78, 78, 81, 2, 67, 28]  # "u:Hello a:"
    assert rows[4]["prompt_ids"] == [5, 6, 7]
    for row in rows:
        assert list(row) == [
            *("id", "sample", "prompt_ids", "completion_ids", "logprobs", "versions", "finish_reason", "text", "seed"),
        ]
        assert len(row["completion_ids"]) == len(row["logprobs"]) == len(row["versions"]) <= 16
        assert row["finish_reason"] == ("stop" if row["completion_ids"][-1] == 0 else "length")
        assert row["seed"] == stream_seed(3, "generate", row["id"], row["sample"])
        assert set(row["versions"]) == {0}
    assert rows[0]["completion_ids"] != rows[1]["completion_ids"]


def test_a_sample_depends_on_its_prompt_and_seed_alone(model: Path, tmp_path: Path) -> None:
    together = generate(model, tmp_path, PROMPTS, "--n", "2")
    alone = [row for prompt in reversed(PROMPTS) for row in generate(model, tmp_path, [prompt], "--n", "2")]
    assert sorted(map(json.dumps, together)) == sorted(map(json.dumps, alone))
    other = generate(model, tmp_path, PROMPTS, "--n", "2", "--seed", "1")
    assert all(row["completion_ids"] != new["completion_ids"] for row, new in zip(together, other, strict=True))


def test_greedy_is_what_transformers_computed(model: Path, tmp_path: Path) -> None:
    known = golden("llama")
    prompt = known.tokens[: known.greedy_prompt].tolist()
    (row,) = generate(model, tmp_path, [{"id": 0, "prompt_ids": prompt}], "--temperature", "0")
    assert row["completion_ids"] == known.greedy[:16].tolist()


def test_scores_are_the_samples_log_probs_in_the_same_order(model: Path, tmp_path: Path) -> None:
    rows = generate(model, tmp_path, PROMPTS, "--n", "4")
    rows = [*rows[::-1], {"id": "none", "prompt_ids": [5], "completion_ids": [], "logprobs": []}]
    scored = score(model, tmp_path, rows)
    assert [found["id"] for found in scored] == [row["id"] for row in rows]
    for row, found in zip(rows, scored, strict=True):
        assert list(found) == ["id", "logprobs"]
        np.testing.assert_allclose(found["logprobs"], row["logprobs"], atol=1e-4)


def test_exact_scores_are_the_samples_log_probs_to_the_bit(model: Path, tmp_path: Path) -> None:
    samples = generate(model, tmp_path, PROMPTS, "--exact", "--n", "2", "--max-tokens", "20")
    scored = score(model, tmp_path, samples[::-1], "--exact")
    for row, sample in zip(scored, samples[::-1], strict=True):
        assert row["logprobs"] == sample["logprobs"]


def test_scores_at_a_temperature_are_those_of_samples_drawn_at_it(model: Path, tmp_path: Path) -> None:
    rows = generate(model, tmp_path, PROMPTS, "--temperature", "0.5")
    warm, plain = score(model, tmp_path, rows, "--temperature", "0.5"), score(model, tmp_path, rows)
    for row, found, other in zip(rows, warm, plain, strict=True):
        np.testing.assert_allclose(found["logprobs"], row["logprobs"], atol=1e-4)
        assert found["logprobs"] != other["logprobs"]


def test_scores_are_those_of_transformers(model: Path, tmp_path: Path) -> None:
    known = golden("llama")
    rows = [
        {"id": name, "prompt_ids": tokens[:4].tolist(), "completion_ids": tokens[4:].tolist()}
        for name, tokens in (("a", known.tokens), ("b", known.tokens_b), ("c", known.tokens_c))
    ]
    # Tokens 95 and up have no name in the tokenizer and are never drawn: their logits do not count.
    expected = {}
    for name, tokens, logits in (
        ("a", known.tokens, known.logits),
        ("b", known.tokens_b, known.logits_b),
        ("c", known.tokens_c, known.logits_c),
    ):
        known_logits = logits[:, :95].astype(np.float64)
        log_probs = known_logits - np.log(np.exp(known_logits).sum(axis=-1, keepdims=True))
        expected[name] = log_probs[np.arange(3, len(tokens) - 1), tokens[4:]]
    for found in score(model, tmp_path, rows):
        np.testing.assert_allclose(found["logprobs"], expected[found["id"]], atol=1e-4)


BAD = [
    ({"id": "a"}, "one of prompt_ids (a list), messages (a list) or prompt (a text) is needed"),
    ({"prompt": "a"}, '"id" is missing'),
    ({"id": 1.5, "prompt": "a"}, '"id" is 1.5'),
    ({"id": 1, "prompt": "é"}, "has no tokens for the text"),
    ({"id": 1, "prompt": ""}, "the prompt is empty"),
    ({"id": 1, "prompt_ids": []}, "prompt_ids is empty"),
    ({"id": 1, "prompt_ids": [3, 95]}, "prompt_ids[1] = 95 is outside the vocabulary; token ids are 0 to 94"),
    ({"id": 1, "prompt_ids": [True]}, "prompt_ids[0] = True is outside the vocabulary"),
    ({"id": 1, "messages": []}, "messages is empty"),
    ({"id": 1, "messages": ["Hello"]}, "messages[0] is no message"),
    ({"id": 1, "messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"id": 1, "prompt_ids": [5] * 500}, "500 prompt + 16 new tokens make 516; the model's context is 512 tokens"),
]


def test_every_bad_line_is_told_before_anything_is_drawn(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        generate(model, tmp_path, [PROMPTS[0], *(row for row, _ in BAD)])
    first, *lines = str(caught.value).splitlines()
    assert first.endswith(f"{len(BAD)} bad lines:")
    for number, (line, (_, words)) in enumerate(zip(lines, BAD, strict=True), 2):
        assert line.startswith(f"  line {number}: ")
        assert words in line
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_rows_to_score_are_told(model: Path, tmp_path: Path) -> None:
    rows = [{"id": 1}, {"id": 2, "prompt_ids": [], "completion_ids": [1]}, {"id": 3, "prompt_ids": [1], "completion_ids": [95]}]
    rows.append({"id": 4, "prompt_ids": [1] * 500, "completion_ids": [1] * 13})
    with pytest.raises(UsageError) as caught:
        score(model, tmp_path, rows)
    for words in (
        "line 1: prompt_ids is missing",
        "line 2: prompt_ids is empty",
        "line 3: completion_ids[0] = 95",
        "line 4: 500 prompt + 13",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1", "--top-p", "0", "--n", "0"], "--temperature -1.0: must be 0 (greedy) or a positive number; --top-p 0.0"),
        (["--top-k", "0"], "--top-k 0: must be -1 (all tokens) or at least 1"),
        (["--temperature", "nan"], "--temperature nan"),
        (["--out", "absent/out.jsonl"], "there is no directory"),
    ],
)
def test_settings_that_mean_nothing_are_told(model: Path, tmp_path: Path, options: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        generate(model, tmp_path, PROMPTS, *options)
    assert words in str(caught.value)


def test_files_that_hold_nothing_are_told(model: Path, tmp_path: Path) -> None:
    for content in ("", "\n\n"):
        (tmp_path / "empty.jsonl").write_text(content)
        call = ["score", "--model", str(model), "--in", str(tmp_path / "empty.jsonl"), "--out", str(tmp_path / "out")]
        with pytest.raises(UsageError, match="holds no rows"):
            app(call, standalone_mode=False)


def test_the_countdown_tells_speed_and_time_left() -> None:
    clock, lines = ManualClock(), []
    countdown = Countdown(10, "rows", clock, lines.append, terminal=False)
    for _ in range(5):
        clock.advance(4.0)
        countdown.add(1, 100)
    countdown.finish()
    assert lines == ["3/10 rows, 25 tokens/s, 28 s left\n", "5/10 rows, 25 tokens/s, 20 s left\n"]


def test_truncated_samples_keep_the_models_own_log_probs_too(model: Path, tmp_path: Path) -> None:
    rows = generate(model, tmp_path, PROMPTS, "--top-k", "3")
    for row, found in zip(rows, score(model, tmp_path, rows), strict=True):
        np.testing.assert_allclose(found["logprobs"], row["raw_logprobs"], atol=1e-4)
        assert max(row["logprobs"]) <= 0
        assert np.all(np.array(row["logprobs"]) >= np.array(row["raw_logprobs"]) - 1e-6)
