"""`slipstream eval`: answers of a model to a task's held-out problems, and their scores. Called by the command line.

The parts are those of a run's own evaluations (`loop.evaluate`); here is what surrounds them: the model, the task, the files.
"""

from collections.abc import Callable, Sequence
from contextlib import closing

from slipstream.config.load import load_task
from slipstream.config.schema import ArithmeticTask, ProductsTask, RunConfig
from slipstream.config.schema import Task as TaskSettings
from slipstream.core.clock import SystemClock
from slipstream.core.errors import UsageError
from slipstream.core.records import EvaluationResult, Prompt, WeightVersion
from slipstream.engine.engine import Engine
from slipstream.envs.agent import AgentTask
from slipstream.envs.build import build_task
from slipstream.envs.task import Task
from slipstream.loop.eval_format import evaluation_format, format_hash, problems_hash
from slipstream.loop.evaluate import Answer, Draw, answers, figures, outcome_counts, tallies
from slipstream.loop.pass_at_k import score
from slipstream.runtime.countdown import Countdown
from slipstream.runtime.environments import open_environments
from slipstream.runtime.eval_model import EvalModel, open_checkpoint, open_directory
from slipstream.runtime.eval_plan import template_text
from slipstream.runtime.eval_result import Evaluated
from slipstream.runtime.eval_settings import MAX_TOKENS, EvalSettings, check_settings
from slipstream.runtime.input_rows import check_output
from slipstream.telemetry.atomic import atomic_write_bytes
from slipstream.telemetry.jsonl import Row, encode_row
from slipstream.weights.digest import weight_digest

GENERATED = ("arithmetic", "products", "sums", "countdown", "gym", "verifiers")  # kinds of tasks that make or bring their problems
OWN_ALPHABET = (ArithmeticTask, ProductsTask)
DRAWN = 256  # problems of these, which make as many as are asked for
EVERYTHING = 1 << 40  # problems of a task that has them in a file or a table
TOKENS_PER_DISPATCH = 8  # nobody watches single tokens here
PAGE_TOKENS = 64


def run_evaluation(settings: EvalSettings, note: Callable[[str], object]) -> Evaluated:
    """Draw, judge and score; `note` is told what a person should read before it begins.

    Raises UsageError for settings, a model or data that cannot be used, before anything is drawn; RunFailed when no answer could
    be judged.
    """
    check_settings(settings)
    if settings.out:
        check_output(settings.out)
    model = _open_model(settings)
    task_settings = _task_settings(settings, model)
    task = _open_task(task_settings, model)
    for line in task.notes:
        note(line)
    prompts = task.held_out(settings.limit or (DRAWN if isinstance(task_settings, OWN_ALPHABET) else EVERYTHING))
    draw = settings.draw(_max_tokens(model))
    _check_lengths(_longest(task, prompts), draw, model)
    clock = SystemClock()
    begun_s = clock.now_s()
    weights = _weights(model)
    engine = _engine(model, _longest(task, prompts), draw, settings, clock)
    engine.load(weights)
    found = _answers(engine, task, prompts, draw, settings.quiet, clock)
    if settings.out:
        atomic_write_bytes(settings.out, b"".join(encode_row(_answer_row(answer)) for answer in found))
    format = evaluation_format(task_settings, task.format_hash, template_text(model.template), [draw])
    return Evaluated(
        result=_result(found, task.name, settings.k, draw, weights, format_hash(format)),
        model=model.name,
        precision=settings.precision,
        draw=draw,
        format=format,
        problems=len(prompts),
        problems_hash=problems_hash(prompts),
        tallies=tallies(found),
        notes=task.notes,
        seconds=clock.now_s() - begun_s,
    )


def _open_model(settings: EvalSettings) -> EvalModel:
    if settings.model:
        return open_directory(settings.model)
    assert settings.run  # one of both is given: `check_settings`
    return open_checkpoint(settings.run, settings.step)


def _task_settings(settings: EvalSettings, model: EvalModel) -> TaskSettings:
    """Those of the named task, or of the run; rows of --data are for evaluation alone, however long their prompts."""
    if settings.task is None:
        assert model.config  # only a run's task may be left out: `check_settings`
        tree = model.config.task.model_dump(mode="json")
    elif settings.task in GENERATED and not settings.data:
        tree = {"kind": settings.task}
    else:
        tree = {"kind": "rows"} | ({} if settings.task == "rows" else {"name": settings.task})
    if settings.data:
        if tree["kind"] != "rows":
            raise UsageError(f"--data {settings.data}: task {tree['kind']} makes its own problems; leave it out")
        room = model.spec.context - settings.draw(_max_tokens(model)).max_new_tokens
        train = tree.get("train", "") if tree.get("shots") else ""  # examples to show come from there
        tree |= {"train": train, "test": str(settings.data), "max_prompt_tokens": max(1, room)}
    elif tree["kind"] == "rows" and "test" not in tree:
        raise UsageError(f"--task {settings.task} needs --data F: a file with its rows; tasks without one: {', '.join(GENERATED)}")
    return load_task(tree, settings.overrides)


