"""What a task is: an ordered stream of prompts, held-out prompts, a verdict for any completion; perhaps demonstrations."""

from typing import Protocol

from slipstream.core.records import Demonstration, Outcome, Prompt
from slipstream.text.tokenizer import Tokenizer


class Task(Protocol):
    """One task of a run, bound to the run's seed and tokenizer. Every method is a pure function of its arguments."""

    name: str
    tokenizer: Tokenizer
    max_prompt_tokens: int  # no prompt is longer

    def prompt(self, index: int) -> Prompt:
        """The `index`-th training prompt of the run; its id is unique to the index."""
        ...

    def held_out(self, count: int) -> list[Prompt]:
        """Up to `count` prompts that are never trained on, always the same ones in the same order, whatever the run's seed."""
        ...

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome: ...


class Demonstrator(Protocol):
    """A task that can show how it is done."""

    def demonstration(self, index: int, worked_share: float) -> Demonstration:
        """The `index`-th demonstration; `worked_share` of them show their working."""
        ...
