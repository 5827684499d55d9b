"""Environments written for the package `verifiers` (0.1 to 0.3), as agents of ours: they ask an OpenAI client, which is pointed at the run.

The package is none of our dependencies; its environments bring it. Of an environment is used: its data sets of rows with `prompt`
(messages), `answer` and the like, and `run_rollout`, which plays an episode with the environment's turns and scores it by its rubric.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from slipstream.config.schema import VerifiersTask
from slipstream.core.errors import RunFailed, UsageError
from slipstream.core.records import Outcome, OutcomeKind, Prompt
from slipstream.envs.agent import AgentLimits, Lead, Verdict, failed
from slipstream.envs.order import row_at
from slipstream.envs.user_code import find_code, problem
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer

FIELD = "task.environment"
LOADER = "load_environment"
INSTALL = "pip install 'verifiers>=0.1.14,<0.4'"
_NEEDED = ("get_dataset", "get_eval_dataset", "run_rollout")
_INPUTS = ("prompt", "answer", "info", "example_id", "task")  # fields of a row that an environment is given


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiersRows:
    """See `envs.task.Task` and `envs.agent.AgentTask`."""

    name: str
    seed: int
    tokenizer: Tokenizer
    chat: ChatTemplate
    environment: Any
    rows: Mapping[str, Mapping[str, Any]]  # by prompt id, without a training prompt's index
    training: tuple[Prompt, ...]
    reserved: tuple[Prompt, ...]
    max_prompt_tokens: int
    agent_limits: AgentLimits
    notes: tuple[str, ...]

    @property
    def format_hash(self) -> str:
        """Empty: prompts are the environment's, which the task's settings name."""
        return ""

    def prompt(self, index: int) -> Prompt:
        row = self.training[row_at(index, len(self.training), self.seed)]
        return replace(row, id=f"{row.id}@{index}")

    def held_out(self, count: int) -> list[Prompt]:
        return list(self.reserved[:count])

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        raise RunFailed(f"{prompt.id}: the environment judges, over several turns; a reply alone cannot be judged")

    def agent(self, prompt: Prompt) -> Lead:
        row = dict(self.rows[prompt.id.partition("@")[0]])

        async def lead(base_url: str, api_key: str) -> Verdict:
            clients, openai = import_module("verifiers.clients"), import_module("openai")
            async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=None) as client:
                told = clients.OpenAIChatCompletionsClient(client)
                return outcome(await self.environment.run_rollout(row, told, "policy", {}))

        return lead


def outcome(played: Mapping[str, Any]) -> Verdict:
    """What an episode's output says. An error is a failure, unless it is that the model said nothing: that is no answer."""
    if (error := played.get("error")) is not None:
        if "EmptyModelResponse" in repr(error):
            return Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, detail="the model said nothing")
        return failed(f"ended in an error: {error!r}")
    return {"reward": played.get("reward"), "detail": f"reward {played.get('reward')}, stop {played.get('stop_condition')}"}


def verifiers_task(config: VerifiersTask, seed: int, tokenizer: Tokenizer, chat: ChatTemplate) -> VerifiersRows:
    """Raises UsageError where the environment cannot be had, has no rows, or is of another interface."""
    environment = _load(config)
    train, test = _split(environment, config)
    prompts = {"train": _prompts(train, "train", tokenizer, chat), "test": _prompts(test, "test", tokenizer, chat)}
    short = {name: [one for one in some if len(one.token_ids) <= config.max_prompt_tokens] for name, some in prompts.items()}
    for name, some in short.items():
        if not some:
            raise UsageError(
                f"{FIELD} = {config.environment!r}: no {name} row is left; {len(prompts[name])} rows, none of them with a prompt of "
                f"at most task.max_prompt_tokens = {config.max_prompt_tokens} tokens"
            )
    long = {name: len(prompts[name]) - len(some) for name, some in short.items()}
    rows = {f"{name}-{place}": row for name, some in (("train", train), ("test", test)) for place, row in enumerate(some)}
    return VerifiersRows(
        name=f"verifiers/{config.environment.rpartition('/')[2].partition(':')[0].removesuffix('.py')}",
        seed=seed,
        tokenizer=tokenizer,
        chat=chat,
        environment=environment,
        rows=rows,
        training=tuple(short["train"]),
        reserved=tuple(short["test"]),
        max_prompt_tokens=config.max_prompt_tokens,
        agent_limits=AgentLimits(requests=config.max_turns, episode_s=config.episode_seconds, at_once=config.agents_at_once),
        notes=tuple(
            f"{count} of {len(prompts[name])} {name} prompts exceed task.max_prompt_tokens = {config.max_prompt_tokens}; left out"
            for name, count in long.items()
            if count
        ),
    )