def _max_tokens(model: EvalModel) -> int:
    """Of an answer, where the call does not say: as the run draws."""
    return model.config.sampling.max_new_tokens if model.config else MAX_TOKENS


def _open_task(settings: TaskSettings, model: EvalModel) -> Task:
    """The task, asked in the model's tokens."""
    if not isinstance(settings, OWN_ALPHABET) and model.template is None:
        raise UsageError(f"task {settings.kind} is asked through a chat template: {model.template_problem}")
    task = build_task(RunConfig(task=settings), model.tokenizer, model.template)
    known = [one.backend.get_vocab(with_added_tokens=True) for one in (task.tokenizer, model.tokenizer)]
    if known[0] != known[1]:
        raise UsageError(f"task {settings.kind} has an alphabet of its own, which is not that of {model.name}; use --task sums or rows")
    return task


def _longest(task: Task, prompts: Sequence[Prompt]) -> int:
    """Tokens of the longest prompt: of those that there are, or as long as agents may make theirs."""
    return task.max_prompt_tokens if isinstance(task, AgentTask) else max(len(prompt.token_ids) for prompt in prompts)


def _check_lengths(longest: int, draw: Draw, model: EvalModel) -> None:
    if longest + draw.max_new_tokens > model.spec.context:
        made_of = f"prompts of up to {longest} tokens + {draw.max_new_tokens} new ones make {longest + draw.max_new_tokens}"
        raise UsageError(f"--max-tokens {draw.max_new_tokens}: {made_of}; the model's context is {model.spec.context} tokens")


def _weights(model: EvalModel) -> WeightVersion:
    params = model.read()
    return WeightVersion(lineage=0, version=model.step, params=params, digest=weight_digest(params, model.spec))


def _engine(model: EvalModel, longest_prompt: int, draw: Draw, settings: EvalSettings, clock: SystemClock) -> Engine:
    """With room for the longest, as a power of two, so that few programs are compiled."""
    longest = longest_prompt + draw.max_new_tokens
    return Engine(
        model.spec,
        id="evaluator",
        clock=clock,
        slots=settings.slots,
        max_tokens=min(model.spec.context, 1 << (longest - 1).bit_length()),
        tokens_per_dispatch=TOKENS_PER_DISPATCH,
        precision=settings.precision,
        page_tokens=PAGE_TOKENS,
    )


def _answers(engine: Engine, task: Task, prompts: Sequence[Prompt], draw: Draw, quiet: bool, clock: SystemClock) -> list[Answer]:
    progress = Countdown(len(prompts) * draw.samples, "answers", clock, (lambda _: None) if quiet else None)
    with closing(open_environments(task, clock=clock)) as host:
        found = answers(
            sampler=engine,
            prompts=prompts,
            environments=host,
            codec=task.tokenizer,
            draw=draw,
            on_answer=lambda answer: progress.add(1, len(answer.drawn.completion_ids)),
        )
    progress.finish()
    return found


def _result(
    found: Sequence[Answer], task: str, ks: Sequence[int], draw: Draw, weights: WeightVersion, format_hash: str
) -> EvaluationResult:
    counted = tallies(found)
    first = score(counted, 1)
    return EvaluationResult(
        step=weights.version,
        task=task,
        n=first.problems,
        pass_at_1=first.value,
        ci=first.ci,
        pass_at_k=tuple(score(counted, k) for k in sorted(set(ks)) if k > 1),
        drawn=draw.samples,
        outcomes=outcome_counts(found),
        format_hash=format_hash,
        weight_digest=weights.digest,
        extra=figures(found),
    )


def _answer_row(answer: Answer) -> Row:
    drawn, outcome = answer.drawn, answer.outcome
    return {
        "id": answer.prompt.id,
        "sample": drawn.key[1],
        "prompt": answer.prompt.text,
        "answer": answer.prompt.answer,
        "text": answer.text,
        "outcome": outcome.kind.value,
        "reward": outcome.reward,
        "format_ok": outcome.format_ok,
        "detail": outcome.detail,
        "finish_reason": drawn.finish_reason.value,
        "completion_ids": drawn.completion_ids,
    }
