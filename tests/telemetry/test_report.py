"""The report page: self-contained, whole, without errors in a real browser; also for runs that died early or are strange."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from slipstream.core.errors import UsageError
from slipstream.telemetry.report import page, write_report
from slipstream.telemetry.run_directory import RunDirectory
from tests.telemetry.browser import rendered
from tests.telemetry.synthetic import Shape, make_run

CLICK_EVERYTHING = """
<script>
for (const button of document.querySelectorAll("button")) button.click();
for (const select of document.querySelectorAll("select")) {
  for (const option of select.options) { select.value = option.value; select.dispatchEvent(new Event("change")); }
}
const find = document.querySelector("input[type=search]");
if (find) { find.value = "zzz"; find.dispatchEvent(new Event("input")); }
for (const target of document.querySelectorAll("canvas, svg, rect")) {
  const box = target.getBoundingClientRect();
  for (let x = 0; x < box.width; x += 40) for (let y = 0; y < box.height; y += 25) {
    target.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
  }
  target.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, cancelable: true }));
  target.dispatchEvent(new PointerEvent("pointerleave"));
}
document.documentElement.dataset.clicked = "true";
</script>
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "run", Shape(steps=24, rollouts_per_step=64, slots=8)).path


@pytest.fixture(scope="module")
def sync_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "sync", Shape(steps=12, rollouts_per_step=64, slots=8, mode="sync", eta=0)).path


def embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def assert_whole(dom: str) -> None:
    root = re.search(r"<html[^>]*>", dom)
    assert root is not None
    assert "data-errors" not in root.group(0), root.group(0)
    assert 'data-ready="true"' in root.group(0)


def visible(dom: str) -> str:
    """The page's text without scripts and tags."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", dom, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", bare).split())


def test_the_page_is_one_file_that_asks_nobody(run: Path, tmp_path: Path) -> None:
    text = write_report(run, tmp_path / "out.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)""", text)


def test_default_place_and_data(run: Path) -> None:
    path = write_report(run)
    assert path == run / "report.html"
    data = embedded(path)
    assert data["title"]["steps"] == 24
    assert data["title"]["finished"] is True
    assert data["lanes"]["rollouts"] == 24 * 64
    assert sum(data["ages"]["tokens"]) == sum(data["metrics"]["tokens"])
    assert max(data["ages"]["lag"]) <= data["ages"]["bound"] == 2
    assert {sample["step"] for sample in data["samples"]} >= {1, 24}


def test_a_browser_draws_it_without_errors(run: Path, tmp_path: Path) -> None:
    path = write_report(run, tmp_path / "out.html")
    dom = rendered(path)
    assert_whole(dom)
    text = visible(dom)
    for words in (
        "quickstart",
        "inflight, η = 2",
        "Held-out greedy",
        "bound η = 2",
        "Age of trained tokens",
        "policy version",
        "step 24 (last)",
        "aside, not trained",
        "kept from earlier turns",
        "Importance ratio at equal weights, by sampler",
        "its mean importance ratio is 0.951",
    ):
        assert words in text
    assert dom.count("<svg") >= 15


def test_it_is_drawn_without_waiting_for_a_frame(run: Path, tmp_path: Path) -> None:
    """A busy machine may give a headless page none before it is looked at."""
    page = write_report(run, tmp_path / "out.html").read_text()
    frameless = tmp_path / "frameless.html"
    frameless.write_text(page.replace('"use strict";', '"use strict";\nwindow.requestAnimationFrame = () => 0;', 1))
    assert frameless.read_text() != page
    assert rendered(frameless).count("<svg") >= 15


def test_every_control_works_in_both_schemes(run: Path, sync_run: Path, tmp_path: Path) -> None:
    path = write_report(run, tmp_path / "out.html", compare=sync_run)
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", CLICK_EVERYTHING + "</body>"), encoding="utf-8")
    for scheme in ("0", "1"):
        dom = rendered(path, f"--blink-settings=preferredColorScheme={scheme}")
        assert_whole(dom)
        assert 'data-clicked="true"' in dom
        assert "none of the samples in this file fits" in dom
        assert "inflight, η = 2 beside synchronous" in visible(dom)


def test_a_run_that_has_only_its_configuration(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", '[run]\nrecipe = "quickstart"\n')
    dom = rendered(write_report(tmp_path / "run"))
    assert_whole(dom)
    text = visible(dom)
    for words in (
        "no evaluation yet",
        "no learner step in this run yet",
        "No rollout was finished",
        "no token trained yet",
        "unfinished: 0 steps",
    ):
        assert words in text


@pytest.mark.parametrize("lost", ["eval.jsonl", "events.jsonl", "metrics.jsonl", "rollouts"])
def test_a_run_that_lacks_one_part(run: Path, tmp_path: Path, lost: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    if (copy / lost).is_dir():
        shutil.rmtree(copy / lost)
    else:
        (copy / lost).unlink()
    assert_whole(rendered(write_report(copy)))


def test_a_run_killed_in_its_first_step_with_a_torn_row_and_a_damaged_configuration(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Shape(steps=1, rollouts_per_step=8, slots=2))
    run.metrics.write_text('{"step": 1, "reward_mean": 0.5}\n{"step": 2, "rew')
    run.config.write_text("[run\n")
    dom = rendered(write_report(run.path))
    assert_whole(dom)
    assert "unfinished" not in visible(dom)


def test_no_text_of_a_rollout_can_break_out_of_the_data() -> None:
    hostile = json.dumps({"x": "</script><script>alert(1)</script><!--"})
    text = page(hostile)
    assert "alert(1)</script>" not in text
    assert text.count("<script") == page("{}").count("<script")


def test_a_decoder_makes_the_cuts_exact(run: Path, tmp_path: Path) -> None:
    def decode(ids) -> str:
        return "".join(chr(token) for token in ids if token)

    data = embedded(write_report(run, tmp_path / "out.html", decode=decode))
    mixed = [sample for sample in data["samples"] if len(sample["segments"]) > 1]
    assert mixed
    assert not any(sample["approximate"] for sample in data["samples"])


def test_no_run_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        write_report(tmp_path)
