"""Functions of the user are found by module or file; what cannot be one is refused in one clear error before anything runs."""

from pathlib import Path

import pytest

from slipstream.core.errors import UsageError
from slipstream.envs.reward_function import find_reward, score

CODE = """
def reward(row, response):
    return float(response == row["answer"])
def one(row):
    return 1.0
async def later(row, response):
    return 1.0
"""


def test_a_function_is_found_in_a_file_or_a_module(tmp_path: Path) -> None:
    file = tmp_path / "judge.py"
    file.write_text(CODE)
    assert score(find_reward(f"{file}:reward"), {"answer": "4"}, "4").reward == 1.0
    assert score(find_reward(f"{__name__}:length"), {}, "abc").reward == 3.0


def length(row: dict[str, object], response: str) -> float:
    return len(response)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("judge", "write it as module:function or path/to/file.py:function"),
        (":reward", "write it as module:function"),
        ("{dir}/none.py:reward", "there is no file .*none.py"),
        ("{dir}/judge.py:rewards", "has no function 'rewards'; it has later, one, reward"),
        ("{dir}/judge.py:one", r"it is called as one\(row, response\), and too many positional arguments"),
        ("{dir}/judge.py:later", "it is a coroutine function"),
        ("{dir}/broken.py:reward", "fails while it is loaded: ZeroDivisionError"),
        ("{dir}/torn.py:reward", "fails while it is loaded: SyntaxError"),
        ("no.such.module:reward", "No module named 'no'; a file is written as path/to/file.py:function"),
    ],
)
def test_what_cannot_judge_is_refused(tmp_path: Path, address: str, why: str) -> None:
    (tmp_path / "judge.py").write_text(CODE)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "torn.py").write_text("def reward(")
    with pytest.raises(UsageError, match=rf"task\.reward = '.*': .*{why}"):
        find_reward(address.format(dir=tmp_path))
