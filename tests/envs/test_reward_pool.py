"""Reward functions run in processes with a deadline: what hangs, dies or returns nonsense is told apart, counted, and never a 0."""

from datetime import date
from pathlib import Path

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.grading import scored
from slipstream.envs.reward_pool import OpenRewards

CODE = """
import os, sys, time
from datetime import date

def reward(row, response):
    print("what it prints is no reply")
    if response == "hang":
        while True:
            time.sleep(1)
    if response == "die":
        os._exit(0)
    if response == "leave":
        sys.exit()
    if response == "nan":
        return float("nan")
    if response == "raise":
        raise KeyError("no such thing")
    if response == "row":
        return float(row == {"answer": "4", "day": "2026-01-02"})
    return float(response == row["answer"])
"""


def test_every_ending_has_its_kind_and_the_next_call_is_served(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(CODE)
    rewards = OpenRewards(f"{tmp_path / 'judge.py'}:reward", 3.0, workers=1)
    row = {"answer": "4", "day": date(2026, 1, 2)}
    outcomes: dict[str, Outcome] = {}
    for response in ("4", "hang", "5", "die", "row", "leave", "nan", "raise", "4"):
        outcomes[response] = rewards.score(row, response)
    assert {response: (one.kind, one.reward) for response, one in outcomes.items()} == {
        "4": (OutcomeKind.VALUE, 1.0),
        "5": (OutcomeKind.WRONG, 0.0),
        "row": (OutcomeKind.VALUE, 1.0),
        "hang": (OutcomeKind.TIMEOUT, None),
        "die": (OutcomeKind.INFRASTRUCTURE, None),
        "leave": (OutcomeKind.INFRASTRUCTURE, None),
        "nan": (OutcomeKind.INFRASTRUCTURE, None),
        "raise": (OutcomeKind.INFRASTRUCTURE, None),
    }
    assert outcomes["hang"].detail == "the reward function: no verdict in 3 s"
    assert "KeyError: 'no such thing'" in outcomes["raise"].detail
    rewards.close()


def test_a_grader_of_it_is_named_after_the_setting() -> None:
    assert scored("judge.py:reward", 1.0, 2).name == "task.reward = 'judge.py:reward'"
