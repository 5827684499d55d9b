"""Rows that no file holds: countdown problems of our own, and data sets of reasoning-gym (extra `gym`) by name."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from slipstream.config.schema import CountdownTask, GymTask
from slipstream.core.errors import UsageError, near_names
from slipstream.core.records import Outcome, OutcomeKind
from slipstream.core.rng import key_words
from slipstream.envs.catalog.entry import Item, Meaning, PromptForm
from slipstream.envs.catalog.maths import TAGGED, countdown_meaning
from slipstream.envs.countdown import generate
from slipstream.envs.datasets import Row
from slipstream.envs.from_files import own_form
from slipstream.envs.grading import RowGrader, row_grader
from slipstream.envs.reward_function import score
from slipstream.envs.rows import RowsPlan
from slipstream.envs.tags import last_answer

GYM = PromptForm(instruction="Think step by step. Give the final answer, and nothing else, between <answer> and </answer>.")
_TRIES = 20  # draws a problem before the space of problems counts as used up


def countdown_plan(config: CountdownTask) -> RowsPlan:
    """Problems of the configuration, split by hash. Raises UsageError where there are not so many different ones."""
    items = _countdown_items(config)
    border = config.held_out * 2**32
    test = [item for item in items if key_words(0, "split", "countdown", item.meaning.question)[0] < border]
    held_out = {item.id for item in test}
    train = [item for item in items if item.id not in held_out]
    if not test or not train:
        raise UsageError(f"task.size = {config.size}: no problem is left to {'train on' if test else 'hold out'}; raise it")
    return RowsPlan(
        name="countdown",
        form=own_form(TAGGED, config),
        grader=row_grader("countdown"),
        format_weight=config.format_weight,
        max_prompt_tokens=config.max_prompt_tokens,
        train=train,
        test=test,
        train_name="countdown",
        test_name="its held-out problems",
        leak_words=0,
    )


def gym_plan(config: GymTask) -> RowsPlan:
    """Problems of a reasoning-gym data set, held-out ones from other seeds.

    Raises UsageError where the extra is not installed, for an unknown name and for settings that the set refuses.
    """
    train, test = _gym_set(config, config.seed, config.size), _gym_set(config, config.seed + config.size, config.test_size)
    return RowsPlan(
        name=f"gym/{config.name}",
        form=own_form(GYM, config),
        grader=RowGrader(
            name=f"score_answer of reasoning-gym's {config.name}",
            problem=lambda _: None,
            grade=lambda item, reply: grade_gym(train, item, reply),
        ),
        format_weight=config.format_weight,
        max_prompt_tokens=config.max_prompt_tokens,
        train=_gym_items(train, f"{config.name}-{config.seed}"),
        test=_gym_items(test, f"{config.name}-test-{config.seed}"),
        train_name=f"gym/{config.name}",
        test_name="its held-out problems",
        leak_words=0,
    )


def grade_gym(problems: Any, item: Item, reply: str) -> Outcome:
    """The set's own score of what stands in the last <answer>, from 0 to 1; unparseable without one, a failure where scoring fails."""
    said = last_answer(reply)
    if said is None:
        return Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, format_ok=False, detail="no <answer> in the reply")
    outcome = score(lambda row, answer: problems.score_answer(answer, entry=row), item.row.fields, said, "score_answer")
    return replace(outcome, format_ok=None if outcome.reward is None else True)


def _countdown_items(config: CountdownTask) -> list[Item]:
    found: dict[str, Item] = {}
    for index in range(_TRIES * config.size):
        if len(found) == config.size:
            return list(found.values())
        numbers, target, solution = generate(0, index, count=config.numbers, largest=config.largest, largest_target=config.largest_target)
        meaning = countdown_meaning(numbers, target, solution)
        fields = {"numbers": list(numbers), "target": target, "solution": solution}
        row = Row(id=f"countdown-{index}", fields=fields, line=index + 1)
        found.setdefault(meaning.question, Item(row=row, meaning=meaning))
    if len(found) == config.size:
        return list(found.values())
    raise UsageError(f"task.size = {config.size}: only {len(found)} different problems were found; lower it, or raise task.largest")


def _gym_set(config: GymTask, seed: int, size: int) -> Any:
    try:
        library = import_module("reasoning_gym")
    except ImportError as error:
        raise UsageError(f"task.kind = 'gym' needs the extra 'gym' (pip install 'slipstream[gym]'): {error}") from error
    if own := {"seed", "size"} & config.parameters.keys():
        raise UsageError(f"task.parameters = {config.parameters}: set {' and '.join(f'task.{name}' for name in sorted(own))} instead")
    known = library.factory.DATASETS
    if config.name not in known:
        raise UsageError(f"task.name = {config.name!r}: reasoning-gym has no such data set; {near_names(config.name, known)}")
    try:
        return library.create_dataset(config.name, **{**config.parameters, "seed": seed, "size": size})
    except (TypeError, ValueError, AssertionError) as error:  # what its configurations raise
        raise UsageError(f"task.parameters = {config.parameters}: {config.name} refuses them: {error}") from error


def _gym_items(problems: Any, prefix: str) -> list[Item]:
    items = []
    for index in range(len(problems)):
        fields = problems[index]
        row = Row(id=f"{prefix}-{index}", fields=fields, line=index + 1)
        items.append(Item(row=row, meaning=Meaning(question=fields["question"], answer=str(fields["answer"]))))
    return items
