"""What `slipstream eval` evaluates: a model directory, or the checkpoint of a run, opened the same way."""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from slipstream.config.schema import PretrainedModel, RunConfig
from slipstream.envs.build import build_task
from slipstream.models.parameters import Params, declarations, from_leaves
from slipstream.models.spec import ModelSpec
from slipstream.runtime.export import PARAMS, find_checkpoint, read_run_config
from slipstream.runtime.policy import scratch_spec
from slipstream.runtime.pretrained import model_directory, read_pretrained
from slipstream.runtime.serve.model import open_model
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.text.chat import ChatTemplate, read_chat_template
from slipstream.text.tokenizer import Tokenizer
from slipstream.train.arrays import read_tree
from slipstream.weights.files import read_params


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalModel:
    """A model before its weights are read."""

    name: str  # its directory
    spec: ModelSpec
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: it has none that can be used
    template_problem: str = ""  # why not
    config: RunConfig | None = None  # of the run, where it is one's
    step: int = 0  # of the checkpoint
    weights: Path  # a model directory, or the file of a checkpoint

    def read(self) -> Params:
        """The weights in float32. Raises UsageError or RunFailed where they are absent, damaged or of another model."""
        if self.config is None:
            return read_params(self.weights, self.spec)
        like = from_leaves({item.path: jax.ShapeDtypeStruct(item.shape(self.spec), np.float32) for item in declarations(self.spec)})
        return read_tree(self.weights, like)[0]


def open_directory(directory: Path) -> EvalModel:
    """Raises UsageError when the directory is no model that can be run."""
    found = open_model(directory)
    return EvalModel(
        name=str(directory),
        spec=found.spec,
        tokenizer=found.tokenizer,
        template=found.template,
        template_problem=found.template_problem,
        weights=directory,
    )


def open_checkpoint(run: Path, step: int | None) -> EvalModel:
    """The policy of a run's checkpoint, the newest where `step` is None. Raises UsageError where there is no such run or step."""
    directory = RunDirectory.open(run)
    config = read_run_config(directory)
    checkpoint = find_checkpoint(directory.checkpoints, step)
    source = config.model.source
    if isinstance(source, PretrainedModel):
        spec, tokenizer = read_pretrained(model_directory(source))
        template = read_chat_template(model_directory(source))
    else:
        tokenizer, template = build_task(config).tokenizer, None
        spec = scratch_spec(config, source, tokenizer)
    return EvalModel(
        name=str(run),
        spec=spec,
        tokenizer=tokenizer,
        template=template,
        template_problem="" if template else f"{run} trained a model from scratch, which has no chat template",
        config=config,
        step=checkpoint.step,
        weights=checkpoint.path / PARAMS,
    )
