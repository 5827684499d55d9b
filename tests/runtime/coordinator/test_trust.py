"""Samplers that draw with other weights than were published, over HTTP: nothing of theirs is trained on, and the run goes on."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

from slipstream.core.codec import rollout_to_bytes
from slipstream.core.records import Batch, Partial, Receipt, Rollout, Ticket, TrainingSequence, WeightVersion
from slipstream.loop.audit import audit
from slipstream.loop.sequences import from_rollout
from slipstream.runtime.coordinator.announcements import Announcements
from slipstream.runtime.coordinator.messages import Canary, frame_batch, read_batch
from slipstream.runtime.coordinator.trust import Trust, Window
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.weights.store import MemoryStore
from tests.ledger.rollouts import NumberedPrompts, make_rollout
from tests.runtime.coordinator.here import INFLIGHT, SYNC, TOKEN, coordinator, remote, seat

RENEWAL = {"last_token_s": 0, "last_load_s": 0, "phase": "generate"}


def drawn(tickets: list[Ticket], version: int, digest: str) -> list[Rollout]:
    return [replace(make_rollout(ticket, sample, [0, version]), weight_digest=digest) for ticket in tickets for sample in ticket.samples]


def test_a_batch_comes_over_the_wire_with_every_field() -> None:
    """No field has its default, so that one that is left out is seen."""
    prompts = NumberedPrompts()
    ticket = Ticket(id="t0", index=0, group_id="g0", prompt=prompts.prompt(0), samples=(0, 1, 2), version_floor=0, version_pinned=None)
    rollouts = tuple(make_rollout(ticket, sample, [0]) for sample in ticket.samples)
    sent = Batch(step=3, rollouts=rollouts[:1], dropped=rollouts[1:], refilled_groups=2, stale_samples=1, aside=rollouts[1:2])
    came = read_batch(frame_batch(sent))
    for field in fields(Batch):
        before, after = getattr(sent, field.name), getattr(came, field.name)
        assert before != field.default, f"give {field.name} another value than its default here"
        if isinstance(before, tuple):
            before, after = ([rollout_to_bytes(one) for one in side] for side in (before, after))
        assert after == before, field.name


def test_other_weights_under_a_version_are_refused_and_their_sampler_leaves(tmp_path: Path) -> None:
    with coordinator(tmp_path, INFLIGHT) as here:
        learner, honest_seat, liar_seat = remote(seat(here.url, "learner", "L")), seat(here.url, name="H"), seat(here.url, name="X")
        honest, liar = remote(honest_seat), remote(liar_seat)
        learner.begin(0)
        for version in (0, 1):
            learner.publish(0, version, f"digest-{version}", {}, ["http://learner"])
        mine, others = honest.claim("", 1, 0), liar.claim("", 2, 0)
        assert honest.submit(drawn(mine, 1, "digest-1")) == [Receipt.ACCEPTED] * 2
        assert liar.submit(drawn(others[:1], 1, "digest-0")) == [Receipt.STALE] * 2
        told = [row for row in read_jsonl(tmp_path / "events.jsonl") if row["kind"] == "quarantined"]
        assert [(row["worker"], row["version"]) for row in told] == [(liar_seat.joined.worker, 1)]
        assert "digest digest-0; those of version 1 have digest-1" in told[0]["cause"]
        assert liar.claim("", 1, 0) == []
        tokens = {"completion_ids": np.zeros(1, np.int32), "logprobs": np.zeros(1, np.float32), "versions": np.zeros(1, np.int32)}
        liar.save_progress([Partial(ticket_index=others[1].index, sample=0, **tokens)], patience_s=1.0)
        assert liar.submit(drawn(others[1:], 1, "digest-1")) == [Receipt.STALE] * 2  # nothing it says now is believed
        assert [one.call("renew", RENEWAL).json()["drain"] for one in (honest_seat, liar_seat)] == [False, True]
        again = honest.claim("", 2, 0)  # what the other had to give back
        assert [ticket.index for ticket in again] == [ticket.index for ticket in others]
        assert not any(ticket.partials for ticket in again)
        honest.submit(drawn(again, 1, "digest-1"))
        batch = learner.batch(0)
        assert batch is not None
        assert {rollout.weight_digest for rollout in batch.rollouts} == {"digest-1"}
        assert here.kinds().count("quarantined") == 1
        liar_seat.leave(1.0)
        fresh = remote(seat(here.url, name="X"))  # started anew, with the right weights: it is tested again
        assert fresh.submit(drawn(fresh.claim("", 1, 0), 1, "digest-1")) == [Receipt.ACCEPTED] * 2


class Scorer:
    """A learner to whom every token is worth what honest samplers say."""

    def score(self, sequences: Sequence[TrainingSequence], weights: WeightVersion) -> list[np.ndarray]:
        return [np.where(sequence.loss_mask, np.float32(-0.5), 0).astype(np.float32) for sequence in sequences]


def said(ticket: Ticket, sampler: str, logprob: float) -> list[Rollout]:
    """Eight tokens a sample, of one version and the right weights, with these log-probs."""
    eight = [make_rollout(ticket, sample, [0] * 8, sampler=sampler) for sample in ticket.samples]
    return [replace(one, weight_digest="digest-0", logprobs=np.full(8, logprob, np.float32)) for one in eight]


def test_log_probs_that_are_not_those_of_the_draws_are_found_out_by_the_ratio(tmp_path: Path) -> None:
    """The liar has the right weights and a right canary; what it says of its tokens is 5 % too likely."""
    with coordinator(tmp_path, INFLIGHT, ratio_tokens=16) as here:
        learner, honest_seat, liar_seat = remote(seat(here.url, "learner", "L")), seat(here.url, name="H"), seat(here.url, name="X")
        store = MemoryStore(keep=2)
        store.publish(WeightVersion(lineage=0, version=0, params=None))
        learner.begin(0)
        expected = Canary(computed_by="cpu/f32", logprobs=[-1.0])
        learner.publish(0, 0, "digest-0", {}, ["http://learner"], expected)
        for one, logprob in ((honest_seat, -0.5), (liar_seat, -0.45)):
            sampler = remote(one)
            sampler.prove(0, "digest-0", expected)
            for ticket in sampler.claim("", 1, 0):
                assert sampler.submit(said(ticket, one.joined.worker, logprob)) == [Receipt.ACCEPTED] * 2
        batch = learner.batch(0)
        assert batch is not None
        found = audit(Scorer(), store, batch.rollouts, [from_rollout(one, 0.0) for one in batch.rollouts])  # type: ignore[arg-type]
        learner.ratios(found.ratios[:3])  # 16 tokens of the honest one, 8 of the liar: too few
        assert here.kinds().count("quarantined") == 0
        learner.ratios(found.ratios[3:])
        rows = read_jsonl(tmp_path / "events.jsonl")
        (told,) = [row for row in rows if row["kind"] == "quarantined"]
        assert (told["worker"], told["version"]) == (liar_seat.joined.worker, 0)
        assert "mean importance ratio at equal weights is 0.951 over 16 tokens" in told["cause"]
        measured = {row["worker"]: round(row["ratio"], 3) for row in rows if row["kind"] == "ratio"}
        assert measured == {honest_seat.joined.worker: 1.0, liar_seat.joined.worker: 0.951}
        assert [one.call("renew", RENEWAL).json()["drain"] for one in (honest_seat, liar_seat)] == [False, True]
        with urlopen(Request(f"{here.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})) as answer:
            text = answer.read().decode()
        assert f'slipstream_sampler_ratio{{worker="{liar_seat.joined.worker}"}} 0.951' in text
        assert "slipstream_samplers_quarantined 1\n" in text
        here.clock.advance(1.0)
        liar_seat.leave(1.0)
        again = seat(here.url, name="X")  # started anew: what it said before counts no more
        learner.ratios([replace(one, sampler=again.joined.worker, tokens=16) for one in found.ratios])
        assert again.call("renew", RENEWAL).json()["drain"] is False


def test_chance_is_not_held_against_a_sampler() -> None:
    """Ratios of coarse arithmetic scatter widely: a mean off by less than four standard errors beyond the band says nothing."""
    trust = Trust(Announcements(keep=1), 0.03, 100)
    noisy = Window(epoch=1, tokens=100, total=120.0, squares=200.0)  # 1.2, with a standard error of 0.075
    steady = replace(noisy, squares=145.0)  # of 0.01
    assert trust.off_ratio(noisy) is None
    assert trust.off_ratio(steady) is not None
    assert Trust(Announcements(keep=1), 0.0, 100).off_ratio(steady) is None  # switched off


def test_without_a_digest_only_versions_that_nobody_announced_are_taken(tmp_path: Path) -> None:
    with coordinator(tmp_path, SYNC) as here:
        learner, sampler = remote(seat(here.url, "learner", "L")), remote(seat(here.url))
        learner.begin(0)
        first, second = sampler.claim("", 1, 0), sampler.claim("", 1, 0)
        assert sampler.submit(drawn(first, 0, "")) == [Receipt.ACCEPTED] * 2
        learner.publish(0, 0, "digest-0", {}, ["http://learner"])
        assert sampler.submit(drawn(second, 0, "")) == [Receipt.STALE] * 2
