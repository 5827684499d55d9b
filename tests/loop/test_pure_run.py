"""The loop as a whole, against ports in plain Python: bounds and versions hold, pinned modes repeat bit for bit, no step is lost."""

from pathlib import Path

import numpy as np
import pytest

from slipstream.core.records import Batch
from slipstream.ledger.state import Policy
from tests.loop.pure_run import PureRun, SamplerShape

ONE = (SamplerShape(slots=4, tokens_per_step=2),)
FAST_AND_SLOW = (SamplerShape(slots=5, tokens_per_step=4, turns=6), SamplerShape(slots=2, tokens_per_step=1))
MANY = tuple(SamplerShape(slots=1 + number % 3, tokens_per_step=1 + number % 2) for number in range(5))
CREWS = pytest.mark.parametrize("crew", [ONE, FAST_AND_SLOW, MANY], ids=["one", "fast and slow", "many"])
MODES = pytest.mark.parametrize(("pinned", "eta"), [(True, 0), (True, 1), (True, 3), (False, 1), (False, 2)])


def policy(pinned: bool, eta: int, steps: int = 7) -> Policy:
    return Policy(prompts_per_step=3, group_size=4, eta=eta, pinned=pinned, steps=steps)


@CREWS
@MODES
def test_a_run_makes_its_steps_with_every_prompt_once_and_no_token_too_old(
    tmp_path: Path, crew: tuple[SamplerShape, ...], pinned: bool, eta: int
) -> None:
    run = PureRun(tmp_path / "journal.sqlite", policy(pinned, eta), crew, schedule_seed=3)
    run.run()
    assert [row["step"] for row in run.metrics()] == [row["version"] for row in run.metrics()] == list(range(1, 8))
    for step, report in enumerate(run.reports):
        versions = np.concatenate([rollout.versions for rollout in report.batch.rollouts])
        assert 0 <= step - versions.max() <= step - versions.min() <= eta
        assert report.metrics["age_max"] == step - versions.min()
        if pinned:
            assert set(versions.tolist()) == {max(0, step - eta)}
            assert {rollout.ticket_index for rollout in report.batch.rollouts} == set(range(3 * step, 3 * step + 3))
    groups = [rollout.ticket_index for report in run.reports for rollout in report.batch.rollouts]
    assert set(groups) == set(range(21))
    assert len(groups) == 84 - sum(run.ledger.state.samples_dropped.values())
    assert run.ledger.state.samples_dropped["timeout"] > 0
    outcomes = [row["outcomes"] for row in run.metrics()]
    assert sum(row["timeout"] for row in outcomes) == run.ledger.state.samples_dropped["timeout"]
    assert [row["value"] + row["wrong"] for row in outcomes] == [row["samples"] for row in run.metrics()]
    assert [dispatch.turn() for dispatch in run.dispatches] == [False] * len(crew)  # nothing is left to do
    assert run.ledger.state.balance()["trained"] == 21
    run.ledger.close()


@pytest.mark.parametrize("chatty", [False, True], ids=["one turn", "episodes"])
@pytest.mark.parametrize("eta", [0, 1, 3])
def test_pinned_modes_repeat_bit_for_bit_with_any_samplers_in_any_order(tmp_path: Path, eta: int, chatty: bool) -> None:
    """Whatever the order in which verdicts and environments answer; an episode is of one version, through all its turns."""
    runs = [
        PureRun(tmp_path / f"{number}.sqlite", policy(True, eta), crew, schedule_seed=number, chatty=chatty)
        for number, crew in enumerate((ONE, FAST_AND_SLOW, MANY))
    ]
    for run in runs:
        run.run()
        run.ledger.close()
        for step, report in enumerate(run.reports):
            assert {int(version) for one in report.batch.rollouts for version in one.versions} == {max(0, step - eta)}
        turns = max(row["turns_mean"] for row in run.metrics())
        assert turns > 1.2 if chatty else turns == 1.0
    assert runs[0].batch_bytes() == runs[1].batch_bytes() == runs[2].batch_bytes()
    assert len({run.learner.params for run in runs}) == 1


