"""`slipstream eval` on real files and a real, tiny model: scores and files, runs' checkpoints, comparing, wrong calls."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import app
from slipstream.config.load import load_config
from slipstream.core.errors import ConfigError, SlipstreamError, UsageError
from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.build import build_task
from slipstream.envs.rows import Rows
from slipstream.loop.evaluate import Draw
from slipstream.loop.pass_at_k import pass_at_k
from slipstream.runtime.eval_plan import evaluation_plan
from tests.runtime.runs import TINY
from tests.runtime.runs import rows as read_rows
from tests.runtime.serving import write_tiny_model

QUESTIONS = [{"id": f"q{number}", "question": f"What is {number}+1?", "answer": str(number + 1)} for number in range(6)]
SAMPLED = ("--k", "2,4", "--n", "4", "--seed", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("eval")
    write_tiny_model(found / "model")
    (found / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return found


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


def call(*arguments: str) -> None:
    app(["eval", *arguments], standalone_mode=False)


@pytest.fixture
def evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """`slipstream eval --json` of the tiny model on the rows."""

    def run(*options: str) -> dict[str, Any]:
        asked = ("--model", str(folder / "model"), "--task", "rows", "--data", str(folder / "rows.jsonl"), "--set", "task.instruction=")
        capsys.readouterr()
        call(*asked, "--max-tokens", "8", "--slots", "4", "--quiet", "--json", *options)
        return json.loads(capsys.readouterr().out)

    return run


def test_scores_are_those_of_the_answers_written(folder: Path, evaluate: Callable[..., dict[str, Any]]) -> None:
    out = folder / "answers.jsonl"
    result = evaluate(*SAMPLED, "--out", str(out))
    answers = read_rows(out)
    assert [answer["sample"] for answer in answers] == [0, 1, 2, 3] * 6
    assert {answer["prompt"] for answer in answers} == {f"u:{row['question']} a:" for row in QUESTIONS}
    right: dict[str, int] = dict.fromkeys([answer["id"] for answer in answers], 0)
    for answer in answers:
        assert len(answer["completion_ids"]) <= 8
        right[answer["id"]] += answer["reward"] == 1.0
    assert result["tallies"] == [[id, 4, count] for id, count in right.items()]
    for k in (1, 2, 4):
        expected = sum(pass_at_k(4, count, k) for count in right.values()) / 6
        low, high = result["ci" if k == 1 else f"ci@{k}"]
        assert result[f"pass@{k}"] == pytest.approx(expected)
        assert 0 <= low <= expected <= high <= 1
        assert high - low > 0.1
    assert (result["task"], result["n"], result["problems"], result["drawn"], result["temperature"]) == ("rows rows", 6, 6, 4, 1.0)
    assert sum(result["outcomes"].values()) == 24
    assert len(result["weights"]) == len(result["format_hash"]) == 16


def test_the_same_call_gives_the_same_result_and_other_draws_others(evaluate: Callable[..., dict[str, Any]]) -> None:
    def kept(result: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in result.items() if name != "seconds"}

    one = evaluate(*SAMPLED)
    assert kept(evaluate(*SAMPLED)) == kept(one)
    greedy = evaluate()
    assert (greedy["temperature"], greedy["drawn"]) == (0.0, 1)
    assert kept(evaluate("--greedy")) == kept(greedy)
    assert greedy["format_hash"] != one["format_hash"]
    assert (greedy["weights"], greedy["problems_hash"]) == (one["weights"], one["problems_hash"])
    few = evaluate("--limit", "2")
    assert few["tallies"] == greedy["tallies"][:2]
    assert few["problems_hash"] != greedy["problems_hash"]


def test_two_results_are_compared_or_refused(
    tmp_path: Path, evaluate: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json", "c.json")]
    for path, options in zip(
        paths, (SAMPLED, ("--k", "2,4", "--seed", "4"), ("--k", "4", "--temperature", "0.5", "--limit", "3")), strict=True
    ):
        Path(path).write_text(json.dumps(evaluate(*options)))
    call("--compare", paths[0], paths[1], "--json")
    found = json.loads(capsys.readouterr().out)
    assert [difference["k"] for difference in found["differences"]] == [1, 2, 4]
    assert all(low < value < high for value, (low, high) in ((line["value"], line["ci"]) for line in found["differences"]))
    call("--compare", paths[0], paths[1])
    assert "better/worse/same" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"draws\.0\.temperature: 1\.0 against 0\.5\n  problems: 3 are only in the first"):
        call("--compare", paths[0], paths[2])
    Path(paths[2]).write_text("[]")
    with pytest.raises(UsageError, match="is no result of"):
        call("--compare", paths[0], paths[2])


def test_verdicts_that_failed_are_told_and_left_out(
    evaluate: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def grade(self: Rows, prompt: Any, text: str) -> Outcome:
        if prompt.id == "q1":
            return Outcome(kind=OutcomeKind.TIMEOUT, reward=None)
        return Outcome(kind=OutcomeKind.VALUE, reward=1.0)

    monkeypatch.setattr(Rows, "grade", grade)
    result = evaluate()
    assert (result["pass@1"], result["n"], result["problems"], result["outcomes"]) == (1.0, 5, 6, {"value": 5, "timeout": 1})
    assert ["q1", 0, 0] in result["tallies"]
    told = " ".join(result["warnings"])
    assert "1 of 6 answers have no verdict (1 timeouts)" in told
    assert "pass@1 is over 5 of 6 problems" in told
    asked = ("--model", str(folder / "model"), "--task", "rows", "--data", str(folder / "rows.jsonl"), "--set", "task.instruction=")
    call(*asked, "--max-tokens", "8", "--slots", "4")
    shown = capsys.readouterr()
    assert "100.0 %" in shown.out
    assert "warning: 1 of 6 answers have no verdict" in shown.err
    assert "6/6 answers" in shown.err


def test_a_checkpoint_scores_as_its_run_said(undisturbed: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = undisturbed("lagged1")
    (said,) = (row for row in read_rows(run / "eval.jsonl") if row["step"] == 12)
    call("--run", str(run), "--step", "12", "--limit", "16", "--quiet", "--json")
    found = json.loads(capsys.readouterr().out)
    shared = ("step", "task", "n", "pass@1", "ci", "outcomes", "format_hash", "completion_tokens", "style_share", "format_ok")
    assert {name: found[name] for name in shared} == {name: said[name] for name in shared}
    with pytest.raises(UsageError, match="no checkpoint of step 5"):
        call("--run", str(run), "--step", "5")


def test_a_run_may_draw_samples_beside_the_greedy_answers() -> None:
    plain = load_config(str(TINY))
    sampled = load_config(str(TINY), ["evaluation.samples=8", "evaluation.k=[2,8]", "evaluation.temperature=0.5", "run.seed=3"])
    one, other = (evaluation_plan(config, build_task(config)) for config in (plain, sampled))
    assert (one.greedy, one.sampled, one.k) == (Draw(max_new_tokens=12), None, ())
    assert (other.greedy, other.k) == (one.greedy, (2, 8))
    assert other.sampled == Draw(samples=8, temperature=0.5, max_new_tokens=12)
    assert one.format_hash != other.format_hash


ROWS = ("--task", "rows", "--data", "ROWS")
BAD = [
    ((), "give one of --model DIR"),
    (("--model", "MODEL"), "--task is missing"),
    (("--model", "MODEL", "--run", "RUN", *ROWS), "give one of --model DIR"),
    (("--model", "MODEL", "--step", "3", *ROWS), "--step 3: there is no --run"),
    (("--model", "MODEL", *ROWS, "--k", "8", "--n", "4"), "--k 8 with --n 4: pass@8 needs at least 8 answers"),
    (("--model", "MODEL", *ROWS, "--k", "0,-1"), "--k -1: must be at least 1; --k 0: must be at least 1"),
    (("--model", "MODEL", *ROWS, "--k", "1;8"), "whole numbers with commas"),
    (("--model", "MODEL", *ROWS, "--n", "4", "--greedy"), "--n 4 with greedy answers: they are all the same"),
    (("--model", "MODEL", *ROWS, "--greedy", "--temperature", "0.5"), "--greedy with --temperature 0.5"),
    (("--model", "MODEL", *ROWS, "--seed", "4"), "--seed 4 has no effect on greedy answers"),
    (("--model", "MODEL", *ROWS, "--temperature", "nan"), "--temperature nan: must be at least 0"),
    (("--model", "MODEL", *ROWS, "--limit", "0", "--slots", "0"), "--limit 0: must be at least 1; --slots 0: must be at least 1"),
    (("--model", "MODEL", *ROWS, "--max-tokens", "600"), "prompts"),
    (("--model", "MODEL", *ROWS, "--out", "absent/out.jsonl"), "there is no directory"),
    (("--model", "MODEL", "--task", "rows"), "--task rows needs --data F"),
    (("--model", "MODEL", "--task", "gsm9k", "--data", "ROWS"), "gsm8k"),
    (("--model", "MODEL", "--task", "arithmetic"), "has an alphabet of its own"),
    (("--model", "MODEL", "--task", "rows", "--data", "absent.jsonl"), "absent.jsonl"),
    (("--model", "absent", *ROWS), "no model directory"),
    (("--run", "absent"), "is not a directory"),
    (("--compare", "absent.json", "absent.json"), "absent.json cannot be read"),
    (("--compare", "absent.json", "absent.json", "--task", "rows"), "--compare reads two saved results"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda value: None if isinstance(value, str) else " ".join(value))
def test_a_wrong_call_is_told(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    places = {"MODEL": str(folder / "model"), "ROWS": str(folder / "rows.jsonl")}
    with pytest.raises(SlipstreamError) as caught:
        call(*(places.get(argument, argument) for argument in arguments))
    assert caught.value.exit_code == 2
    assert words in str(caught.value)


def test_all_wrong_settings_of_a_task_are_told(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        call("--model", str(folder / "model"), "--task", "sums", "--set", "task.digits=7", "--set", "task.digitz=1", "--set", "run.seed=1")
    assert sorted(problem.field for problem in caught.value.problems) == ["run.seed", "task.digits", "task.digitz"]
