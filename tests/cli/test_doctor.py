"""`slipstream doctor` finds a sound installation sound, and names what is not: each kind of check sees a fault planted for it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from slipstream.cli.main import app
from slipstream.core.errors import UsageError
from slipstream.core.records import Outcome, OutcomeKind
from slipstream.engine import sampling
from slipstream.runtime import devices
from slipstream.runtime.doctor import doctor, isolation, model, verifiers
from slipstream.runtime.doctor.line import Grade, Line, examined

SLOW = ("conformance_lines", "exactness_lines", "compiled_lines", "round_trip_lines")


@pytest.fixture(autouse=True)
def no_compile_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "configure_jax", lambda: None)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Of the checks that take long, leave these."""
    monkeypatch.setattr(verifiers, "verifier_lines", list)
    monkeypatch.setattr(isolation, "isolation_lines", list)
    for name in SLOW:
        if name not in names:
            monkeypatch.setattr(model, name, lambda _: [])


def examine(code: int) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of --json by part and name."""
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    assert found["ok"] == (code == 0)
    assert all(row["fix"] for row in found["lines"] if row["grade"] != "ok")
    return {(row["part"], row["name"]): row for row in found["lines"]}


@pytest.mark.slow
def test_a_sound_machine_is_told_as_a_table_with_its_bits_counted() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].endswith("0 failed")
    for words in ("barriers", "13 of 13 checks passed", "canaries", "written and read", "92 of 92 log-probs have the learner's bits"):
        assert words in " ".join(result.stdout.split())


def test_a_sampler_that_stores_the_likeliest_token_s_log_prob_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "select", lambda log_probs, token_ids: log_probs.max(axis=-1))
    monkeypatch.setattr(model, "FRESH", replace(model.FRESH, context=65))  # makes it another program
    only(monkeypatch, "conformance_lines")
    found = examine(code=1)
    told = found["sampler", "log-probs at temperature 1"]
    assert told["grade"] == "failed"
    assert "stored log-probs differ from the learner's" in told["detail"]


def test_weights_that_come_back_changed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write = model.write_model
    monkeypatch.setattr(
        model, "write_model", lambda path, spec, params, **rest: write(path, spec, jax.tree.map(lambda leaf: leaf * 1.001, params), **rest)
    )
    only(monkeypatch, "round_trip_lines")
    assert "read with" in examine(code=1)["weights", "round trip"]["detail"]


def test_a_grader_that_rewards_everything_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    generous = verifiers.Canaries(grade=lambda _: Outcome(kind=OutcomeKind.VALUE, reward=1.0), right="yes", wrong=("no",))
    monkeypatch.setitem(verifiers.GRADERS, "exact", lambda: generous)
    only(monkeypatch)
    found = examine(code=1)
    assert found["verifiers", "exact"]["detail"] == "'no' must be wrong, got value (); '' must be wrong, got value ()"
    assert found["verifiers", "final_number"]["grade"] == "ok"


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Line]:
        raise OSError("no such device")

    (line,) = examined("machine", "devices", broken)
    assert (line.grade, line.detail) == (Grade.FAILED, "OSError: no such device")
    only(monkeypatch)
    monkeypatch.setattr(doctor.machine, "machine_lines", broken)
    assert ("verifiers", "exact") in examine(code=1)


def test_what_is_no_model_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert "no config.json" in str(result.exception)
