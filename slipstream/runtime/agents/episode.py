"""One agent's episode as the host keeps it: its requests, the turns they got, and how it ends. Not thread-safe: the host's event loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slipstream.core.ports import EpisodeKey
from slipstream.core.records import AgentEpisode, FinishReason, Outcome, OutcomeKind, Prompt, Sample, SampleRequest
from slipstream.core.rng import stream_seed
from slipstream.envs.agent import failed
from slipstream.loop.agent_episodes import turn_key
from slipstream.loop.episodes import turn_seed
from slipstream.runtime.agents.plan import Rules
from slipstream.runtime.agents.record import Said, Turn, conversations, longest, whole


@dataclass(slots=True, kw_only=True, eq=False)
class Asked:
    """A turn that an agent waits for."""

    said: Said
    answer: "asyncio.Future[Sample]"


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """An agent at work."""

    prompt: Prompt
    first: SampleRequest
    rules: Rules
    api_key: str
    turns: list[Turn] = field(default_factory=list[Turn])  # in the order of their ends
    asked: dict[EpisodeKey, Asked] = field(default_factory=dict[EpisodeKey, Asked])
    requests: int = 0
    limit: str = ""  # the last one that a request came to: of tokens, or of requests
    leading: "asyncio.Task[None] | None" = None

    def ask(self, said: Said, new_tokens: int, stop_ids: Sequence[int]) -> tuple[SampleRequest, Asked]:
        """A request for the engine. Its seed follows from the sample's and the turn's place in its conversation, so that it is the same
        whenever agents ask; one that repeats an earlier prompt has another, so that no draw comes twice."""
        key = turn_key(self.first.key, self.requests)
        again = sum(np.array_equal(one.prompt_ids, said.prompt_ids) for one in self._all_said())
        seed = turn_seed(self.first.seed, said.depth)
        request = replace(
            self.first,
            key=key,
            prompt_ids=said.prompt_ids,
            seed=stream_seed(seed, "again", again) if again else seed,
            max_new_tokens=new_tokens,
            stop_ids=tuple(dict.fromkeys([*self.first.stop_ids, *stop_ids])),
            drawn=None,
        )
        self.requests += 1
        asked = self.asked[key] = Asked(said=said, answer=asyncio.get_running_loop().create_future())
        return request, asked

    def _all_said(self) -> list[Said]:
        return [*(turn.said for turn in self.turns), *(one.said for one in self.asked.values())]

    def ended(self, outcome: Outcome, now_s: float) -> AgentEpisode:
        """What the episode was. Without a turn there is nothing to judge; an agent that raised after a limit has given no answer."""
        if not self.turns:
            if outcome.reward is not None:
                outcome = failed("asked for no turn of the model, so that there is nothing to train on")
            return self._made(outcome, np.zeros(0, np.int32), None, np.zeros(0, bool), now_s)
        if outcome.kind is OutcomeKind.INFRASTRUCTURE and self.limit:
            outcome = Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, detail=f"no answer: {self.limit}"[:300])
        chain = longest(self.turns)
        prompt_ids, sample, mask = whole(chain, self.first.key)
        outcome = replace(outcome, side_turns=len(self.turns) - len(chain))
        return self._made(outcome, prompt_ids, replace(sample, finish_reason=self._finish(sample)), mask, now_s)

    @property
    def side_chains(self) -> int:
        """Conversations beside the longest."""
        return conversations(self.turns) - 1 if self.turns else 0

    def _made(self, outcome: Outcome, prompt_ids: np.ndarray, sample: Sample | None, mask: np.ndarray, now_s: float) -> AgentEpisode:
        return AgentEpisode(
            key=self.first.key,
            outcome=outcome,
            prompt_ids=prompt_ids,
            prompt_text=self.rules.tokenizer.backend.decode(prompt_ids.tolist(), skip_special_tokens=False),
            sample=sample,
            loss_mask=mask,
            ended_s=now_s,
        )

    def _finish(self, sample: Sample) -> FinishReason:
        """`length` only at the run's limit: where the agent asked for fewer tokens, the end was its own."""
        if sample.finish_reason is FinishReason.LENGTH and len(sample.completion_ids) < self.first.max_new_tokens:
            return FinishReason.ENVIRONMENT
        return sample.finish_reason
