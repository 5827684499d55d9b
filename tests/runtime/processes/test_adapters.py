"""A run in processes whose policy is a frozen base with adapters: only these go over the wire, and the end is that of an embedded run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.processes.supervised import Supervised
from tests.runtime.processes.test_faults import assert_same_end
from tests.runtime.runs import MODES, tiny

ADAPTERS = (
    *MODES["lagged1"],
    "model.lora.rank=4",
    "model.lora.alpha=8",
    "warm_start.stages=[{steps=200,worked_share=1.0},{steps=20,worked_share=0.2}]",  # rewards, so that they change
)

pytestmark = pytest.mark.slow


def test_adapters_go_over_the_wire_and_the_weights_are_those_of_an_embedded_run(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    tiny(tmp_path / "embedded", ADAPTERS)
    one = supervised(tmp_path / "run", ADAPTERS)
    one.finish()
    assert_same_end(tmp_path / "run", tmp_path / "embedded")
    served = {row["version"]: row["bytes"] for row in one.events("weights_served")}
    assert sorted(served) == list(range(13))
    later = [row for row in one.events("weights_fetched") if row["version"]]
    sent = [row.get("chunk_bytes", 0) + row.get("patch_bytes", 0) for row in later]  # none where a step without a signal changed nothing
    assert max(sent) > 0
    for row, size in zip(later, sent, strict=True):
        assert size < served[row["version"]] / 2 < row["reused_bytes"]  # the base was there
