"""From a configuration to its task. The one place that knows every task."""

from slipstream.config.schema import ArithmeticTask, RunConfig, SumsTask
from slipstream.envs.arithmetic import arithmetic
from slipstream.envs.rows import rows
from slipstream.envs.sums import sums
from slipstream.envs.task import Task
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer


def build_task(config: RunConfig, tokenizer: Tokenizer | None = None, chat: ChatTemplate | None = None) -> Task:
    """The task of a run. Tasks in words need the model's tokenizer and chat template; arithmetic brings its own alphabet.

    Raises UsageError for data files that are absent or have no usable row.
    """
    task, seed = config.task, config.run.seed
    if isinstance(task, ArithmeticTask):
        return arithmetic(task, seed)
    if tokenizer is None or chat is None:
        raise ValueError(f"task {task.kind} needs the tokenizer and the chat template of a pretrained model")
    if isinstance(task, SumsTask):
        return sums(task, seed, tokenizer, chat)
    return rows(task, seed, tokenizer, chat)
