"""The whole-tree check: contradictions between fields, and settings that could have no effect. Reports all of them."""

from collections.abc import Sequence

from slipstream.config.schema import ArithmeticTask, PretrainedModel, RowsTask, RunConfig, ScratchModel, Section, SumsTask
from slipstream.core.errors import Problem


def contradictions(config: RunConfig) -> list[Problem]:
    """Every problem between fields of an otherwise well-formed tree; an empty list means it can run."""
    return [*_mode(config), *_batch(config), *_objective(config), *_warm_start(config), *_model_and_task(config), *_exactness(config)]


def _problem(field: str, value: object, fix: str) -> Problem:
    return Problem(field=field, value=repr(value), fix=fix)


def _mode(config: RunConfig) -> list[Problem]:
    kind, eta = config.mode.kind, config.mode.eta
    if kind == "sync" and eta != 0:
        return [_problem("mode.eta", eta, "sync means eta = 0; set mode.eta=0, or mode.kind to lagged or inflight")]
    if kind != "sync" and eta == 0:
        return [_problem("mode.eta", eta, f"{kind} needs eta of at least 1; eta = 0 is mode.kind=sync")]
    return []


def _batch(config: RunConfig) -> list[Problem]:
    batch = config.batch
    problems: list[Problem] = []
    if batch.prompts_per_step % batch.minibatches:
        problems.append(_problem("batch.minibatches", batch.minibatches, f"must divide batch.prompts_per_step = {batch.prompts_per_step}"))
    if config.sampling.max_new_tokens >= batch.row_tokens:
        fix = f"a packed row must hold a prompt and up to sampling.max_new_tokens = {config.sampling.max_new_tokens} tokens; raise it"
        problems.append(_problem("batch.row_tokens", batch.row_tokens, fix))
    return problems


def _objective(config: RunConfig) -> list[Problem]:
    objective, batch = config.objective, config.batch
    problems: list[Problem] = []
    problems += _without_effect(objective, "objective", ("clip_low", "clip_high"), _why_nothing_is_clipped(config))
    if objective.name in ("ppo", "reinforce"):
        problems += _without_effect(objective, "objective", ("weight_cap",), f"{objective.name} has no importance weights to cap")
    if objective.name == "reinforce" and config.mode.eta > 0:
        fix = "reinforce has no correction and drifts on stale data; use decoupled_ppo or reinforce_is, or mode.kind=sync mode.eta=0"
        problems.append(_problem("objective.name", objective.name, fix))
    if objective.name == "reinforce" and batch.minibatches > 1:
        fix = "reinforce has no correction, and after the first minibatch the samples are no longer its own; set it to 1"
        problems.append(_problem("batch.minibatches", batch.minibatches, fix))
    return problems


def _why_nothing_is_clipped(config: RunConfig) -> str:
    """The reason why no ratio can ever leave 1, "" where it can."""
    name, single = config.objective.name, config.batch.minibatches == 1
    if name in ("reinforce", "reinforce_is"):
        return f"{name} does not clip"
    if name == "decoupled_ppo" and single:
        return "with batch.minibatches=1 the proximal policy is the current one, so that nothing is clipped"
    if name == "ppo" and single and config.mode.kind == "sync":
        return "with mode.kind=sync and batch.minibatches=1 the samples are the policy's own, so that nothing is clipped"
    return ""


def _exactness(config: RunConfig) -> list[Problem]:
    """Exact numerics promise equal bits, so sampler and learner must round to the same numbers and cut rows into the same pages."""
    if config.model.numerics != "exact":
        return []
    problems: list[Problem] = []
    sampler, learner, page = config.sampling.precision, config.model.learner_precision, config.sampling.page_tokens
    if sampler != learner:
        fix = f"model.numerics=exact needs the learner's precision, model.learner_precision={learner}; make them equal"
        problems.append(_problem("sampling.precision", sampler, fix))
    if config.batch.row_tokens % page:
        fix = f"model.numerics=exact cuts rows into pages of sampling.page_tokens = {page}; make it a multiple"
        problems.append(_problem("batch.row_tokens", config.batch.row_tokens, fix))
    return problems


def _warm_start(config: RunConfig) -> list[Problem]:
    if config.warm_start.stages:
        return []
    fields = ("samples_per_step", "learning_rate", "warmup_steps", "b2")
    return _without_effect(config.warm_start, "warm_start", fields, "there are no warm_start.stages")


def _without_effect(section: Section, path: str, fields: Sequence[str], reason: str) -> list[Problem]:
    """Fields that were given a value of their own although, for `reason`, nothing reads them; none where there is no reason."""
    given = [name for name in fields if getattr(section, name) != type(section).model_fields[name].default]
    return [_problem(f"{path}.{name}", getattr(section, name), f"has no effect: {reason}; remove it") for name in given if reason]


def _model_and_task(config: RunConfig) -> list[Problem]:
    problems: list[Problem] = []
    source, task = config.model.source, config.task
    if isinstance(source, ScratchModel):
        if source.heads % source.kv_heads:
            problems.append(_problem("model.source.kv_heads", source.kv_heads, f"must divide model.source.heads = {source.heads}"))
        if source.d_model % source.heads or (source.d_model // source.heads) % 2:
            problems.append(_problem("model.source.d_model", source.d_model, "d_model / heads must be a whole, even number (rotary pairs)"))
        if not isinstance(task, ArithmeticTask):
            problems.append(_problem("model.source.kind", source.kind, f"task {task.kind} speaks words; it needs a pretrained model"))
    if isinstance(source, PretrainedModel) and isinstance(task, ArithmeticTask):
        problems.append(_problem("task.kind", task.kind, "has an alphabet of its own; with a pretrained model use task.kind=sums or rows"))
    if config.warm_start.stages and not isinstance(task, ArithmeticTask):
        problems.append(
            _problem("warm_start.stages", len(config.warm_start.stages), f"task {task.kind} has no demonstrations; remove them")
        )
    if isinstance(task, RowsTask) and task.grader == "exact":
        problems += _without_effect(task, "task", ("format_weight",), "task.grader=exact judges the whole reply and no form")
    if isinstance(task, SumsTask) and task.digits == 1 and task.one_digit_share:
        problems.append(_problem("task.one_digit_share", task.one_digit_share, "with task.digits=1 all numbers have one digit; remove it"))
    return problems
