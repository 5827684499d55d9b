"""A model directory opened for generation: shape, tokenizer, chat template, engine with weights. For `serve` and `generate`."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.core.clock import Clock
from slipstream.core.errors import UsageError
from slipstream.core.records import WeightVersion
from slipstream.engine.engine import Engine
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision
from slipstream.runtime.pretrained import read_pretrained
from slipstream.text.chat import ChatTemplate, read_chat_template
from slipstream.text.tokenizer import Tokenizer
from slipstream.weights.files import read_params

PAGE_TOKENS = 64  # of the cache; in exact mode part of the arithmetic, so `generate` and `score` have the same
TOKENS_PER_DISPATCH = 4  # more: fewer pauses of the device; fewer: tokens are shown, and freed slots filled, sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """All of a model directory but its weights."""

    directory: Path
    spec: ModelSpec
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the directory has none that can be used
    template_problem: str = ""  # why not

    @property
    def tokens(self) -> int:
        """Ids from here on are no tokens."""
        return self.spec.known_tokens or self.spec.vocab

    def chat_template(self) -> ChatTemplate:
        """Raises UsageError where there is none."""
        if self.template is None:
            raise UsageError(self.template_problem)
        return self.template


def open_model(directory: Path) -> LocalModel:
    """Raises UsageError when the directory is no model that can be run. A chat template may be missing: not all models chat."""
    if not (directory / "config.json").is_file():
        raise UsageError(f"--model {directory} is no model directory: there is no config.json in it")
    spec, tokenizer = read_pretrained(directory)
    try:
        template, problem = read_chat_template(directory), ""
    except UsageError as error:
        template, problem = None, str(error)
    return LocalModel(directory=directory, spec=spec, tokenizer=tokenizer, template=template, template_problem=problem)


def build_engine(
    model: LocalModel,
    clock: Clock,
    *,
    slots: int,
    max_tokens: int,
    precision: Precision = "f32",
    exact: bool = False,
    tokens_per_dispatch: int = TOKENS_PER_DISPATCH,
) -> Engine:
    """An engine with the directory's weights as version 0. `max_tokens` bounds prompt plus completion."""
    engine = Engine(
        model.spec,
        id="serve-0",
        clock=clock,
        slots=slots,
        max_tokens=max_tokens,
        tokens_per_dispatch=tokens_per_dispatch,
        precision=precision,
        exact=exact,
        page_tokens=PAGE_TOKENS,
    )
    engine.load(WeightVersion(lineage=0, version=0, params=read_params(model.directory, model.spec)))
    return engine
