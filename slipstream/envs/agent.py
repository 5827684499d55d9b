"""What an agent is: a program of the user that leads an episode by asking an OpenAI-compatible endpoint of the run for turns of the model.

`runtime.agents` runs them and serves the endpoint; tasks that have one for each prompt are `AgentTask`s (beside `envs.task.Task`).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from slipstream.core.records import Outcome, OutcomeKind, Prompt
from slipstream.envs.reward_function import rewarded
from slipstream.text.chat import ChatTemplate

Verdict = Any  # what an agent returns: see `verdict`
Lead = Callable[[str, str], Verdict | Awaitable[Verdict]]
"""An episode's agent, called once with the endpoint's base URL (ending in /v1) and the API key that names the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Of every episode. Its tokens are bounded by task.max_prompt_tokens and sampling.max_new_tokens."""

    requests: int  # that one agent may make
    episode_s: float  # from the agent's start to its return, generation included
    at_once: int  # agents that run at a time


@runtime_checkable
class AgentTask(Protocol):
    """A task whose episodes agents lead."""

    @property
    def agent_limits(self) -> AgentLimits: ...

    @property
    def chat(self) -> ChatTemplate:
        """What the endpoint renders messages with."""
        ...

    def agent(self, prompt: Prompt) -> Lead:
        """The agent of one episode of the prompt."""
        ...


def verdict(returned: Verdict) -> Outcome:
    """The outcome of what an agent returned: an `Outcome`, a number, or a mapping with "reward" and maybe "format_ok" and "detail".

    Whatever else it is, and a reward that is no finite number, is a failure of the agent (`infrastructure`), not a 0.
    """
    if isinstance(returned, Outcome):
        return returned
    fields: Mapping[str, Any] = returned if isinstance(returned, Mapping) else {"reward": returned}
    if "reward" not in fields:
        return failed(f'returned a mapping without "reward": {sorted(map(str, fields))}')
    found, form = rewarded(fields["reward"], failed), fields.get("format_ok")
    if found.reward is None:
        return found
    return replace(found, format_ok=None if form is None else bool(form), detail=str(fields.get("detail") or found.detail)[:300])


def failed(how: str, kind: OutcomeKind = OutcomeKind.INFRASTRUCTURE) -> Outcome:
    """An outcome without a reward."""
    return Outcome(kind=kind, reward=None, detail=f"the agent {how}"[:300])
