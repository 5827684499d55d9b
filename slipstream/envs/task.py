"""What a task is: an ordered stream of prompts, held-out prompts, a verdict for any completion. Demonstrations are a port of their own."""

from typing import Protocol, runtime_checkable

from slipstream.core.records import Outcome, Prompt
from slipstream.envs.canaries import Canaries
from slipstream.text.tokenizer import Tokenizer


class Task(Protocol):
    """One task of a run, bound to the run's seed and tokenizer. Every method is a pure function of its arguments."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_prompt_tokens(self) -> int:
        """No prompt is longer."""
        ...

    @property
    def format_hash(self) -> str:
        """Names the form in which prompts are asked; scores under two forms do not compare."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the data: rows that were skipped, and why."""
        ...

    def prompt(self, index: int) -> Prompt:
        """The `index`-th training prompt of the run; its id is unique to the index."""
        ...

    def held_out(self, count: int) -> list[Prompt]:
        """Up to `count` prompts that are never trained on, always the same ones in the same order, whatever the run's seed."""
        ...

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome: ...


@runtime_checkable
class SelfTested(Protocol):
    """A task that knows how some answers have to be judged."""

    def canaries(self) -> Canaries: ...
