"""From a configuration to its task. The one place that knows every task."""

from slipstream.config.schema import ArithmeticTask, CountdownTask, GymTask, ProductsTask, RowsTask, RunConfig, SumsTask, VerifiersTask
from slipstream.envs.arithmetic import arithmetic
from slipstream.envs.from_files import rows_plan
from slipstream.envs.generated import countdown_plan, gym_plan
from slipstream.envs.products import products
from slipstream.envs.rows import rows_task
from slipstream.envs.sums import sums
from slipstream.envs.task import Task
from slipstream.envs.tools.rows import tool_rows
from slipstream.envs.user_agent import agent_rows
from slipstream.envs.user_environment import environment_rows
from slipstream.envs.verifiers_package import verifiers_task
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer


def build_task(config: RunConfig, tokenizer: Tokenizer | None = None, chat: ChatTemplate | None = None) -> Task:
    """The task of a run. Tasks in words need the model's tokenizer and chat template; arithmetic and products bring their own alphabet.

    Raises UsageError for data files that are absent or have no usable row, and for names that nobody knows.
    """
    task, seed = config.task, config.run.seed
    if isinstance(task, ArithmeticTask):
        return arithmetic(task, seed)
    if isinstance(task, ProductsTask):
        return products(task, seed)
    if tokenizer is None or chat is None:
        raise ValueError(f"task {task.kind} needs the tokenizer and the chat template of a pretrained model")
    if isinstance(task, SumsTask):
        return sums(task, seed, tokenizer, chat)
    if isinstance(task, VerifiersTask):
        return verifiers_task(task, seed, tokenizer, chat)
    if isinstance(task, CountdownTask):
        plan = countdown_plan(task)
    elif isinstance(task, GymTask):
        plan = gym_plan(task)
    else:
        plan = rows_plan(task)
    if isinstance(task, RowsTask) and task.agent:
        return agent_rows(task, plan, seed, tokenizer, chat)
    if isinstance(task, RowsTask) and task.environment:
        return environment_rows(task, plan, seed, tokenizer, chat)
    return tool_rows(task, plan, seed, tokenizer, chat) if task.tools else rows_task(plan, seed, tokenizer, chat)
