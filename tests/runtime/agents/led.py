"""Tasks whose episodes agents lead, played to their end over a scripted sampler in the test's own thread."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openai import AsyncOpenAI, OpenAI

from slipstream.core.clock import SystemClock
from slipstream.core.records import Outcome, Prompt, SampleRequest
from slipstream.envs.agent import AgentLimits, Lead
from slipstream.envs.verifiers_package import VerifiersRows
from slipstream.loop.agent_episodes import AgentEpisodes
from slipstream.loop.episodes import Episode
from slipstream.runtime.agents.host import AgentHost
from slipstream.telemetry.events import NullEvents
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer
from tests.envs.small_chat import byte_tokenizer, chatml
from tests.runtime.scripted import ScriptedSampler

TOKENIZER = byte_tokenizer()
STOP = 1
BROKEN = int(TOKENIZER.encode("ÿ")[0])  # a byte that begins a character: by itself it is no text


@dataclass(kw_only=True)
class LedTask:
    """`lead` is the agent of every prompt, called as lead(base_url, api_key, prompt)."""

    lead: Callable[..., Any]
    agent_limits: AgentLimits = field(default_factory=lambda: AgentLimits(requests=8, episode_s=120.0, at_once=64))
    tokenizer: Tokenizer = TOKENIZER
    chat: ChatTemplate = field(default_factory=chatml)
    max_prompt_tokens: int = 400
    name: str = "led"
    format_hash: str = ""
    notes: tuple[str, ...] = ()

    def prompt(self, index: int) -> Prompt:
        return Prompt(id=f"n{index}", token_ids=np.array([2], np.int32), text="", answer=str(index))

    def held_out(self, count: int) -> list[Prompt]:
        return [self.prompt(index) for index in range(count)]

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        raise AssertionError("agents judge")

    def agent(self, prompt: Prompt) -> Lead:
        return lambda base_url, api_key: self.lead(base_url, api_key, prompt)


class Told(NullEvents):
    """Events that are kept."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        self.rows.append({"role": role, "kind": kind, **fields})


@dataclass(frozen=True, kw_only=True)
class Played:
    """What became of some episodes."""

    ended: dict[str, Episode]  # by prompt id
    episodes: AgentEpisodes
    events: list[dict[str, Any]]
    requests: list[SampleRequest]  # that the sampler got


class Listening(ScriptedSampler):
    """Keeps what it is asked, and what it is told to stop."""

    def __init__(self, script: Callable[[SampleRequest], Sequence[int]], slots: int = 64) -> None:
        super().__init__(script, slots=slots, stop_ids=(STOP,))
        self.requests: list[SampleRequest] = []
        self.aborted: list[tuple[str, int]] = []

    def submit(self, request: SampleRequest) -> None:
        self.requests.append(request)
        super().submit(request)

    def abort(self, key: tuple[str, int]) -> None:
        self.aborted.append(key)
        super().abort(key)


def request(prompt: Prompt, new: int = 400, temperature: float = 1.0) -> SampleRequest:
    return SampleRequest(
        key=(prompt.id, 0), prompt_ids=prompt.token_ids, seed=7, max_new_tokens=new, temperature=temperature, stop_ids=(STOP,)
    )


def play(task: LedTask | VerifiersRows, count: int, sampler: Listening, new: int = 400) -> Played:
    events = Told()
    with closing(AgentHost(task, clock=SystemClock(), events=events)) as host:
        episodes = AgentEpisodes(sampler, host, TOKENIZER)
        for index in range(count):
            prompt = task.prompt(index)
            episodes.begin(prompt, request(prompt, new))
        ended: dict[str, Episode] = {}
        while episodes.open:
            for episode in episodes.run():
                assert episode.prompt.id not in ended
                ended[episode.prompt.id] = episode
    return Played(ended=ended, episodes=episodes, events=events.rows, requests=sampler.requests)


def numbered(request: SampleRequest) -> list[int]:
    """`ok<turn>`, a byte that is no text, and the stop token: whoever tokenises it again gets other ids."""
    turn = TOKENIZER.backend.decode(request.prompt_ids.tolist(), skip_special_tokens=False).count("<|im_start|>assistant")
    return [*TOKENIZER.encode(f"ok{turn}").tolist(), BROKEN, STOP]


def client(base_url: str, api_key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60)


def plain_client(base_url: str, api_key: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def shown(ids: np.ndarray) -> str:
    return TOKENIZER.backend.decode(ids.tolist(), skip_special_tokens=False)
