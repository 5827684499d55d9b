"""The whole-tree check: contradictions between fields, and settings that could have no effect. Reports all of them."""

from collections.abc import Sequence

from slipstream.config.objective_checks import objective_problems
from slipstream.config.schema import (
    ArithmeticTask,
    PretrainedModel,
    ProductsTask,
    RowsTask,
    RunConfig,
    ScratchModel,
    Section,
    SumsTask,
    VerifiersTask,
    WordsTask,
)
from slipstream.core.errors import Problem

OWN_ALPHABET = (ArithmeticTask, ProductsTask)  # tasks of characters, for models from scratch; they have demonstrations


def contradictions(config: RunConfig) -> list[Problem]:
    """Every problem between fields of an otherwise well-formed tree; an empty list means it can run."""
    parts = (
        _mode,
        _swaps,
        _batch,
        objective_problems,
        _optimizer,
        _adapters,
        _mesh,
        _warm_start,
        _model_and_task,
        _exactness,
        _rows_to_train_on,
        _grading,
        _evaluation,
    )
    return [problem for part in parts for problem in part(config)]


def _problem(field: str, value: object, fix: str) -> Problem:
    return Problem(field=field, value=repr(value), fix=fix)


def _mode(config: RunConfig) -> list[Problem]:
    kind, eta = config.mode.kind, config.mode.eta
    if kind == "sync" and eta != 0:
        return [_problem("mode.eta", eta, "sync means eta = 0; set mode.eta=0, or mode.kind to lagged or inflight")]
    if kind != "sync" and eta == 0:
        return [_problem("mode.eta", eta, f"{kind} needs eta of at least 1; eta = 0 is mode.kind=sync")]
    fixed = f"with mode.kind={kind} each batch takes its own prompts and waits for them" if kind != "inflight" else ""
    return _without_effect(config.mode, "mode", ("staleness",), fixed)


def _swaps(config: RunConfig) -> list[Problem]:
    sampling, kind = config.sampling, config.mode.kind
    pinned = "" if kind == "inflight" else f"with mode.kind={kind} weights change only between samples"
    keeps = "" if sampling.kv_on_swap == "auto" else f"only sampling.kv_on_swap=auto measures, and it is {sampling.kv_on_swap}"
    return [
        *_without_effect(sampling, "sampling", ("kv_on_swap",), pinned),
        *_without_effect(sampling, "sampling", ("kv_divergence_limit",), keeps),
    ]


def _batch(config: RunConfig) -> list[Problem]:
    batch = config.batch
    problems: list[Problem] = []
    if batch.prompts_per_step % batch.minibatches:
        problems.append(_problem("batch.minibatches", batch.minibatches, f"must divide batch.prompts_per_step = {batch.prompts_per_step}"))
    if config.objective.name in ("sft", "distill"):
        problems += _without_effect(batch, "batch", ("refill",), f"objective.name={config.objective.name} does not learn from rewards")
    if not config.has_rollouts:
        problems += _without_effect(batch, "batch", ("caps",), f"objective.name={config.objective.name} samples nothing")
    if isinstance(config.task, RowsTask) and not batch.caps:
        problems += _without_effect(config.task, "task", ("environment_field",), "batch.caps is empty")
    if config.sampling.max_new_tokens >= batch.row_tokens:
        fix = f"a packed row must hold a prompt and up to sampling.max_new_tokens = {config.sampling.max_new_tokens} tokens; raise it"
        problems.append(_problem("batch.row_tokens", batch.row_tokens, fix))
    if list(batch.row_lengths) != sorted({*batch.row_lengths} - {batch.row_tokens}) or max(batch.row_lengths, default=0) > batch.row_tokens:
        fix = f"must rise and stay below batch.row_tokens = {batch.row_tokens}"
        problems.append(_problem("batch.row_lengths", batch.row_lengths, fix))
    if batch.rows_per_microbatch % 2 and not batch.row_lengths:
        why = f"batch.rows_per_microbatch = {batch.rows_per_microbatch} has no half"
        problems += _without_effect(batch, "batch", ("partial_microbatches",), why)
    if batch.refill and config.objective.advantage == "gae":
        fix = "with objective.advantage=gae groups of equal rewards teach as well, and need no replacement; remove it"
        problems.append(_problem("batch.refill", batch.refill, fix))
    return problems


