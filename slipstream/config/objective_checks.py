"""Checks of the objective, its corrections, its reference and the static streams: contradictions, and settings without effect."""

import math
from collections.abc import Iterator

from slipstream.config.schema import OWN_DEFAULTS, ObjectiveSection, RunConfig, Section
from slipstream.core.errors import Problem
from slipstream.core.records import ROLLOUTS

_FORMULA = ("clip_low", "clip_high", "weight_cap", "ratio_penalty")
_OF_VALUES = ("gamma", "gae_lambda", "value_coefficient", "value_rate", "value_clip", "whiten_advantages")
_OF_REWARDS = ("advantage", "overlong_tokens", "kl_coefficient", "kl_estimator", "kl_in", "reference_path", "proximal", "reducer")
_OWN_WEIGHT = ("decoupled_ppo", "reinforce_is", "cispo", "distill")
_CLIPS = ("ppo", "dapo", "gspo", "dppo")


def objective_problems(config: RunConfig) -> list[Problem]:
    """Every problem of `objective`, `correction` and `streams`."""
    if config.objective.name == "sft":
        return [*_supervised_only(config), *_streams(config)]
    of_rollouts = (_formula, _values, _staleness, _proximal, _reference, _correction)
    return [*(problem for check in of_rollouts for problem in check(config)), *_streams(config)]


def _problem(field: str, value: object, fix: str) -> Problem:
    return Problem(field=field, value=repr(value), fix=fix)


def _given(section: Section, path: str, fields: tuple[str, ...], reason: str) -> Iterator[Problem]:
    """Of the fields, those with a value of their own, which for `reason` nothing reads; none where there is no reason."""
    for name in fields if reason else ():
        if getattr(section, name) != _default(section, name):
            yield _problem(f"{path}.{name}", getattr(section, name), f"has no effect: {reason}; remove it")


def _default(section: Section, name: str) -> object:
    if isinstance(section, ObjectiveSection) and name in OWN_DEFAULTS[section.name]:
        return OWN_DEFAULTS[section.name][name]
    return type(section).model_fields[name].default


def _supervised_only(config: RunConfig) -> Iterator[Problem]:
    reason = "with objective.name=sft there are no rollouts"
    yield from _given(config.objective, "objective", (*_FORMULA, *_OF_VALUES, *_OF_REWARDS), reason)
    yield from _given(config.correction, "correction", tuple(type(config.correction).model_fields), reason)
    if not config.streams:
        yield _problem("objective.name", "sft", "trains on streams alone, and there are none; give at least one entry of streams")


def _formula(config: RunConfig) -> Iterator[Problem]:
    objective = config.objective
    reads = OWN_DEFAULTS[objective.name]
    for field in _FORMULA:
        yield from _given(objective, "objective", (field,), "" if field in reads else f"{objective.name} does not read it")
    yield from _given(objective, "objective", tuple({"clip_low", "clip_high"} & reads.keys()), _why_nothing_is_clipped(config))
    if math.isinf(objective.weight_cap) and "weight_cap" in reads:
        if objective.name != "reinforce_is":
            yield _problem("objective.weight_cap", objective.weight_cap, f"{objective.name} needs a bound; only reinforce_is goes without")
        elif config.model.numerics != "exact":
            fix = "unbounded weights need model.numerics=exact: with rounding between sampler and learner they blow up; give a bound"
            yield _problem("objective.weight_cap", objective.weight_cap, fix)
    if objective.name == "distill":
        fields = ("advantage", "overlong_tokens")
        yield from _given(objective, "objective", fields, "distill follows the teacher, not the rewards")
    if objective.overlong_tokens > config.sampling.max_new_tokens:
        fix = f"must be at most sampling.max_new_tokens = {config.sampling.max_new_tokens}"
        yield _problem("objective.overlong_tokens", objective.overlong_tokens, fix)


def _values(config: RunConfig) -> Iterator[Problem]:
    objective = config.objective
    if objective.advantage != "gae":
        yield from _given(objective, "objective", _OF_VALUES, "only objective.advantage=gae has a value head")
    elif config.batch.minibatches == 1:
        reason = "with batch.minibatches=1 the values are those of the start of the step, so that nothing is clipped"
        yield from _given(objective, "objective", ("value_clip",), reason)


