"""`slipstream bench chaos` names a mode that there is not; what it does is tested in runtime/chaos and runtime/processes."""

import pytest

from slipstream.cli.bench.chaos import SETTINGS, _mode
from slipstream.config.load import load_config
from slipstream.core.errors import UsageError


@pytest.mark.parametrize(("mode", "expected"), [("sync", ("sync", 0)), ("lagged1", ("lagged", 1)), ("inflight12", ("inflight", 12))])
def test_modes_by_name(mode: str, expected: tuple[str, int]) -> None:
    assert _mode(mode) == expected
    kind, eta = expected
    assert load_config("quickstart", [*SETTINGS, f"mode.kind={kind}", f"mode.eta={eta}"]).batch.prompts_per_step == 4


@pytest.mark.parametrize("mode", ["", "lagged", "sync1", "1", "inflight-2", "ray2"])
def test_a_mode_that_is_none_is_refused(mode: str) -> None:
    with pytest.raises(UsageError, match=f"--mode {mode}: give sync, laggedK or inflightETA"):
        _mode(mode)
