"""Sums asked in words through a chat template, the assistant's turn opened with `3+4=`: the smallest task for a real model.

Without the opened turn a small model almost never answers with the number alone, and there is no signal to learn from.
"""

from dataclasses import dataclass, replace
from functools import partial

from slipstream.config.schema import SumsTask
from slipstream.core.records import Outcome, OutcomeKind, Prompt
from slipstream.core.rng import key_words
from slipstream.envs.canaries import Canaries
from slipstream.envs.catalog.entry import Meaning, PromptForm
from slipstream.envs.order import row_at
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer

FORM = PromptForm(template="What is {question}? Reply with only the number.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The sums task of a run (see `envs.task`)."""

    config: SumsTask
    seed: int
    tokenizer: Tokenizer
    training: tuple[Prompt, ...]  # every pair that may be trained on, in numeric order
    easy: tuple[Prompt, ...]  # pairs of one-digit numbers, mixed in by `one_digit_share`
    reserved: tuple[Prompt, ...]  # the held-out pairs, in the order of their hashes
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.config.digits}-digit sums in words"

    @property
    def format_hash(self) -> str:
        return FORM.hash

    @property
    def max_prompt_tokens(self) -> int:
        return max(len(prompt.token_ids) for prompt in self.training + self.easy + self.reserved)

    def prompt(self, index: int) -> Prompt:
        """The easy prompts stand evenly among the others, in their exact share."""
        easy_before, easy_so_far = (int(count * self.config.one_digit_share) for count in (index, index + 1))
        easy = easy_so_far > easy_before
        rows, place = (self.easy, easy_before) if easy else (self.training, index - easy_before)
        row = rows[row_at(place, len(rows), self.seed)]
        return replace(row, id=f"{row.id}@{index}")

    def held_out(self, count: int) -> list[Prompt]:
        return list(self.reserved[:count])

    def canaries(self) -> Canaries:
        prompt = self.training[0]
        wrong = (f"{prompt.answer}0", f"{prompt.answer} it is", f"={prompt.answer}", "none")
        return Canaries(grade=partial(self.grade, prompt), right=f" {prompt.answer}\n", wrong=wrong)

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        said = completion_text.strip()
        if not any(character in "0123456789" for character in said):
            return Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, format_ok=False, detail="no digit in the reply")
        right = said == prompt.answer
        kind = OutcomeKind.VALUE if right else OutcomeKind.WRONG
        bare = said.isascii() and said.isdigit()
        return Outcome(kind=kind, reward=float(right), format_ok=bare, detail=f"read {said[:40]!r}, want {prompt.answer}")


def sums(config: SumsTask, seed: int, tokenizer: Tokenizer, chat: ChatTemplate) -> Sums:
    """The task over all pairs of numbers with `config.digits` digits, split by hash."""
    border = config.held_out * 2**32
    hashes = _hashes(range(1, 10) if config.digits == 1 else range(10, 100))
    reserved = sorted((pair for pair, word in hashes.items() if word < border), key=lambda pair: (hashes[pair], pair))
    training = [pair for pair, word in hashes.items() if word >= border]
    easy = [pair for pair, word in _hashes(range(1, 10)).items() if word >= border] if config.one_digit_share else []

    def prompts(pairs: list[tuple[int, int]]) -> tuple[Prompt, ...]:
        return tuple(_prompt(a, b, tokenizer, chat) for a, b in pairs)

    return Sums(config=config, seed=seed, tokenizer=tokenizer, training=prompts(training), easy=prompts(easy), reserved=prompts(reserved))


def _hashes(numbers: range) -> dict[tuple[int, int], int]:
    return {(a, b): key_words(0, "split", "sums", a, b)[0] for a in numbers for b in numbers}


def _prompt(a: int, b: int, tokenizer: Tokenizer, chat: ChatTemplate) -> Prompt:
    text = chat.render(FORM.messages(Meaning(question=f"{a}+{b}")), add_generation_prompt=True) + f"{a}+{b}="
    return Prompt(id=f"{a}+{b}", token_ids=tokenizer.encode(text), text=text, answer=str(a + b))
