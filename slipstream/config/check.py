"""The whole-tree check: contradictions between fields, and settings that could have no effect. Reports all of them."""

from slipstream.config.schema import ArithmeticTask, PretrainedModel, RunConfig, ScratchModel, SumsTask
from slipstream.core.errors import Problem


def contradictions(config: RunConfig) -> list[Problem]:
    """Every problem between fields of an otherwise well-formed tree; an empty list means it can run."""
    return [*_mode(config), *_batch(config), *_objective(config), *_model_and_task(config)]


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
    batch, problems = config.batch, []
    if batch.prompts_per_step % batch.minibatches:
        problems.append(_problem("batch.minibatches", batch.minibatches, f"must divide batch.prompts_per_step = {batch.prompts_per_step}"))
    if config.sampling.max_new_tokens >= batch.row_tokens:
        fix = f"a packed row must hold a prompt and up to sampling.max_new_tokens = {config.sampling.max_new_tokens} tokens; raise it"
        problems.append(_problem("batch.row_tokens", batch.row_tokens, fix))
    return problems


def _objective(config: RunConfig) -> list[Problem]:
    objective = config.objective
    problems = []
    changed = objective.model_fields_set
    if objective.name in ("reinforce", "reinforce_is"):
        for name in sorted({"clip_low", "clip_high"} & changed):
            default = type(objective).model_fields[name].default
            if getattr(objective, name) != default:
                problems.append(_problem(f"objective.{name}", getattr(objective, name), f"{objective.name} does not clip; remove it"))
    if objective.name == "reinforce" and config.mode.eta > 0:
        fix = "reinforce has no correction and drifts on stale data; use decoupled_ppo or reinforce_is, or mode.kind=sync mode.eta=0"
        problems.append(_problem("objective.name", objective.name, fix))
    return problems


def _model_and_task(config: RunConfig) -> list[Problem]:
    problems = []
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
    if isinstance(task, (ArithmeticTask, SumsTask)) and not 0 < task.held_out < 1:
        problems.append(_problem("task.held_out", task.held_out, "both training and held-out problems are needed; choose between 0 and 1"))
    return problems