def _load(config: VerifiersTask) -> Any:
    address = config.environment
    if (found := _installed()) is not None and not found.startswith(("0.1.", "0.2.", "0.3.")):
        told = f"verifiers {found} is installed; from 0.4 on it has no environments but tasksets and harnesses, which are not taken"
        raise problem(address, FIELD, f"{told}; {INSTALL}")
    named = ":" in address.rpartition("/")[2]
    load = find_code(address if named else f"{address}:{LOADER}", FIELD, "function")
    try:
        inspect.signature(load).bind(**config.arguments)
    except TypeError as error:
        raise UsageError(f"task.arguments = {config.arguments}: the environment's loader does not take them: {error}") from error
    try:
        environment = load(**config.arguments)
    except Exception as error:
        raise problem(address, FIELD, f"it fails while it is loaded: {type(error).__name__}: {error}") from error
    if missing := [name for name in _NEEDED if not callable(getattr(environment, name, None))]:
        told = f"it makes a {type(environment).__name__} without {' and '.join(missing)}: environments of verifiers 0.1 to 0.3 are taken"
        raise problem(address, FIELD, f"{told}; {INSTALL}")
    try:
        import_module("verifiers.clients")
    except ImportError as error:
        raise problem(address, FIELD, f"the package's clients cannot be had: {error}; {INSTALL}") from error
    if getattr(environment, "requires_group_rollouts", False):
        raise problem(address, FIELD, "its rewards compare the episodes of a group; only environments that score each by itself are taken")
    return environment


def _installed() -> str | None:
    """The package's version; None where it is not there, and an environment has to do without."""
    try:
        return version("verifiers")
    except PackageNotFoundError:
        return None


def _split(environment: Any, config: VerifiersTask) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Rows to train on and to test with."""
    if getattr(environment, "eval_dataset_source", None) is not None:  # else it would give the training set
        return _rows(environment.get_dataset()), _rows(environment.get_eval_dataset())[: config.test_size]
    rows = _rows(environment.get_dataset())
    if len(rows) < 2:
        raise problem(config.environment, FIELD, f"it has {len(rows)} rows and no evaluation set; at least two are needed")
    held = min(config.test_size, len(rows) // 2)
    return rows[held:], rows[:held]


def _rows(dataset: Any) -> list[Mapping[str, Any]]:
    return [{name: row[name] for name in _INPUTS if row.get(name) is not None} for row in dataset]


def _prompts(rows: Sequence[Mapping[str, Any]], name: str, tokenizer: Tokenizer, chat: ChatTemplate) -> list[Prompt]:
    """The rows' messages as prompts. What the model is asked in the end is the environment's; these are for people, and for lengths."""
    found: list[Prompt] = []
    for place, row in enumerate(rows):
        messages = row["prompt"]
        told = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(one) for one in messages]
        text = chat.render(told, add_generation_prompt=True)
        found.append(Prompt(id=f"{name}-{place}", token_ids=tokenizer.encode(text), text=text, answer=str(row.get("answer", ""))))
    return found
