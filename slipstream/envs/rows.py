"""Questions with a known answer from two JSONL files, asked through the chat template and judged by a grader of choice.

Everything that cannot be used (broken lines, answers without a number, over-long prompts) is left out at the start and told
in `notes`; a training question that is also in the test file is left out of training.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.config.schema import RowsTask
from slipstream.core.errors import UsageError
from slipstream.core.records import Outcome, Prompt
from slipstream.envs.datasets import Dataset, Row, SkippedLine, read_dataset
from slipstream.envs.graders import final_number, grade_exact, grade_final_number
from slipstream.envs.order import permutation, row_at
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows task of a run (see `envs.task`)."""

    config: RowsTask
    seed: int
    tokenizer: Tokenizer
    training: tuple[Prompt, ...]  # in the file's order
    reserved: tuple[Prompt, ...]  # the test rows in one fixed, mixed order
    notes: tuple[str, ...]  # what was left out and why, a sentence each

    @property
    def name(self) -> str:
        path = Path(self.config.train)
        return f"{path.parent.name}/{_stem(path)}".lstrip("/")

    @property
    def max_prompt_tokens(self) -> int:
        return max(len(prompt.token_ids) for prompt in self.training + self.reserved)

    def prompt(self, index: int) -> Prompt:
        row = self.training[row_at(index, len(self.training), self.seed)]
        return replace(row, id=f"{row.id}@{index}")

    def held_out(self, count: int) -> list[Prompt]:
        return list(self.reserved[:count])

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        if self.config.grader == "exact":
            return grade_exact(prompt.answer, completion_text)
        answer = final_number(prompt.answer)
        assert answer is not None  # rows without a number were left out
        return grade_final_number(answer, completion_text, self.config.format_weight)


def rows(config: RowsTask, seed: int, tokenizer: Tokenizer, chat: ChatTemplate) -> Rows:
    """The task of two files. Raises UsageError when either is absent or has no usable row."""
    train, test = (_read(Path(path), config) for path in (config.train, config.test))
    held_out_questions = {row.question for row in test.rows}
    kept = [row for row in train.rows if row.question not in held_out_questions]
    if not kept:
        raise UsageError(f"every question of {train.path} is also in {test.path}; give different files as task.train and task.test")
    notes = [*train.notes(), *test.notes()]
    if shared := len(train.rows) - len(kept):
        notes.append(f"{train.path.name}: {shared} questions are also in {test.path.name}; left out of training")
    training, notes_of_training = _prompts(kept, train.path, config, tokenizer, chat)
    reserved, notes_of_test = _prompts(test.rows, test.path, config, tokenizer, chat)
    return Rows(
        config=config,
        seed=seed,
        tokenizer=tokenizer,
        training=training,
        reserved=tuple(reserved[place] for place in permutation(len(reserved), 0, 0)),
        notes=(*notes, *notes_of_training, *notes_of_test),
    )


def _read(path: Path, config: RowsTask) -> Dataset:
    """The file's rows whose answers the grader can use."""
    data = read_dataset(path, question_field=config.question_field, answer_field=config.answer_field, id_field=config.id_field)
    if config.grader == "exact":
        return data
    kept, skipped = [], list(data.skipped)
    for row in data.rows:
        if final_number(row.answer) is None:
            skipped.append(SkippedLine(line=row.line, reason=f"no number in field {config.answer_field!r}"))
        else:
            kept.append(row)
    if not kept:
        raise UsageError(f"{path}: no {config.answer_field} holds a number; set task.grader=exact or another task.answer_field")
    return Dataset(path=path, rows=tuple(kept), skipped=tuple(sorted(skipped, key=lambda skip: skip.line)))


def _prompts(
    found: Iterable[Row], path: Path, config: RowsTask, tokenizer: Tokenizer, chat: ChatTemplate
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The rows as prompts, and a note where some are too long."""
    prompts = [_prompt(row, config, tokenizer, chat) for row in found]
    short = tuple(prompt for prompt in prompts if len(prompt.token_ids) <= config.max_prompt_tokens)
    long = len(prompts) - len(short)
    told = f"{long} of {len(prompts)} prompts exceed task.max_prompt_tokens = {config.max_prompt_tokens}"
    if not short:
        raise UsageError(f"{path}: no row is left to use; {told}")
    return short, (f"{path.name}: {told}; left out",) if long else ()


def _prompt(row: Row, config: RowsTask, tokenizer: Tokenizer, chat: ChatTemplate) -> Prompt:
    content = f"{row.question}\n\n{config.instruction}" if config.instruction else row.question
    text = chat.render([{"role": "user", "content": content}], add_generation_prompt=True)
    return Prompt(id=row.id, token_ids=tokenizer.encode(text), text=text, answer=row.answer)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")
