"""Products with a calculator: a task of its own alphabet, too hard for a small model's head and easy with the tool.

Prompt `34x57=`. The model may say the answer at once, `#1938`, or ask: `[34x57]` ends its turn, the calculator writes `=1938;`, and
the model goes on with `#1938`. Both styles have one reward: that asking pays is for the model to discover. A call that cannot be
computed is answered `?;`.
"""

import re
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from slipstream.config.schema import ProductsTask
from slipstream.core.records import Demonstration, ModelTurn, Outcome, Prompt
from slipstream.core.rng import generator
from slipstream.envs.canaries import Canaries, after_mark
from slipstream.envs.catalog.entry import PromptForm
from slipstream.envs.environment import Limits, Observation, PlainTranscript
from slipstream.envs.number_pairs import Pair, held_out_pairs, is_held_out, judged, training_pair
from slipstream.envs.tools.calculator import calculate, shown
from slipstream.envs.tools.tool import ToolError
from slipstream.text.tokenizer import Tokenizer, character_tokenizer

ALPHABET = "0123456789x=#[];?"  # 17 characters; the stop token makes 18
CALL_END = "]"  # ends a turn of the model, as the stop token does
_CALL = re.compile(r"\[([^\[\]]*)\]\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The products task of a run (see `envs.task`, `envs.environment.Interactive` and `core.ports.Demonstrator`)."""

    config: ProductsTask
    seed: int
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.config.digits}-digit products with a calculator"

    @property
    def format_hash(self) -> str:
        return PromptForm(template="{question}=").hash

    @property
    def max_prompt_tokens(self) -> int:
        return 2 * self.config.digits + 2

    @property
    def limits(self) -> Limits:
        config = self.config
        return Limits(turns=config.max_turns, step_s=config.step_seconds, episode_s=config.episode_seconds)

    def prompt(self, index: int) -> Prompt:
        a, b = self._draw_training(generator(self.seed, "prompt", index))
        return self._prompt(a, b, f"@{index}")

    def held_out(self, count: int) -> list[Prompt]:
        rng = generator(0, "held-out", "products", self.config.digits)
        return [self._prompt(a, b, "") for a, b in held_out_pairs(rng, self._draw, self._is_held_out, count)]

    def canaries(self) -> Canaries:
        return after_mark(partial(self.grade, self.prompt(0)), self.prompt(0).answer)

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        """Of the last turn, or of a whole completion."""
        return judged(prompt, completion_text)

    def environment(self, prompt: Prompt) -> "CalculatorTurns":
        return CalculatorTurns(self)

    def transcript(self, prompt: Prompt) -> PlainTranscript:
        return PlainTranscript(self.tokenizer)

    def demonstration(self, index: int, worked_share: float) -> Demonstration:
        """`worked_share` of them ask the calculator."""
        rng = generator(self.seed, "demonstration", index)
        a, b = self._draw_training(rng)
        prompt = self._prompt(a, b, "")
        asks = rng.random() < worked_share
        asked, said = (f"[{a}x{b}]", f"={a * b};") if asks else ("", "")
        answer = f"#{prompt.answer}"
        ids = np.append(self.tokenizer.encode(asked + said + answer), self.tokenizer.stop_ids[0]).astype(np.int32)
        mask = np.array([*[True] * len(asked), *[False] * len(said), *[True] * (len(answer) + 1)])
        return Demonstration(prompt_ids=prompt.token_ids, completion_ids=ids, loss_mask=mask)

    def _draw_training(self, rng: np.random.Generator) -> Pair:
        return training_pair(rng, self._draw, self._is_held_out)

    def _draw(self, rng: np.random.Generator) -> Pair:
        least, most = 10 ** (self.config.digits - 1), 10**self.config.digits
        return int(rng.integers(least, most)), int(rng.integers(least, most))

    def _is_held_out(self, pair: Pair) -> bool:
        return is_held_out("products", pair, self.config.held_out)

    def _prompt(self, a: int, b: int, suffix: str) -> Prompt:
        text = f"{a}x{b}="
        return Prompt(id=f"{text}{suffix}", token_ids=self.tokenizer.encode(text), text=text, answer=str(a * b))


class CalculatorTurns:
    """The other side of an episode: computes what stands in brackets at a turn's end, and judges every other turn."""

    def __init__(self, task: Products) -> None:
        self._task = task
        self._prompt: Prompt | None = None

    async def start(self, prompt: Prompt) -> None:
        self._prompt = prompt

    async def step(self, turn: ModelTurn) -> Observation | Outcome:
        assert self._prompt is not None  # `start` comes first
        call = _CALL.search(turn.text)
        if call is None and not turn.text.endswith(CALL_END):
            return self._task.grade(self._prompt, turn.text)
        try:
            value = shown(calculate(call[1].replace("x", "*"))) if call else "?"
        except ToolError:
            value = "?"
        return Observation(text=f"={value};" if value != "?" else "?;", calls=1, failed_calls=int(value == "?"))

    async def close(self) -> None:
        pass


def products(config: ProductsTask, seed: int) -> Products:
    """The task with its own character tokenizer, in which the end of a call ends a turn too."""
    tokenizer = character_tokenizer(ALPHABET)
    ends = tuple(tokenizer.encode(CALL_END).tolist())
    return Products(config=config, seed=seed, tokenizer=replace(tokenizer, stop_ids=(*tokenizer.stop_ids, *ends)))