def test_inflight_runs_differ_and_new_weights_meet_running_samples(tmp_path: Path) -> None:
    """The first shows that equality in the pinned modes is earned; the second that the inflight mode is what it says."""
    runs = [PureRun(tmp_path / f"{seed}.sqlite", policy(False, 2), ONE, schedule_seed=seed) for seed in range(2)]
    for run in runs:
        run.run()
        run.ledger.close()
    assert runs[0].learner.params != runs[1].learner.params
    assert max(row["mixed_version_share"] for row in runs[0].metrics()) > 0
    assert max(row["age_max"] for row in runs[0].metrics()) > 0


def test_inflight_episodes_take_new_weights_between_turns_and_keep_the_bound(tmp_path: Path) -> None:
    run = PureRun(tmp_path / "journal.sqlite", policy(False, 2), MANY, schedule_seed=3, chatty=True)
    run.run()
    run.ledger.close()
    rollouts = [rollout for report in run.reports for rollout in report.batch.rollouts]
    assert {rollout.ticket_index for rollout in rollouts} == set(range(21))
    spoken = [one for one in rollouts if not one.loss_mask.all()]
    assert any(one.versions.min() != one.versions.max() for one in spoken)
    for one in spoken:
        (first,) = np.flatnonzero(~one.loss_mask)[:1]
        assert one.completion_ids[~one.loss_mask].tolist() == [7, first]
        assert (one.versions[~one.loss_mask] == one.versions[first - 1]).all()
        assert not one.logprobs[~one.loss_mask].any()
    assert all(row["age_max"] <= 2 for row in run.metrics())


@pytest.mark.parametrize("eta", [0, 1, 3])
@pytest.mark.parametrize("lost", [0, 1, 2], ids=lambda steps: f"{steps} steps lost")
def test_a_pinned_run_that_was_killed_ends_as_the_one_that_was_not(tmp_path: Path, eta: int, lost: int) -> None:
    whole = PureRun(tmp_path / "whole.sqlite", policy(True, eta), ONE, schedule_seed=1)
    whole.run()
    whole.ledger.close()

    journal = tmp_path / "killed.sqlite"
    first = PureRun(journal, policy(True, eta), MANY, schedule_seed=2)
    first.run(steps=3)
    saved = first.save()
    first.run(steps=lost)
    for dispatch in first.dispatches * 3:
        dispatch.turn()  # leaves leases and half-filled groups behind
    first.ledger.close()

    again = PureRun(journal, policy(True, eta), FAST_AND_SLOW, schedule_seed=4, saved=saved)
    again.run()
    assert first.batch_bytes()[:3] + again.batch_bytes() == whole.batch_bytes()
    assert first.batch_bytes()[3:] == again.batch_bytes()[:lost]
    assert again.learner.params == whole.learner.params
    assert again.ledger.state.lineage == (lost > 0)
    again.ledger.close()


@pytest.mark.parametrize("lost", [0, 2])
def test_an_inflight_run_that_was_killed_trains_every_prompt_once(tmp_path: Path, lost: int) -> None:
    journal = tmp_path / "journal.sqlite"
    first = PureRun(journal, policy(False, 2), MANY, schedule_seed=2)
    first.run(steps=3)
    saved = first.save()
    first.run(steps=lost)
    first.ledger.close()
    again = PureRun(journal, policy(False, 2), ONE, schedule_seed=3, saved=saved)
    again.run()
    assert first.batch_bytes()[3:] == again.batch_bytes()[:lost]  # what was fixed is served again
    reports = first.reports[:3] + again.reports
    trained = [{rollout.ticket_index for rollout in report.batch.rollouts} for report in reports]
    assert sorted(index for members in trained for index in members) == list(range(21))
    assert all(row["age_max"] <= 2 for row in again.metrics())
    again.ledger.close()


def refilled(pinned: bool, refill: int = 2) -> Policy:
    """Pairs: about every second group has no signal, so that some steps use up their refills."""
    return Policy(prompts_per_step=3, group_size=2, eta=2, pinned=pinned, steps=7, refill=refill)