def _why_nothing_is_clipped(config: RunConfig) -> str:
    """The reason why no ratio can ever leave 1, "" where it can."""
    name, single = config.objective.name, config.batch.minibatches == 1
    anchored = config.correction.importance != "none" and not config.correction.classes
    if single and (name == "decoupled_ppo" or anchored):
        return "with batch.minibatches=1 the proximal policy is the current one, so that nothing is clipped"
    if name in _CLIPS and single and config.mode.kind == "sync":
        return "with mode.kind=sync and batch.minibatches=1 the samples are the policy's own, so that nothing is clipped"
    return ""


def _staleness(config: RunConfig) -> Iterator[Problem]:
    objective = config.objective
    if objective.name != "reinforce":
        return
    if config.mode.eta > 0 and config.correction.importance == "none":
        fix = "reinforce has no correction and drifts on stale data; use decoupled_ppo or reinforce_is, or mode.kind=sync mode.eta=0"
        yield _problem("objective.name", objective.name, fix)
    if config.batch.minibatches > 1:
        fix = "reinforce has no correction, and after the first minibatch the samples are no longer its own; set it to 1"
        yield _problem("batch.minibatches", config.batch.minibatches, fix)


def _proximal(config: RunConfig) -> Iterator[Problem]:
    objective, correction = config.objective, config.correction
    reason = ""
    if objective.name != "decoupled_ppo" and correction.importance == "none":
        reason = f"{objective.name} has no proximal policy"
    elif config.batch.minibatches == 1:
        reason = "with batch.minibatches=1 the proximal policy is the current one"
    elif correction.second_moment:
        reason = "correction.second_moment needs the log-probs at the start of the step, so they are scored"
    yield from _given(objective, "objective", ("proximal",), reason)


def _reference(config: RunConfig) -> Iterator[Problem]:
    objective = config.objective
    if objective.name == "distill":
        if not objective.reference_path:
            yield _problem("objective.reference_path", "", "distill learns from a teacher; name the teacher's model directory")
        reason = "distill is a KL of its own, to the teacher"
        yield from _given(objective, "objective", ("kl_coefficient", "kl_estimator", "kl_in"), reason)
        return
    if not objective.kl_coefficient:
        yield from _given(objective, "objective", ("kl_estimator", "kl_in", "reference_path"), "objective.kl_coefficient is 0")
    elif objective.kl_estimator == "k1" and objective.kl_in == "loss":
        fix = "the gradient of k1 in the loss is zero in the mean; use k2 (whose gradient is the KL's) or k3, or objective.kl_in=reward"
        yield _problem("objective.kl_estimator", "k1", fix)


def _correction(config: RunConfig) -> Iterator[Problem]:
    correction, name = config.correction, config.objective.name
    kind = correction.importance
    on = [field for field in ("importance", "sequence_kl", "second_moment") if getattr(correction, field) not in (0, "none")]
    own = config.mode.kind == "sync" and config.batch.minibatches == 1 and config.model.numerics == "exact"
    for field in on if own else ():
        fix = "has no effect: with mode.kind=sync, batch.minibatches=1 and model.numerics=exact the samples are the policy's own; remove it"
        yield _problem(f"correction.{field}", getattr(correction, field), fix)
    if kind != "none" and name in _OWN_WEIGHT:
        fix = f"{name} has importance weights of its own (objective.weight_cap), which would be applied twice; use ppo, or none"
        yield _problem("correction.importance", kind, fix)
    if correction.sequence_kl and name == "distill":
        yield _problem("correction.sequence_kl", correction.sequence_kl, "has no effect: distill does not read advantages; remove it")
    if kind == "masked" and correction.weight_low >= correction.weight_high:
        fix = f"must be below correction.weight_high = {correction.weight_high}"
        yield _problem("correction.weight_low", correction.weight_low, fix)
    yield from _given(correction, "correction", ("weight_cap",), "" if kind == "truncated" else "only truncated weights have a cap")
    bounds = ("weight_low", "weight_high")
    yield from _given(correction, "correction", bounds, "" if kind == "masked" else "only masked weights have a range")
    yield from _given(correction, "correction", ("level",), "" if kind != "none" else "correction.importance is none")
    yield from _given(correction, "correction", ("classes",), "" if on else "no correction is on")


def _streams(config: RunConfig) -> Iterator[Problem]:
    names = [ROLLOUTS]
    for stream in config.streams:
        if stream.name in names:
            yield _problem("streams", stream.name, "the rollouts are called rl, and every stream needs a name of its own; rename it")
        names.append(stream.name)
        if stream.samples_per_step % config.batch.minibatches:
            fix = f"batch.minibatches = {config.batch.minibatches} must divide each stream's samples_per_step ({stream.name})"
            yield _problem("streams", stream.samples_per_step, fix)
