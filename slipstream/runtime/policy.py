"""The policy of a run as configured: fresh or read from a directory, with its tokenizer and its task."""

from dataclasses import dataclass

from slipstream.config.schema import PretrainedModel, RunConfig, ScratchModel
from slipstream.core.errors import ConfigError, Problem
from slipstream.envs.build import build_task
from slipstream.envs.corpora import StaticCorpus, read_corpus
from slipstream.envs.task import Task
from slipstream.models.parameters import Params, initialise
from slipstream.models.spec import ModelSpec
from slipstream.runtime.pretrained import model_directory, read_pretrained
from slipstream.runtime.reference import open_reference
from slipstream.runtime.shape import scratch_spec
from slipstream.text.chat import ChatTemplate, read_chat_template
from slipstream.text.template_check import check_template
from slipstream.text.tokenizer import Tokenizer
from slipstream.train.learner import Reference
from slipstream.weights.files import read_params


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Model and task, bound to each other by the tokenizer."""

    spec: ModelSpec
    params: Params
    task: Task
    corpora: tuple[StaticCorpus, ...] = ()  # of the configuration's streams
    reference: Reference | None = None  # that of objective.reference_path
    template_faults: tuple[str, ...] = ()  # where the chat template does not keep to token ids; see `text.template_check`


def open_policy(config: RunConfig) -> Policy:
    """Raises UsageError when the model directory or the data cannot be used, ConfigError when task and settings do not fit."""
    source = config.model.source
    policy = _pretrained(config, source) if isinstance(source, PretrainedModel) else _scratch(config, source)
    _check_lengths(config, policy)
    return policy


def _scratch(config: RunConfig, source: ScratchModel) -> Policy:
    task = build_task(config)
    spec = scratch_spec(config, source, task.tokenizer)
    corpora = _corpora(config, task.tokenizer, None)
    reference = open_reference(config.objective, spec, task.tokenizer)
    return Policy(spec=spec, params=initialise(spec, config.run.seed), task=task, corpora=corpora, reference=reference)


def _corpora(config: RunConfig, tokenizer: Tokenizer, chat: ChatTemplate | None) -> tuple[StaticCorpus, ...]:
    return tuple(read_corpus(stream, config.run.seed, tokenizer, chat, config.batch.row_tokens) for stream in config.streams)


def _pretrained(config: RunConfig, source: PretrainedModel) -> Policy:
    directory = model_directory(source)
    spec, tokenizer = read_pretrained(directory)
    template = read_chat_template(directory)
    task = build_task(config, tokenizer, template)
    faults = tuple(str(fault) for fault in check_template(template, tokenizer))
    return Policy(
        spec=spec,
        params=read_params(directory, spec),
        task=task,
        corpora=_corpora(config, tokenizer, template),
        reference=open_reference(config.objective, spec, tokenizer),
        template_faults=faults,
    )


def _check_lengths(config: RunConfig, policy: Policy) -> None:
    """The longest prompt and completion must fit a packed row and the model's context."""
    longest = policy.task.max_prompt_tokens + config.sampling.max_new_tokens
    made_of = f"prompts of up to {policy.task.max_prompt_tokens} tokens + sampling.max_new_tokens = {config.sampling.max_new_tokens}"
    problems = []
    if longest > config.batch.row_tokens:
        problems.append(Problem(field="batch.row_tokens", value=str(config.batch.row_tokens), fix=f"must be at least {longest}: {made_of}"))
    if longest > policy.spec.context:
        fix = f"the model's context is {policy.spec.context} tokens, but {made_of} make {longest}"
        problems.append(Problem(field="sampling.max_new_tokens", value=str(config.sampling.max_new_tokens), fix=fix))
    if problems:
        raise ConfigError(problems)
