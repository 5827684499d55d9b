"""A sampler's turns over a real coordinator: what one sampler had drawn when it left is what the next one goes on from."""

from pathlib import Path

import numpy as np

from slipstream.core.clock import ManualClock
from slipstream.core.records import Partial, WeightVersion
from slipstream.loop.collect import Collector
from slipstream.loop.dispatch import Dispatch, SamplingRules
from slipstream.loop.phases import Phases
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.telemetry.events import NullEvents
from slipstream.weights.store import MemoryStore
from tests.loop.at_once import AtOnce
from tests.loop.pure_run import FakeSampler, NumberTask, logprob
from tests.runtime.coordinator.here import INFLIGHT, coordinator, seat


def dispatch(ledger: RemoteLedger, sampler: FakeSampler, store: MemoryStore | None = None) -> Dispatch:
    clock, task, store = ManualClock(), NumberTask(), store or MemoryStore(keep=4)
    store.publish(WeightVersion(lineage=0, version=0, params="weights", digest="d0"))
    return Dispatch(
        sampler=sampler,
        environments=AtOnce(task),
        ledger=ledger,
        store=store,
        collector=Collector(run_id="run", seed=1, lineage=0, sampler_id=sampler.id, sampler_class="pure/python", codec=task),
        rules=SamplingRules(seed=1, group_size=2, max_new_tokens=8, temperature=1.0, pinned=False),
        phases=Phases(sampler.id, clock, NullEvents()),
        events=NullEvents(),
        clock=clock,
    )


def test_the_next_sampler_goes_on_from_what_the_last_had_drawn(tmp_path: Path) -> None:
    with coordinator(tmp_path, INFLIGHT) as here:
        leaving, coming = seat(here.url, name="leaving"), seat(here.url, name="coming")
        sampler = FakeSampler("a", ManualClock(), slots=2, tokens_per_step=1)
        ledger = RemoteLedger(leaving, ManualClock())
        one = dispatch(ledger, sampler)
        while not sampler._rows or len(one.unfinished()) < 2:
            assert one.turn()
        rows = {row.request.key: row for row in sampler._rows}
        partials = [
            Partial(
                ticket_index=index,
                sample=key[1],
                completion_ids=np.array(rows[key].tokens, np.int32),
                logprobs=np.array([logprob(token, 0) for token in rows[key].tokens], np.float32),
                versions=np.zeros(len(rows[key].tokens), np.int32),
            )
            for index, key in one.unfinished()
        ]
        assert all(len(partial.completion_ids) for partial in partials)
        ledger.save_progress(partials, patience_s=1.0)
        leaving.leave(1.0)
        other = FakeSampler("b", ManualClock(), slots=2, tokens_per_step=1)
        dispatch(RemoteLedger(coming, ManualClock()), other).turn()
        drawn = {(row.request.key[1]): row.request.drawn for row in other._rows}
        assert set(drawn) == {partial.sample for partial in partials}
        for partial in partials:
            found = drawn[partial.sample]
            assert found is not None
            np.testing.assert_array_equal(found.completion_ids, partial.completion_ids)
            np.testing.assert_array_equal(found.logprobs, partial.logprobs)


def test_rollouts_carry_the_digest_of_the_weights_of_their_last_token(tmp_path: Path) -> None:
    with coordinator(tmp_path, INFLIGHT) as here:
        learner, sampler = RemoteLedger(seat(here.url, "learner", "L"), ManualClock()), RemoteLedger(seat(here.url), ManualClock())
        learner.begin(0)
        for version in (0, 1):
            learner.publish(0, version, f"d{version}", {}, ["http://learner"])
        store = MemoryStore(keep=4)
        one = dispatch(sampler, FakeSampler("a", ManualClock(), slots=2, tokens_per_step=1), store)
        one.turn()
        store.publish(WeightVersion(lineage=0, version=1, params="weights", digest="d1"))
        while (batch := here.ledger.batch(0)) is None:
            one.turn()
        digests = {(int(rollout.versions[-1]), rollout.weight_digest) for rollout in batch.rollouts}
        assert {(1, "d1")} <= digests <= {(0, "d0"), (1, "d1")}
        assert "quarantined" not in here.kinds()
