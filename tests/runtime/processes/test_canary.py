"""Canaries of real engines and a real learner, told to a real coordinator: whoever computes with other weights is found out."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from slipstream.config.load import load_config
from slipstream.config.schema import RunConfig
from slipstream.core.clock import ManualClock
from slipstream.core.records import Receipt, SampleRequest, WeightVersion
from slipstream.engine.engine import Engine
from slipstream.runtime.assembly import build_engine, longest
from slipstream.runtime.coordinator.messages import Canary
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.runtime.policy import Policy, open_policy
from slipstream.runtime.processes.canary import TICKET, CanarySampler, CanaryStore, canary
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.train.learner import Learner
from slipstream.weights.store import MemoryStore
from tests.ledger.rollouts import make_rollout
from tests.runtime.coordinator.here import CALLERS, INFLIGHT, coordinator, remote, seat
from tests.runtime.runs import TINY

CONFIG = load_config(str(TINY))
EXACT = load_config(str(TINY), ["model.numerics=exact", "batch.row_tokens=64"])


def teller(ledger: RemoteLedger, engine: Engine):
    def tell(weights: WeightVersion, logprobs: np.ndarray) -> None:
        ledger.prove(weights.version, weights.digest, Canary(computed_by=engine.sampler_class, logprobs=logprobs.tolist()))

    return tell


def engine_of(config: RunConfig, policy: Policy) -> Engine:
    return build_engine(config, policy, ManualClock(), "sampler", 4)


@pytest.mark.parametrize("config", [CONFIG, pytest.param(EXACT, marks=pytest.mark.slow)], ids=["fast", "exact"])
def test_an_engine_with_other_weights_is_quarantined_and_the_run_goes_on(config: RunConfig, tmp_path: Path) -> None:
    policy = open_policy(config)
    learner = Learner(config, policy.spec, policy.params)
    learner.begin_reinforcement()
    expected: list[np.ndarray] = []
    drawn = canary(policy.spec, longest(config, policy))
    store = CanaryStore(store=MemoryStore(2), learner=learner, canary=drawn, expect=lambda version, found: expected.append(found))
    store.publish(learner.weights())
    right = replace(store.get(0), digest="d0")
    wrong = replace(right, params=jax.tree.map(lambda leaf: leaf * 1.01, right.params))
    with coordinator(tmp_path, INFLIGHT) as here:
        trainer, seats = remote(seat(here.url, "learner", "L")), [seat(here.url, name=name) for name in ("honest", "liar")]
        trainer.begin(0)
        computed_by = "cpu/f32/exact" if config is EXACT else "cpu/f32"
        trainer.publish(0, 0, "d0", {}, ["http://l"], Canary(computed_by=computed_by, logprobs=expected[0].tolist()))
        ledgers = [remote(one) for one in seats]
        tickets = [ledger.claim("", 1, 0) for ledger in ledgers]
        engine = engine_of(config, policy)
        for ledger, weights in zip(ledgers, (right, wrong), strict=True):
            CanarySampler(engine, drawn, teller(ledger, engine)).load(weights)
        (proven,) = [row for row in read_jsonl(tmp_path / "events.jsonl") if row["kind"] == "proven"]
        assert proven["worker"] == seats[0].joined.worker
        assert proven["gap"] <= (0 if config is EXACT else 1e-4)
        (told,) = [row for row in read_jsonl(tmp_path / "events.jsonl") if row["kind"] == "quarantined"]
        assert (told["worker"], told["version"]) == (seats[1].joined.worker, 0)
        assert told["gap"] > 1e-3
        assert "nats off the learner's" in told["cause"]
        rollouts = [replace(make_rollout(one, sample, [0]), weight_digest="d0") for (one,) in tickets for sample in one.samples]
        assert ledgers[1].submit(rollouts[2:]) == [Receipt.STALE] * 2
        again = ledgers[0].claim("", 1, 0)
        assert [ticket.index for ticket in again] == [ticket.index for ticket in tickets[1]]
        assert ledgers[0].submit(rollouts) == [Receipt.ACCEPTED] * 4
        batch = trainer.batch(0)
        assert batch is not None
        assert len(batch.rollouts) == 4
        ledgers[0].prove(0, "other", Canary(computed_by=computed_by, logprobs=expected[0].tolist()))
        last = list(read_jsonl(tmp_path / "events.jsonl"))[-1]
        assert (last["kind"], last["worker"]) == ("quarantined", seats[0].joined.worker)
        assert "digest other; those of version 0 have d0" in last["cause"]
    while CALLERS:
        CALLERS.pop().close()


def test_a_canary_among_running_samples_changes_none_of_them() -> None:
    policy = open_policy(CONFIG)
    learner = Learner(CONFIG, policy.spec, policy.params)
    learner.begin_reinforcement()
    weights, found, prompt = learner.weights(), [], policy.task.prompt(0).token_ids
    request = SampleRequest(key=("t", 0), prompt_ids=prompt, seed=3, max_new_tokens=8, temperature=1.0, stop_ids=())
    drawn = canary(policy.spec, longest(CONFIG, policy))

    def samples(sampler: CanarySampler | Engine) -> list:
        sampler.load(weights)
        sampler.submit(request)
        sampler.step()
        sampler.load(replace(weights, version=1))
        ended = []
        while sampler.running() or sampler.waiting():
            ended += sampler.step()
        return ended

    plain = samples(engine_of(CONFIG, policy))
    told = samples(CanarySampler(engine_of(CONFIG, policy), drawn, lambda weights, logprobs: found.append((weights.version, logprobs))))
    assert [sample.key for sample in told] == [("t", 0)]
    assert told[0].key[0] != TICKET
    np.testing.assert_array_equal(told[0].completion_ids, plain[0].completion_ids)
    np.testing.assert_array_equal(told[0].logprobs, plain[0].logprobs)
    assert [version for version, _ in found] == [0, 1]
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)
