"""A failure of a run: the cause in one message, the traceback in the log, exit code 1 by its class."""

from pathlib import Path

import pytest

from slipstream.core.errors import RunFailed, UsageError
from slipstream.runtime.failures import failures_logged


def test_an_unexpected_error_becomes_a_failed_run_with_a_log(tmp_path: Path) -> None:
    log = tmp_path / "supervisor.log"
    with pytest.raises(RunFailed, match=r"ZeroDivisionError: [a-z ]*\nlog: .*supervisor\.log") as caught, failures_logged(log):
        _ = 1 // 0
    assert caught.value.exit_code == 1
    assert "Traceback" in log.read_text()
    assert "1 // 0" in log.read_text()


def test_a_known_cause_keeps_its_words(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"^the disk is gone\nlog: "), failures_logged(tmp_path / "supervisor.log"):
        raise RunFailed("the disk is gone")


def test_a_log_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the disk is gone"), failures_logged(tmp_path / "absent" / "supervisor.log"):
        raise RunFailed("the disk is gone")


def test_usage_errors_pass_untouched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no such recipe$"), failures_logged(tmp_path / "supervisor.log"):
        raise UsageError("no such recipe")
    assert not (tmp_path / "supervisor.log").exists()
