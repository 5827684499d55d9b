"""Environments of the package `verifiers`: played by the package itself where it is installed, and by a stand-in of its interface."""

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from slipstream.config.schema import RunConfig, VerifiersTask
from slipstream.core.errors import UsageError
from slipstream.core.records import OutcomeKind
from slipstream.envs import verifiers_package
from slipstream.envs.build import build_task
from slipstream.envs.verifiers_package import VerifiersRows
from tests.envs.small_chat import chatml
from tests.runtime.agents.led import TOKENIZER, Listening, numbered, play, shown

INSTALLED = importlib.util.find_spec("verifiers") is not None


def opened(environment: str, **settings: Any) -> VerifiersRows:
    found = build_task(RunConfig(task=VerifiersTask(environment=environment, **settings)), TOKENIZER, chatml())
    assert isinstance(found, VerifiersRows)
    return found


TWO_TURNS = """
import verifiers as vf
from datasets import Dataset


class TwoTurns(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if state["info"].get("breaks"):
            raise vf.Error("the world is broken")
        return [{"role": "user", "content": "Once more."}]


def load_environment(rows: int = 6) -> vf.Environment:
    def right(completion, answer) -> float:
        said = [message for message in completion if message["role"] == "assistant"]
        return float(len(said)) * float(answer)

    data = [
        {"prompt": [{"role": "user", "content": f"Q{place}"}], "answer": "0.25", "info": {"breaks": place == 7}} for place in range(rows)
    ]
    return TwoTurns(dataset=Dataset.from_list(data), rubric=vf.Rubric(funcs=[right], weights=[1.0]), max_turns=2)
"""


@pytest.mark.skipif(not INSTALLED, reason="the package verifiers is not installed (pip install 'verifiers>=0.1.14,<0.4')")
def test_the_package_plays_an_environment_of_two_turns(tmp_path: Path) -> None:
    (tmp_path / "two_turns.py").write_text(TWO_TURNS)
    task = opened(str(tmp_path / "two_turns.py"), arguments={"rows": 8}, test_size=2)
    assert [len(task.training), len(task.reserved)] == [6, 2]
    played = play(task, 6, Listening(numbered))
    for episode in played.ended.values():
        if "\nQ7" in episode.prompt.text:
            assert (episode.outcome.kind, "the world is broken" in episode.outcome.detail) == (OutcomeKind.INFRASTRUCTURE, True)
            continue
        assert (episode.outcome.kind, episode.outcome.reward) == (OutcomeKind.VALUE, 0.5)
        assert (
            shown(episode.sample.completion_ids[~episode.loss_mask]) == "\n<|im_start|>user\nOnce more.<|im_end|>\n<|im_start|>assistant\n"
        )
        assert episode.outcome.side_turns == 0
        assert "\nQ" in episode.prompt.text


STAND_IN = """
class Sparse:
    eval_dataset_source = "there is one"
    def get_dataset(self): return [{"prompt": "Q" * long, "answer": "a"} for long in (1, 2, 1100)]
    def get_eval_dataset(self): return [{"prompt": [{"role": "user", "content": "E"}], "answer": "b", "extra": 1}]
    async def run_rollout(self, input, client, model, sampling_args):
        assert sampling_args == {}
        asked = await client.client.chat.completions.create(model=model, messages=[{"role": "user", "content": input["prompt"]}])
        if len(input["prompt"]) == 2:
            return {"reward": 0.0, "error": "EmptyModelResponseError()"}
        return {"reward": 0.75, "error": None if asked.choices[0].message.content else "none", "stop_condition": "done"}

class Newer:
    def get_dataset(self): ...

def load_environment(hard: bool = False): return Newer() if hard else Sparse()
def other(): raise OSError("no licence")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of an environment, and clients as the package has them."""

    class Clients(types.ModuleType):
        class OpenAIChatCompletionsClient:
            def __init__(self, client: Any) -> None:
                self.client = client

    monkeypatch.setitem(sys.modules, "verifiers", types.ModuleType("verifiers"))
    monkeypatch.setitem(sys.modules, "verifiers.clients", Clients("verifiers.clients"))
    (tmp_path / "sparse.py").write_text(STAND_IN)
    return str(tmp_path / "sparse.py")


def test_its_rows_are_prompts_and_its_reward_the_verdict(stand_in: str) -> None:
    task = opened(stand_in)
    assert task.name == "verifiers/sparse"
    assert (len(task.training), [prompt.answer for prompt in task.held_out(9)]) == (2, ["b"])
    assert task.notes == ("1 of 3 train prompts exceed task.max_prompt_tokens = 1024; left out",)
    played = play(task, 2, Listening(numbered))
    by_length = {episode.prompt.text.count("Q"): episode.outcome for episode in played.ended.values()}
    assert (by_length[1].kind, by_length[1].reward) == (OutcomeKind.VALUE, 0.75)
    assert (by_length[2].kind, by_length[2].reward, by_length[2].detail) == (OutcomeKind.UNPARSEABLE, 0.0, "the model said nothing")


def test_the_packages_later_interface_is_refused_by_its_version(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers_package, "version", lambda name: "0.4.0")
    with pytest.raises(UsageError, match=r"verifiers 0\.4\.0 is installed.* not taken; pip install 'verifiers>=0\.1\.14,<0\.4'"):
        opened(stand_in)


def test_what_is_no_environment_is_refused(stand_in: str) -> None:
    for problem, address, settings in (
        ("without get_eval_dataset and run_rollout: environments of verifiers 0.1 to 0.3", stand_in, {"arguments": {"hard": True}}),
        ("does not take them: got an unexpected keyword argument 'soft'", stand_in, {"arguments": {"soft": True}}),
        ("fails while it is loaded: OSError: no licence", f"{stand_in}:other", {}),
        ("there is no file", "none.py", {}),
        ("no train row is left; 3 rows", stand_in, {"max_prompt_tokens": 4}),
    ):
        with pytest.raises(UsageError, match=problem):
            opened(address, **settings)
