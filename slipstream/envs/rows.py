"""Rows with a known way to judge an answer, asked through the chat template: what tasks from files, generators and gyms have in common.

Everything that cannot be used (broken lines, answers without a number, over-long prompts, training rows that are also in the test
set) is left out at the start and told in `notes`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.core.records import Outcome, Prompt
from slipstream.envs.catalog.entry import Item, PromptForm
from slipstream.envs.curation.leaks import find_leaks
from slipstream.envs.failures import FirstFailures
from slipstream.envs.grading import RowGrader, with_form
from slipstream.envs.order import permutation, row_at
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer

_TRAINING = re.compile(r"(.*)@[0-9]+\Z", re.DOTALL)  # the id of a training prompt: the row's and the prompt's index


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows task of a run (see `envs.task`)."""

    name: str
    seed: int
    tokenizer: Tokenizer
    grader: RowGrader
    format_weight: float
    form: PromptForm
    training: tuple[Prompt, ...]  # in the file's order
    reserved: tuple[Prompt, ...]  # the test rows in one fixed, mixed order
    training_items: dict[str, Item]  # by row id
    reserved_items: dict[str, Item]
    first_pass: np.ndarray | None  # int64 [training]: the curriculum's order; None for a mixed one
    failures: FirstFailures
    notes: tuple[str, ...]  # what was left out and why, a sentence each

    @property
    def format_hash(self) -> str:
        return self.form.hash

    @property
    def max_prompt_tokens(self) -> int:
        return max(len(prompt.token_ids) for prompt in self.training + self.reserved)

    def prompt(self, index: int) -> Prompt:
        by_curriculum = self.first_pass is not None and index < len(self.training)
        place = self.first_pass[index] if self.first_pass is not None and by_curriculum else row_at(index, len(self.training), self.seed)
        row = self.training[place]
        return replace(row, id=f"{row.id}@{index}")

    def held_out(self, count: int) -> list[Prompt]:
        return list(self.reserved[:count])

    def item(self, prompt: Prompt) -> Item:
        """The row behind a prompt of this task."""
        if trained := _TRAINING.match(prompt.id):
            return self.training_items[trained[1]]
        return self.reserved_items.get(prompt.id) or self.training_items[prompt.id]

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        """Raises RunFailed when the grader itself failed on each of the first answers."""
        outcome = self.failures.passed(self.grader.grade(self.item(prompt), completion_text))
        return with_form(outcome, self.format_weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPlan:
    """All of a rows task but for the tokenizer: what is asked, how, and who judges."""

    name: str
    form: PromptForm
    grader: RowGrader
    format_weight: float
    max_prompt_tokens: int
    train: Sequence[Item]
    test: Sequence[Item]
    train_name: str  # of the file or generator, for messages
    test_name: str
    leak_words: int  # see `curation.leaks`
    order: Callable[[Sequence[str], int], np.ndarray] | None = None  # from row ids and the run's seed to the curriculum's order
    notes: tuple[str, ...] = ()


def rows_task(
    plan: RowsPlan, seed: int, tokenizer: Tokenizer, chat: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None = None
) -> Rows:
    """Bind a plan to a model's words; `tools` are told to the chat template.

    Raises UsageError when no row is left to train on or to test with.
    """
    kept, notes = without_leaks(plan)
    training, training_notes = _prompts(kept, plan.train_name, plan, tokenizer, chat, tools)
    reserved, reserved_notes = _prompts(plan.test, plan.test_name, plan, tokenizer, chat, tools)
    return Rows(
        name=plan.name,
        seed=seed,
        tokenizer=tokenizer,
        grader=plan.grader,
        format_weight=plan.format_weight,
        form=plan.form,
        training=training,
        reserved=tuple(reserved[place] for place in permutation(len(reserved), 0, 0)),
        training_items={item.id: item for item in kept},
        reserved_items={item.id: item for item in plan.test},
        first_pass=plan.order([prompt.id for prompt in training], seed) if plan.order else None,
        failures=FirstFailures(plan.grader.name),
        notes=(*plan.notes, *notes, *training_notes, *reserved_notes),
    )


def without_leaks(plan: RowsPlan) -> tuple[list[Item], tuple[str, ...]]:
    """The training rows whose text is not in the test rows, and a note of the others. The test rows stay as they are."""
    leaks = find_leaks([item.meaning.question for item in plan.train], [item.meaning.question for item in plan.test], plan.leak_words)
    kept = [item for place, item in enumerate(plan.train) if place not in leaks]
    if plan.train and not kept:
        raise UsageError(
            f"every question of {plan.train_name} is also in {plan.test_name}; give different files as task.train and task.test"
        )
    whole = sum(leak.words is None for leak in leaks.values())
    found = {
        f"questions are also in {plan.test_name}": whole,
        f"questions share {plan.leak_words} words in a row with one of {plan.test_name}": len(leaks) - whole,
    }
    return kept, tuple(f"{plan.train_name}: {count} {what}; left out of training" for what, count in found.items() if count)


def _prompts(
    items: Sequence[Item],
    name: str,
    plan: RowsPlan,
    tokenizer: Tokenizer,
    chat: ChatTemplate,
    tools: Sequence[Mapping[str, Any]] | None,
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The rows as prompts, and a note where some are too long."""
    prompts = [_prompt(item, plan.form, tokenizer, chat, tools) for item in items]
    short = tuple(prompt for prompt in prompts if len(prompt.token_ids) <= plan.max_prompt_tokens)
    long = len(prompts) - len(short)
    told = f"{long} of {len(prompts)} prompts exceed task.max_prompt_tokens = {plan.max_prompt_tokens}"
    if items and not short:
        raise UsageError(f"{name}: no row is left to use; {told}")
    return short, (f"{name}: {told}; left out",) if long else ()


def _prompt(item: Item, form: PromptForm, tokenizer: Tokenizer, chat: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None) -> Prompt:
    text = chat.render(form.messages(item.meaning), add_generation_prompt=True, tools=tools)
    return Prompt(id=item.id, token_ids=tokenizer.encode(text), text=text, answer=item.meaning.answer)
