"""What the engine and its peers are asked to generate in a benchmark: prompts as token ids, and how long each answer is. Pure.

Answers have given lengths and stop nowhere else, so that every system draws the same number of tokens.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from slipstream.core.rng import generator

GROUP = 16  # samples of one prompt, as in RL
LONGEST = 256  # tokens of an answer of mixed lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Samples to draw; those of one prompt stand together."""

    name: str
    concurrency: int  # samples that run at once
    group: int  # samples of each prompt
    prompts: tuple[tuple[int, ...], ...]  # one a sample
    new_tokens: tuple[int, ...]  # of each sample's answer

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(len(prompt) + new for prompt, new in zip(self.prompts, self.new_tokens, strict=True))

    @property
    def distinct_prompt_tokens(self) -> int:
        """Tokens of the prompts, each group's counted once."""
        return sum(len(prompt) for prompt, _ in groupby(self.prompts))

    def for_peer(self) -> dict[str, Any]:
        """The JSON object that the scripts in benchmarks/peers read."""
        prompts, lengths = [list(prompt) for prompt in self.prompts[:: self.group]], list(self.new_tokens)
        common = {"group": self.group, "concurrency": self.concurrency, "temperature": 1.0, "ignore_eos": True}
        return common | {"prompts": prompts, "max_new_tokens": lengths}


def uniform(concurrency: int, known_tokens: int, prompt_tokens: int = 64, new_tokens: int = 64) -> Workload:
    """As many samples of as many prompts as run at once, all of one length."""
    draw = generator(concurrency, "bench engine")
    prompts = draw.integers(0, known_tokens, (concurrency, prompt_tokens))
    return Workload(
        name=f"uniform {concurrency}",
        concurrency=concurrency,
        group=1,
        prompts=tuple(tuple(row) for row in prompts.tolist()),
        new_tokens=(new_tokens,) * concurrency,
    )


def mixed(concurrency: int, known_tokens: int, prompts: int = 6) -> Workload:
    """RL's own: groups of 16, prompts of 16 to 128 tokens, answers of lognormal length (median 64, one in ten above 150)."""
    draw = generator(concurrency, "bench engine mixed")
    asked = [tuple(draw.integers(0, known_tokens, length).tolist()) for length in draw.integers(16, 129, prompts)]
    lengths = np.clip(draw.lognormal(np.log(64), 0.67, prompts * GROUP).round(), 8, LONGEST).astype(int)
    return Workload(
        name=f"mixed {concurrency}",
        concurrency=concurrency,
        group=GROUP,
        prompts=tuple(prompt for prompt in asked for _ in range(GROUP)),
        new_tokens=tuple(lengths.tolist()),
    )
