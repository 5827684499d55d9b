"""Model and task of a run without the weights: all that a coordinator needs to make tickets, and a sampler to draw them. No jax here."""

from dataclasses import dataclass
from typing import Protocol

from slipstream.config.schema import PretrainedModel, RunConfig, ScratchModel
from slipstream.envs.build import build_task
from slipstream.envs.task import Task
from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.runtime.pretrained import model_directory, read_pretrained
from slipstream.text.chat import read_chat_template
from slipstream.text.tokenizer import Tokenizer


class Shaped(Protocol):
    """Whatever knows the shape of the model and the task."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def task(self) -> Task: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Model and task, bound to each other by the tokenizer."""

    spec: ModelSpec
    task: Task


def open_shape(config: RunConfig) -> Shape:
    """Raises UsageError when the model directory or the data cannot be used."""
    source = config.model.source
    if not isinstance(source, PretrainedModel):
        task = build_task(config)
        return Shape(spec=scratch_spec(config, source, task.tokenizer), task=task)
    directory = model_directory(source)
    spec, tokenizer = read_pretrained(directory)
    return Shape(spec=spec, task=build_task(config, tokenizer, read_chat_template(directory)))


def scratch_spec(config: RunConfig, source: ScratchModel, tokenizer: Tokenizer) -> ModelSpec:
    """The shape of a fresh model over the task's alphabet."""
    return ModelSpec(
        vocab=tokenizer.vocab_size,
        d_model=source.d_model,
        layers=source.layers,
        heads=source.heads,
        kv_heads=source.kv_heads,
        head_dim=source.d_model // source.heads,
        d_ff=source.d_ff,
        rope=RopeSpec(theta=source.rope_theta),
        norm_eps=1e-5,
        tied=True,
        context=config.batch.row_tokens,
    )
