"""Ended episodes become rollouts. Pure."""

from dataclasses import dataclass

from slipstream.core.ports import TextCodec
from slipstream.core.records import Rollout, Ticket
from slipstream.core.rng import stream_seed
from slipstream.loop.episodes import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """What is the same for all rollouts of one sampler."""

    run_id: str
    seed: int
    lineage: int
    sampler_id: str
    sampler_class: str
    codec: TextCodec

    def rollout(self, ticket: Ticket, episode: Episode, claimed_s: float, weight_digest: str) -> Rollout:
        """The episode of one of the ticket's samples, with its text. `weight_digest`: of the version of its last token."""
        sample = episode.sample
        index = sample.key[1]
        return Rollout(
            run_id=self.run_id,
            lineage=self.lineage,
            ticket_id=ticket.id,
            ticket_index=ticket.index,
            prompt_id=ticket.prompt.id,
            group_id=ticket.group_id,
            sample_index=index,
            seed=sample_seed(self.seed, ticket, index),
            prompt_ids=episode.prompt.token_ids,
            completion_ids=sample.completion_ids,
            logprobs=sample.logprobs,
            versions=sample.versions,
            loss_mask=episode.loss_mask,
            finish_reason=sample.finish_reason,
            outcome=episode.outcome,
            prompt_text=episode.prompt.text,
            completion_text=self.codec.decode(sample.completion_ids.tolist()),
            answer=ticket.prompt.answer,
            sampler_id=self.sampler_id,
            sampler_class=self.sampler_class,
            weight_digest=weight_digest,
            slot=sample.slot,
            claimed_s=claimed_s,
            started_s=sample.started_s,
            finished_s=sample.finished_s,
        )


def sample_seed(run_seed: int, ticket: Ticket, sample: int) -> int:
    """The seed of one sample: a function of the run's seed, the prompt and the sample's place in its group."""
    return stream_seed(run_seed, "sample", ticket.prompt.id, sample)