def _optimizer(config: RunConfig) -> list[Problem]:
    optimizer, updates = config.optimizer, config.run.steps * config.batch.minibatches
    problems: list[Problem] = []
    if optimizer.name != "muon":
        problems += _without_effect(optimizer, "optimizer", ("muon_momentum", "muon_iterations"), f"{optimizer.name} has none")
    if optimizer.schedule == "constant":
        problems += _without_effect(optimizer, "optimizer", ("final_fraction",), "with optimizer.schedule=constant the rate does not fall")
    elif optimizer.warmup_steps >= updates - 1:
        fix = f"the run has {updates} optimizer steps, and optimizer.warmup_steps = {optimizer.warmup_steps} leave none to fall in"
        problems.append(_problem("optimizer.schedule", optimizer.schedule, fix))
    return problems


def _adapters(config: RunConfig) -> list[Problem]:
    lora = config.model.lora
    if not lora.rank:
        return _without_effect(lora, "model.lora", ("alpha", "targets"), "with model.lora.rank=0 there are no adapters")
    problems: list[Problem] = []
    if not lora.targets or len(set(lora.targets)) < len(lora.targets):
        problems.append(_problem("model.lora.targets", lora.targets, "name each matrix once, and at least one"))
    if config.optimizer.name == "muon":
        fix = "steps of low-rank factors are not made orthogonal; use adamw, or model.lora.rank=0"
        problems.append(_problem("optimizer.name", "muon", fix))
    return problems


def _mesh(config: RunConfig) -> list[Problem]:
    mesh, batch = config.mesh, config.batch
    devices, rows = mesh.data * mesh.fsdp * mesh.tensor * mesh.expert, mesh.data * mesh.fsdp * mesh.expert
    problems: list[Problem] = []
    if batch.rows_per_microbatch % rows:
        fix = f"rows are spread over mesh.data x mesh.fsdp x mesh.expert = {rows}; make it a multiple"
        problems.append(_problem("batch.rows_per_microbatch", batch.rows_per_microbatch, fix))
    if devices > mesh.data and config.model.numerics == "exact":
        fix = "parts of a matrix round otherwise than the whole; exact numerics split rows only: use mesh.data"
        problems += [_problem(f"mesh.{axis}", size, fix) for axis in ("fsdp", "tensor", "expert") if (size := getattr(mesh, axis)) > 1]
    return problems


def _exactness(config: RunConfig) -> list[Problem]:
    """Exact numerics promise equal bits, so sampler and learner must round to the same numbers and cut rows into the same pages."""
    if config.model.numerics != "exact":
        return []
    problems: list[Problem] = []
    sampler, learner, page = config.sampling.precision, config.model.learner_precision, config.sampling.page_tokens
    if sampler != learner:
        fix = f"model.numerics=exact needs the learner's precision, model.learner_precision={learner}; make them equal"
        problems.append(_problem("sampling.precision", sampler, fix))
    for field, lengths in (("row_tokens", (config.batch.row_tokens,)), ("row_lengths", config.batch.row_lengths)):
        if any(length % page for length in lengths):
            fix = f"model.numerics=exact cuts rows into pages of sampling.page_tokens = {page}; make it a multiple"
            problems.append(_problem(f"batch.{field}", getattr(config.batch, field), fix))
    return problems


def _rows_to_train_on(config: RunConfig) -> list[Problem]:
    if isinstance(config.task, RowsTask) and not config.task.train and config.objective.name != "sft":
        return [_problem("task.train", config.task.train, "a file with rows to train on is needed")]
    return []


def _grading(config: RunConfig) -> list[Problem]:
    """Graders judge replies; whoever leads an episode of several turns has to be where it is drawn."""
    if config.grading.on == "samplers":
        return []
    if not config.has_rollouts:
        return _without_effect(config.grading, "grading", ("on",), f"objective.name={config.objective.name} samples nothing")
    task = config.task
    leads = ["task.tools"] if isinstance(task, WordsTask) and task.tools else []
    leads += [f"task.{name}" for name in ("environment", "agent") if isinstance(task, RowsTask) and getattr(task, name)]
    leads += ["task.kind=verifiers"] if isinstance(task, VerifiersTask) else []
    fix = "leads episodes of several turns, which stay with the sampler; set grading.on=samplers"
    return [_problem("grading.on", config.grading.on, f"{name} {fix}") for name in leads]


