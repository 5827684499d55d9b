"""Records refuse what would be wrong later: rewards that nobody judged, arrays that do not fit each other, changes."""

import dataclasses

import numpy as np
import pytest

from slipstream.core.records import Outcome, OutcomeKind, Prompt, Rollout, Ticket
from tests.ledger.rollouts import make_rollout

PROMPT = Prompt(id="p", token_ids=np.arange(3, dtype=np.int32), text="1+2=", answer="3")
TICKET = Ticket(id="t0", index=0, group_id="g0", prompt=PROMPT, samples=(0, 1), version_floor=0, version_pinned=None)


@pytest.mark.parametrize("kind", [OutcomeKind.TIMEOUT, OutcomeKind.INFRASTRUCTURE])
def test_what_was_not_judged_has_no_reward(kind: OutcomeKind) -> None:
    assert Outcome(kind=kind, reward=None).reward is None
    with pytest.raises(ValueError, match="cannot carry a reward"):
        Outcome(kind=kind, reward=0.0)


@pytest.mark.parametrize("kind", [OutcomeKind.VALUE, OutcomeKind.WRONG, OutcomeKind.UNPARSEABLE])
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_is_a_finite_number(kind: OutcomeKind, reward: float) -> None:
    assert Outcome(kind=kind, reward=-1.5).reward == -1.5
    with pytest.raises(ValueError, match="not a finite number"):
        Outcome(kind=kind, reward=reward)


@pytest.mark.parametrize("name", ["logprobs", "versions", "loss_mask"])
@pytest.mark.parametrize("tokens", [0, 3, 5])
def test_a_rollout_has_an_entry_a_token(name: str, tokens: int) -> None:
    rollout = make_rollout(TICKET, 0, [0, 0, 1, 1])
    with pytest.raises(ValueError, match=rf"rollout t0/0: {name} has {tokens} entries for 4 tokens"):
        dataclasses.replace(rollout, **{name: np.zeros(tokens, getattr(rollout, name).dtype)})


def test_the_age_of_a_rollout_is_that_of_its_oldest_token() -> None:
    assert make_rollout(TICKET, 0, [3, 2, 4]).age_version == 2


def test_records_are_frozen_slotted_and_by_keyword() -> None:
    rollout = make_rollout(TICKET, 0, [0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        rollout.seed = 3  # type: ignore[misc]
    assert not hasattr(rollout, "__dict__")
    with pytest.raises(TypeError):
        Rollout("run")  # type: ignore[call-arg]