def test_lagged_runs_that_refill_repeat_bit_for_bit_in_any_order_and_after_a_kill(tmp_path: Path) -> None:
    runs = [
        PureRun(tmp_path / f"{number}.sqlite", refilled(True), crew, schedule_seed=number)
        for number, crew in enumerate((ONE, FAST_AND_SLOW, MANY))
    ]
    for run in runs[:2]:
        run.run()
    runs[2].run(steps=3)
    saved = runs[2].save()
    runs[2].run(steps=2)
    for dispatch in runs[2].dispatches * 3:
        dispatch.turn()
    runs[2].ledger.close()
    again = PureRun(tmp_path / "2.sqlite", refilled(True), ONE, schedule_seed=9, saved=saved)
    again.run()

    whole, other = ([report.batch for report in run.reports] for run in runs[:2])
    assert runs[0].batch_bytes() == runs[1].batch_bytes() == runs[2].batch_bytes()[:3] + again.batch_bytes()
    assert len({run.learner.params for run in (*runs[:2], again)}) == 1
    assert [dropped(batch) for batch in whole] == [dropped(batch) for batch in other]
    assert [dropped(batch) for batch in whole[3:]] == [dropped(report.batch) for report in again.reports]
    assert {batch.refilled_groups for batch in whole} == {0, 1, 2}  # also steps that use them up
    assert [row["refilled_groups"] for row in runs[0].metrics()] == [batch.refilled_groups for batch in whole]
    assert sum(row["dropped_zero_variance"] for row in runs[0].metrics()) == runs[0].ledger.state.samples_dropped["zero_variance"]
    for row in runs[0].metrics():
        assert row["refilled_groups"] == 2 or row["zero_variance_groups"] == 0
    for run in (*runs[:2], again):
        run.ledger.close()


def dropped(batch: Batch) -> list[tuple[int, int]]:
    return [(rollout.ticket_index, rollout.sample_index) for rollout in batch.dropped]


def test_an_inflight_run_refills_and_every_prompt_is_trained_or_dropped_once(tmp_path: Path) -> None:
    run = PureRun(tmp_path / "journal.sqlite", refilled(False), MANY, schedule_seed=2)
    run.run()
    assert max(row["age_max"] for row in run.metrics()) <= 2
    assert max(row["refilled_groups"] for row in run.metrics()) == 2
    counts = run.ledger.state.balance()
    assert (counts["trained"], counts["dropped"]) == (21, sum(row["refilled_groups"] for row in run.metrics()))
    assert sum(counts.values()) == counts["trained"] + counts["dropped"] == run.ledger.state.next_index
    run.ledger.close()


def test_the_audit_compares_at_the_version_that_sampled(tmp_path: Path) -> None:
    """Log-probs of the fakes depend on the version, so any other version would show; audited every second step."""
    run = PureRun(tmp_path / "journal.sqlite", policy(True, 1), ONE, schedule_seed=0)
    run.run()
    assert [row["mismatch_abs_max"] for row in run.metrics()] == [0.0, None, 0.0, None, 0.0, None, 0.0]
    assert all(row["mismatch_tokens"] > 0 for row in run.metrics()[::2])
    run.ledger.close()


def test_a_row_of_metrics_accounts_for_its_time_and_tokens(tmp_path: Path) -> None:
    run = PureRun(tmp_path / "journal.sqlite", policy(False, 1), ONE, schedule_seed=0)
    run.run()
    times = [row["time"] for row in run.metrics()]
    assert times == sorted(times)
    assert len(times) == 7
    for row, begin in zip(run.metrics()[1:], times[:-1], strict=True):  # before the first step the learner has yet to start
        assert sum(row["phase_seconds"].values()) == pytest.approx(row["time"] - begin, abs=1e-3)
        assert 0 <= row["learner_idle"] <= 1
    for row, report in zip(run.metrics(), run.reports, strict=True):
        assert row["tokens"] == sum(len(rollout.completion_ids) for rollout in report.batch.rollouts)
        assert row["samples"] == len(report.batch.rollouts) == len(report.advantages)
    run.ledger.close()