def _evaluation(config: RunConfig) -> list[Problem]:
    chosen = config.evaluation
    problems = [
        _problem("evaluation.k", k, f"pass@{k} needs evaluation.samples of at least {k}, and it is {chosen.samples}")
        for k in chosen.k
        if k > chosen.samples
    ]
    if not chosen.k:
        problems += _without_effect(chosen, "evaluation", ("samples",), "there is no evaluation.k, e.g. evaluation.k=[8]")
    if not chosen.samples:
        problems += _without_effect(chosen, "evaluation", ("temperature",), "evaluation.samples=0 draws no answers but the greedy one")
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
        if not isinstance(task, OWN_ALPHABET):
            problems.append(_problem("model.source.kind", source.kind, f"task {task.kind} speaks words; it needs a pretrained model"))
    if isinstance(source, PretrainedModel) and isinstance(task, OWN_ALPHABET):
        problems.append(_problem("task.kind", task.kind, "has an alphabet of its own; with a pretrained model use task.kind=sums or rows"))
    if config.warm_start.stages and not isinstance(task, OWN_ALPHABET):
        problems.append(
            _problem("warm_start.stages", len(config.warm_start.stages), f"task {task.kind} has no demonstrations; remove them")
        )
    if isinstance(task, WordsTask):
        problems += _tools(task)
    if isinstance(task, RowsTask):
        problems += _rows_task(task)
    if isinstance(task, SumsTask) and task.digits == 1 and task.one_digit_share:
        problems.append(_problem("task.one_digit_share", task.one_digit_share, "with task.digits=1 all numbers have one digit; remove it"))
    return problems


def _tools(task: WordsTask) -> list[Problem]:
    rows = task if isinstance(task, RowsTask) else None
    own = rows is not None and bool(rows.environment or rows.agent)
    none = "" if task.tools or own else "there are no task.tools" + (" and no task.environment or task.agent" if rows else "")
    problems = _without_effect(task, "task", ("max_turns", "step_seconds", "episode_seconds"), none)
    if "search" not in task.tools:
        problems += _without_effect(task, "task", ("search_file",), "search is none of task.tools")
    elif not task.search_file:
        problems.append(_problem("task.search_file", task.search_file, "the tool search needs a file to search; give one"))
    if len(set(task.tools)) < len(task.tools):
        problems.append(_problem("task.tools", list(task.tools), "each tool once is enough"))
    return problems


def _rows_task(task: RowsTask) -> list[Problem]:
    formless = "" if task.grader not in ("exact", "code") else f"task.grader={task.grader} judges the whole reply and no form"
    formless = "a function of your own says the whole reward" if task.reward else formless
    problems = _without_effect(task, "task", ("format_weight",), formless)
    problems += _without_effect(task, "task", ("grader",), f"task.reward={task.reward} judges instead" if task.reward else "")
    own = f"task.environment={task.environment} judges, and answers, instead" if task.environment else ""
    own = f"task.agent={task.agent} leads the episode and judges it" if task.agent else own
    problems += _without_effect(task, "task", ("grader", "reward", "tools", "format_weight"), own)
    if task.agent:
        problems += _without_effect(task, "task", ("environment", "step_seconds"), own)
    problems += _without_effect(task, "task", ("agents_at_once",), "" if task.agent else "there is no task.agent")
    problems += _without_effect(task, "task", ("reward_seconds", "reward_workers"), "" if task.reward else "there is no task.reward")
    if task.curriculum == "none":
        problems += _without_effect(task, "task", ("pass_rates",), "task.curriculum is none")
    elif not task.pass_rates:
        fix = "an order by difficulty needs measured pass rates; give their file as task.pass_rates"
        problems.append(_problem("task.curriculum", task.curriculum, fix))
    return problems
