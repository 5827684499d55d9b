"""Generated sums and products, answered after a `#`, tersely (`#579`) or with worked columns. Two styles, one reward.

Worked addition of 546+800: `:6060,4040,5831#1346` - for each digit from the right: digit of a, digit of b, digit of the sum,
carry. Worked multiplication of 546x8: `:6884,4863,5834#4368` - digit of a, the factor, digit written, carry. The verifier reads
the number after the last `#` only: that working pays is for the learner to discover.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from slipstream.config.schema import ArithmeticTask
from slipstream.core.records import Demonstration, Outcome, Prompt
from slipstream.core.rng import generator
from slipstream.envs.canaries import Canaries, after_mark
from slipstream.envs.catalog.entry import PromptForm
from slipstream.envs.number_pairs import Pair, held_out_pairs, is_held_out, judged, training_pair
from slipstream.text.tokenizer import Tokenizer, character_tokenizer

ALPHABET = "0123456789+x=:,#" + "abcdefghijklmnopqrstuvwyz" + " .-/()?!'\"*<>"  # 54 characters; the stop token makes 55
SHORT_SHOWN = 0.2  # demonstrations use a shorter number this often: uniform draws make them so rare that they stay unlearnt
SYMBOL = {"addition": "+", "multiplication": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The arithmetic task of a run (see `core.ports` and `envs.task`)."""

    config: ArithmeticTask
    seed: int
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.config.digits}-digit {self.config.operation}"

    @property
    def format_hash(self) -> str:
        return PromptForm(template="{question}=").hash

    @property
    def max_prompt_tokens(self) -> int:
        return 2 * self.config.digits + 2

    def prompt(self, index: int) -> Prompt:
        a, b = self._pair("prompt", index)
        return self._prompt(a, b, f"@{index}")

    def held_out(self, count: int) -> list[Prompt]:
        rng = generator(0, "held-out", self.config.operation, self.config.digits)
        return [self._prompt(a, b, "") for a, b in held_out_pairs(rng, self._draw, self._is_held_out, count)]

    def canaries(self) -> Canaries:
        return after_mark(partial(self.grade, self.prompt(0)), self.prompt(0).answer)

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        return judged(prompt, completion_text, _style)

    def demonstration(self, index: int, worked_share: float) -> Demonstration:
        rng = generator(self.seed, "demonstration", index)
        a, b = self._draw_training(rng, SHORT_SHOWN)
        prompt = self._prompt(a, b, "")
        working = self._working(a, b) if rng.random() < worked_share else ""
        completion = self.tokenizer.encode(f"{working}#{prompt.answer}")
        return Demonstration(prompt_ids=prompt.token_ids, completion_ids=np.append(completion, self.tokenizer.stop_ids[0]).astype(np.int32))

    def _pair(self, purpose: str, index: int) -> Pair:
        return self._draw_training(generator(self.seed, purpose, index))

    def _draw_training(self, rng: np.random.Generator, short: float = 0.0) -> Pair:
        return training_pair(rng, lambda rng: self._draw(rng, short), self._is_held_out)

    def _draw(self, rng: np.random.Generator, short: float = 0.0) -> Pair:
        """Both numbers uniform below 10^digits; each with probability `short` below 10^(digits - 1) instead."""

        def number() -> int:
            digits = self.config.digits - (short > 0 and rng.random() < short)
            return int(rng.integers(10**digits))

        return number(), number() if self.config.operation == "addition" else int(rng.integers(10))

    def _is_held_out(self, pair: Pair) -> bool:
        return is_held_out(self.config.operation, pair, self.config.held_out)

    def _prompt(self, a: int, b: int, suffix: str) -> Prompt:
        text = f"{a}{SYMBOL[self.config.operation]}{b}="
        answer = a + b if self.config.operation == "addition" else a * b
        return Prompt(id=f"{text}{suffix}", token_ids=self.tokenizer.encode(text), text=text, answer=str(answer))

    def _working(self, a: int, b: int) -> str:
        return worked_addition(a, b) if self.config.operation == "addition" else worked_multiplication(a, b)


def arithmetic(config: ArithmeticTask, seed: int) -> Arithmetic:
    """The task with its own character tokenizer."""
    return Arithmetic(config=config, seed=seed, tokenizer=character_tokenizer(ALPHABET))


def worked_addition(a: int, b: int) -> str:
    """Column addition, from the right: digit of a, digit of b, digit of the sum, carry. 546+800 -> `:6060,4040,5831`."""
    columns, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        carry, digit = divmod(x + y + carry, 10)
        columns.append(f"{x}{y}{digit}{carry}")
    return ":" + ",".join(columns)


def worked_multiplication(a: int, b: int) -> str:
    """Column multiplication by one digit, from the right: digit of a, b, digit written, carry. 546x8 -> `:6884,4863,5834`."""
    columns, carry = [], 0
    for place in range(len(str(a))):
        x = a // 10**place % 10
        carry, digit = divmod(x * b + carry, 10)
        columns.append(f"{x}{b}{digit}{carry}")
    return ":" + ",".join(columns)


def _style(working: str) -> str:
    return "worked" if working.startswith(":") else "terse"
