"""Caps of environments from the configuration to the ledger."""

import json
from pathlib import Path

import pytest

from slipstream.config.load import load_config
from slipstream.core.clock import ManualClock
from slipstream.core.errors import ConfigError, UsageError
from slipstream.envs.from_files import rows_plan
from slipstream.envs.rows import rows_task
from slipstream.ledger.ledger import Ledger
from slipstream.runtime.ledger_policy import environments, ledger_policy
from slipstream.runtime.shape import open_shape
from tests.envs.small_chat import byte_tokenizer, chatml, write_lines
from tests.runtime.runs import TINY


def rows_file(path: Path, first: int) -> Path:
    """Rows of two sources, turn by turn."""
    rows = [
        {"id": str(n), "question": f"twice {n}?", "answer": str(2 * n), "source": "web" if n % 2 else "book"}
        for n in range(first, first + 20)
    ]
    write_lines(path, *map(json.dumps, rows))
    return path


def test_rows_count_by_their_field_and_no_more_are_drawn_than_the_cap(tmp_path: Path) -> None:
    files = [f"task.{name}={rows_file(tmp_path / f'{name}.jsonl', first)}" for name, first in (("train", 0), ("test", 100))]
    capped = ["task.name=custom", *files, "task.decontaminate_words=0", "task.environment_field=source", "batch.caps.web=2"]
    config = load_config("gsm8k", capped)
    task = rows_task(rows_plan(config.task), 0, byte_tokenizer(), chatml())  # type: ignore[arg-type]
    environment_of = environments(config, task)
    ledger = Ledger(tmp_path / "journal.sqlite", ledger_policy(config), task, ManualClock(), environment_of=environment_of)
    odd = [int(ticket.prompt.id.partition("@")[0]) % 2 for ticket in ledger.claim("sampler-0", 8, 0)]
    assert (odd.count(1), odd.count(0)) == (2, 6)
    ledger.close()
    with pytest.raises(
        UsageError, match=r"batch\.caps\.wap = 2: no environment has this name; there is 'book', 'web', in the field 'source'"
    ):
        environments(load_config("gsm8k", [*capped[:-1], "batch.caps.wap=2"]), task)


def test_a_task_counts_by_its_name_and_bad_caps_are_told() -> None:
    config = load_config(str(TINY), ["batch.caps={'1-digit addition'=3}"])
    assert environments(config, open_shape(config).task)(7) == "1-digit addition"
    with pytest.raises(
        UsageError, match=r"batch\.caps\.sums = 1: no environment has this name; there is '1-digit addition', which is the task's"
    ):
        environments(load_config(str(TINY), ["batch.caps.sums=1"]), open_shape(config).task)
    with pytest.raises(ConfigError, match=r"batch\.caps\.arithmetic"):
        load_config(str(TINY), ["batch.caps.arithmetic=0"])
    with pytest.raises(ConfigError, match=r"task\.environment_field = 'source': has no effect: batch\.caps is empty"):
        load_config("gsm8k", ["task.environment_field=source"])
