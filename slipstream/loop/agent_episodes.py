"""Episodes that agents lead, over one sampler. An actor without a thread of its own: its caller's.

An agent asks for turns of the model with prompts of its own, and says at last how it went: who runs it (`core.ports.Agents`) keeps what
was said, and this hands turns between it and the sampler. With the face of `loop.episodes.Episodes`; used by dispatch and evaluations.
"""

from dataclasses import replace

import numpy as np

from slipstream.core.ports import Abortable, Agents, Environments, EpisodeKey, Sampler, TextCodec
from slipstream.core.records import AgentEpisode, FinishReason, Prompt, Sample, SampleRequest
from slipstream.loop.episodes import LOOK_S, Episode, Episodes


class AgentEpisodes:
    """Episodes of agents. Called by one thread. Its counts are those of `Episodes`; `overlapped` are steps while some agent thought."""

    def __init__(self, sampler: Sampler, agents: Agents, codec: TextCodec) -> None:
        self._sampler, self._agents, self._codec = sampler, agents, codec
        self._open: dict[EpisodeKey, Prompt] = {}
        self._asked: set[EpisodeKey] = set()  # keys of turns
        self.tokens = self.turns = self.steps = self.overlapped = 0

    @property
    def busy(self) -> bool:
        """The sampler has something to do."""
        return bool(self._sampler.running() or self._sampler.waiting())

    @property
    def unanswered(self) -> int:
        """Agents that are at work."""
        return len(self._open)

    @property
    def open(self) -> int:
        """Episodes that have not ended."""
        return len(self._open)

    @property
    def places(self) -> int:
        """For further agents."""
        return self._agents.at_once - len(self._open)

    @property
    def first_turns(self) -> list[EpisodeKey]:
        """None: an agent cannot go on elsewhere."""
        return []

    @property
    def drawing(self) -> bool:
        """Any agent may ask for more."""
        return bool(self._open)

    def begin(self, prompt: Prompt, request: SampleRequest) -> None:
        """Start an agent."""
        self._open[request.key] = prompt
        self._agents.begin(prompt, request)

    def take(self) -> list[Episode]:
        """Those that have ended; what the other agents ask goes to the sampler. Raises what ends a run."""
        news = self._agents.news()
        for request in news.asked:
            self._sampler.submit(request)
            self._asked.add(request.key)
        for key in news.withdrawn:
            self._withdraw(key)
        return [self._ended(one) for one in news.ended]

    def step(self) -> list[Episode]:
        """Advance the sampler, hand over the turns that ended, and take what agents say."""
        self.steps += 1
        self.overlapped += len(self._open) > len(self._asked)
        for sample in self._sampler.step():
            if sample.key in self._asked:  # else withdrawn, from a sampler that cannot abort
                self._asked.discard(sample.key)
                self.tokens += len(sample.completion_ids)
                self.turns += 1
                self._agents.reply(sample)
        return self.take()

    def run(self) -> list[Episode]:
        """As `step`, waiting for agents where there is nothing else to do."""
        if not self.busy:
            self._agents.wait(LOOK_S)
        ended = self.take()
        return [*ended, *(self.step() if self.busy else [])]

    def drain(self, patience_s: float) -> list[Episode]:
        """Those that end while one ends every `patience_s` at the latest. Agents that ask for more are dropped."""
        ended: list[Episode] = []
        while self._open and self._agents.wait(patience_s):
            news = self._agents.news()
            ended += [self._ended(one) for one in news.ended]
            for request in news.asked:
                if self._open.pop(episode_key(request.key), None) is not None:
                    self._agents.drop(episode_key(request.key))
        return ended

    def close(self) -> None:
        """End the agents; open episodes are forgotten."""
        self._agents.close()
        self._open.clear()
        self._asked.clear()

    def _withdraw(self, key: EpisodeKey) -> None:
        if key in self._asked:
            self._asked.discard(key)
            if isinstance(self._sampler, Abortable):
                self._sampler.abort(key)

    def _ended(self, one: AgentEpisode) -> Episode:
        """An episode without a word of the model has one token all the same, as rollouts must: a stop token that nobody chose."""
        prompt = self._open.pop(one.key)
        if one.sample is None:
            return Episode(prompt=prompt, sample=self._silent(one), loss_mask=np.zeros(1, bool), outcome=one.outcome)
        asked = replace(prompt, token_ids=one.prompt_ids, text=one.prompt_text)
        return Episode(prompt=asked, sample=one.sample, loss_mask=one.loss_mask, outcome=one.outcome)

    def _silent(self, one: AgentEpisode) -> Sample:
        return Sample(
            key=one.key,
            completion_ids=np.array((*self._codec.stop_ids, 0)[:1], np.int32),
            logprobs=np.zeros(1, np.float32),
            versions=np.array([self._sampler.version], np.int32),
            finish_reason=FinishReason.ENVIRONMENT,
            slot=0,
            started_s=one.ended_s,
            finished_s=one.ended_s,
        )


def turn_key(episode: EpisodeKey, number: int) -> EpisodeKey:
    """The key of an episode's `number`-th request."""
    return f"{episode[0]}#{number}", episode[1]


def episode_key(turn: EpisodeKey) -> EpisodeKey:
    """The episode of a request: `turn_key` undone."""
    return turn[0].rpartition("#")[0], turn[1]


def open_episodes(sampler: Sampler, environments: Environments | Agents, codec: TextCodec) -> Episodes | AgentEpisodes:
    """Episodes as the other side leads them or answers them."""
    if isinstance(environments, Agents):
        return AgentEpisodes(sampler, environments, codec)
    return Episodes(sampler, environments, codec)
