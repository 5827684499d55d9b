"""Objectives, corrections, reference and streams: own defaults, contradictions and settings without effect, all of them at once."""

import math

import pytest

from slipstream.config.load import dump_config, load_config, parse_config
from slipstream.config.schema import OWN_DEFAULTS, ObjectiveSection
from slipstream.core.errors import ConfigError

SYNC = ("mode.kind=sync", "mode.eta=0")
EXACT = ("model.numerics=exact", "batch.row_tokens=64")
STREAM = "streams=[{name='demo', file='d.jsonl', samples_per_step=8}]"


def objective(name: str, *more: str) -> list[str]:
    return [f"objective.name={name}", *more]


REFUSED = [
    # formulas
    (objective("dapo", "objective.weight_cap=2.0"), "objective.weight_cap"),
    (objective("ppo", "objective.ratio_penalty=0.1"), "objective.ratio_penalty"),
    (objective("cispo", "objective.clip_high=0.3"), "objective.clip_high"),
    (objective("gspo", *SYNC, "objective.clip_low=0.1"), "objective.clip_low"),
    (objective("ppo", "correction.importance=truncated", "objective.clip_low=0.1"), "objective.clip_low"),
    (objective("reinforce_is", "objective.weight_cap=inf"), "objective.weight_cap"),
    (objective("cispo", *EXACT, "objective.weight_cap=inf"), "objective.weight_cap"),
    (["objective.overlong_tokens=22"], "objective.overlong_tokens"),
    # value head
    (["objective.gamma=0.99"], "objective.gamma"),
    (["objective.whiten_advantages=false"], "objective.whiten_advantages"),
    (objective("ppo", "objective.advantage=gae", "objective.value_clip=0.2"), "objective.value_clip"),
    (objective("distill", "objective.reference_path=m", "objective.advantage=gae"), "objective.advantage"),
    (objective("sft", STREAM, "objective.value_rate=2.0"), "objective.value_rate"),
    # proximal
    (objective("ppo", "batch.minibatches=2", "objective.proximal=interpolated"), "objective.proximal"),
    (["objective.proximal=interpolated"], "objective.proximal"),
    (["batch.minibatches=2", "correction.second_moment=0.04", "objective.proximal=interpolated"], "objective.proximal"),
    # reference
    (["objective.reference_path=m"], "objective.reference_path"),
    (["objective.kl_estimator=k2"], "objective.kl_estimator"),
    (["objective.kl_in=reward"], "objective.kl_in"),
    (["objective.kl_coefficient=0.1", "objective.kl_estimator=k1"], "objective.kl_estimator"),
    (objective("distill"), "objective.reference_path"),
    (objective("distill", "objective.reference_path=m", "objective.advantage=grpo"), "objective.advantage"),
    (objective("distill", "objective.reference_path=m", "objective.kl_coefficient=0.1"), "objective.kl_coefficient"),
    (objective("distill", "objective.reference_path=m", "batch.refill=1"), "batch.refill"),
    # corrections
    (["correction.importance=truncated"], "correction.importance"),
    (objective("ppo", *SYNC, *EXACT, "correction.second_moment=0.04"), "correction.second_moment"),
    (["correction.level=sequence"], "correction.level"),
    (["correction.classes=['cpu/int8']"], "correction.classes"),
    (objective("ppo", "correction.importance=masked", "correction.weight_cap=3.0"), "correction.weight_cap"),
    (objective("ppo", "correction.importance=truncated", "correction.weight_low=0.1"), "correction.weight_low"),
    (objective("ppo", "correction.importance=masked", "correction.weight_low=6.0"), "correction.weight_low"),
    (objective("distill", "objective.reference_path=m", "correction.sequence_kl=0.1"), "correction.sequence_kl"),
    # streams
    (objective("sft"), "objective.name"),
    (objective("sft", STREAM, "objective.kl_coefficient=0.1"), "objective.kl_coefficient"),
    (objective("sft", STREAM, "correction.sequence_kl=0.1"), "correction.sequence_kl"),
    (objective("sft", STREAM, "batch.refill=1"), "batch.refill"),
    (["objective.advantage=gae", "batch.refill=1"], "batch.refill"),
    (["streams=[{name='rl', file='d', samples_per_step=8}]"], "streams"),
    (["batch.minibatches=2", "streams=[{name='a', file='d', samples_per_step=7}]"], "streams"),
    (["streams=[{name='A b', file='d', samples_per_step=7}]"], "streams"),
]


@pytest.mark.parametrize(("overrides", "field"), REFUSED)
def test_is_refused_at_its_field(overrides: list[str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", overrides)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert problem.fix


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", ["objective.clip_low=0.1", "objective.kl_in=reward", "correction.level=sequence", "batch.minibatches=1"])
    assert [problem.field for problem in caught.value.problems] == ["objective.clip_low", "objective.kl_in", "correction.level"]


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"objective.name={name}"] for name in OWN_DEFAULTS if name not in ("reinforce", "distill", "sft")),
        objective("reinforce", "correction.importance=truncated"),
        objective("reinforce_is", *EXACT, "objective.weight_cap=inf"),
        objective("distill", "objective.reference_path=m"),
        objective("sft", STREAM),
        [STREAM],
        ["batch.minibatches=2", "objective.proximal=interpolated"],
        ["batch.refill=8", "objective.overlong_tokens=4", "objective.name=dapo"],
        ["objective.advantage=gae", "objective.gae_lambda=0.95", "objective.gamma=0.99", "objective.value_rate=5.0"],
        objective("ppo", "objective.advantage=gae", "batch.minibatches=2", "objective.value_clip=0.2"),
        ["correction.sequence_kl=0.1", "correction.second_moment=0.04", "correction.classes=['cpu/int8']"],
        objective("ppo", "correction.importance=masked", "correction.level=sequence", "correction.classes=['a']", "objective.clip_low=0.1"),
        ["objective.kl_coefficient=0.1", "objective.kl_in=reward", "objective.kl_estimator=k1", "objective.reference_path=m"],
    ],
    ids=str,
)
def test_what_can_have_an_effect_is_allowed_and_survives_saving(overrides: list[str]) -> None:
    config = load_config("quickstart", overrides)
    assert parse_config(dump_config(config)) == config


def test_bounds_that_are_not_given_are_the_objectives_own() -> None:
    dapo, gspo, cispo = (ObjectiveSection.model_validate({"name": name}) for name in ("dapo", "gspo", "cispo"))
    assert (dapo.clip_low, dapo.clip_high, gspo.clip_low, gspo.reducer, cispo.weight_cap) == (0.2, 0.28, 3e-4, "sequence", 4.0)
    assert ObjectiveSection.model_validate({"name": "dapo", "clip_high": 0.2}).clip_high == 0.2
    assert not math.isfinite(load_config("quickstart", objective("reinforce_is", *EXACT, "objective.weight_cap=inf")).objective.weight_cap)
