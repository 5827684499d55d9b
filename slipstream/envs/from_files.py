"""The rows task of two files: reads them by an entry of the catalogue and the user's settings, and refuses what cannot be meant."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from slipstream.config.schema import RowsTask, WordsTask
from slipstream.core.errors import ConfigError, Problem, RunFailed, UsageError
from slipstream.core.records import Outcome
from slipstream.envs.catalog.entry import Entry, Item, PromptForm, read_items, with_fields
from slipstream.envs.catalog.registry import find_entry
from slipstream.envs.curation.pass_rates import read_pass_rates
from slipstream.envs.datasets import MOST_TOLD, SkippedLine, read_dataset, refusal
from slipstream.envs.grading import RowGrader, row_grader, scored
from slipstream.envs.order import curriculum
from slipstream.envs.reward_function import find_reward
from slipstream.envs.rows import RowsPlan
from slipstream.envs.tables import HUB


def rows_plan(config: RowsTask) -> RowsPlan:
    """What a configuration asks for. Raises UsageError naming the file and its rows, the task's name or the reward at fault."""
    if config.train:
        _refuse_one_file(config)
    entry = with_fields(find_entry(config.name), question=config.question_field, answer=config.answer_field, id=config.id_field)
    entry = replace(entry, needs_answer=entry.needs_answer and not (config.reward or config.environment or config.agent))
    grader = _grader(config, entry)
    train, train_notes = _items(config.train, entry, grader, config) if config.train else ([], [])  # none: for evaluation alone
    test, test_notes = _items(config.test, entry, grader, config)
    form = own_form(entry.form, config)
    shown = _shots(train, config)
    examples = {item.id for item in shown}
    return RowsPlan(
        name=_name(config),
        form=replace(form, shots=tuple((form.user_turn(item.meaning), item.meaning.worked) for item in shown)),
        grader=grader,
        format_weight=config.format_weight,
        max_prompt_tokens=config.max_prompt_tokens,
        train=[item for item in train if item.id not in examples],
        test=test,
        train_name=_file_name(config.train),
        test_name=_file_name(config.test),
        leak_words=config.decontaminate_words,
        order=partial(_by_pass_rate, config) if config.curriculum != "none" else None,
        notes=(*train_notes, *test_notes),
    )


def own_form(form: PromptForm, config: WordsTask) -> PromptForm:
    """The form with the user's own words where there are some."""
    instruction = form.instruction if config.instruction == "auto" else config.instruction
    return replace(form, instruction=instruction, system=config.system or form.system)


def _grader(config: RowsTask, entry: Entry) -> RowGrader:
    if config.environment or config.agent:
        name = f"task.agent = {config.agent!r}" if config.agent else f"task.environment = {config.environment!r}"
        return RowGrader(name=name, problem=lambda _: None, grade=_judged_elsewhere)
    if config.reward:
        find_reward(config.reward)  # what cannot be one is refused here, before its processes start
        return scored(config.reward, config.reward_seconds, config.reward_workers)
    name = entry.grader if config.grader == "auto" else config.grader
    if config.format_weight and name in ("exact", "code"):
        fix = f"has no effect: the grader {name} judges no form; remove it"
        raise ConfigError([Problem(field="task.format_weight", value=str(config.format_weight), fix=fix)])
    return row_grader(name, (*entry.answer, "answer")[0])


def _judged_elsewhere(item: Item, reply: str) -> Outcome:
    raise RunFailed(f"row {item.id}: its environment or agent judges, over several turns; a reply alone cannot be judged")


def _items(source: str, entry: Entry, grader: RowGrader, config: RowsTask) -> tuple[list[Item], list[str]]:
    """The rows that can be used, and a note for each of the others."""
    data = read_dataset(source, id_fields=entry.ids)
    items, skipped = read_items(entry, data, grader.problem)
    if not items:
        raise refusal(source, skipped, f"no usable row for task.name = {config.name!r} and {grader.name}: {len(skipped)} bad rows")
    if skipped and config.bad_rows == "refuse":
        raise refusal(source, skipped, f"{len(skipped)} of {len(skipped) + len(items)} rows cannot be used (task.bad_rows is 'refuse')")
    return items, _notes(data.name, skipped)


def _notes(name: str, skipped: Sequence[SkippedLine]) -> list[str]:
    told = [f"{name} {skip}; skipped" for skip in skipped[:MOST_TOLD]]
    more = len(skipped) - len(told)
    return [*told, f"{name}: {more} more lines skipped"] if more else told


def _shots(train: Sequence[Item], config: RowsTask) -> list[Item]:
    worked = [item for item in train if item.meaning.worked][: config.shots]
    if len(worked) < config.shots:
        raise UsageError(f"task.shots = {config.shots}: {config.train} has {len(worked)} rows with a solution to show; lower it")
    return worked


def _by_pass_rate(config: RowsTask, ids: Sequence[str], seed: int) -> np.ndarray:
    rates = read_pass_rates(Path(config.pass_rates))
    known = [rates[id].rate if id in rates else None for id in ids]
    if all(rate is None for rate in known):
        raise UsageError(f"task.pass_rates = {config.pass_rates!r}: none of its {len(rates)} ids is a row of {config.train}")
    return curriculum(known, seed, hard_first=config.curriculum == "hard_first")


def _refuse_one_file(config: RowsTask) -> None:
    """The same file under one name or two would be a test of memory."""
    if config.train.startswith(HUB) or config.test.startswith(HUB):
        same = config.train == config.test
    else:
        train, test = Path(config.train), Path(config.test)
        same = train.is_file() and test.is_file() and (train.samefile(test) or train.read_bytes() == test.read_bytes())
    if same:
        raise UsageError(
            f"every question of {config.train} is also in {config.test}: they hold the same rows; "
            "give different files as task.train and task.test"
        )


def _name(config: RowsTask) -> str:
    """Of the task in evaluations: the catalogue's name, or where the rows come from."""
    if config.name != "custom":
        return config.name
    return f"rows {_file_name(config.test).removeprefix(HUB).split('.')[0]}"


def _file_name(source: str) -> str:
    return source if source.startswith(HUB) else Path(source).name
