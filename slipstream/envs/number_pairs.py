"""What tasks over generated pairs of numbers have in common: the split, how pairs are drawn on either side of it, answers after a `#`."""

from collections.abc import Callable

import numpy as np

from slipstream.core.records import Outcome, OutcomeKind, Prompt
from slipstream.core.rng import key_words

Pair = tuple[int, int]
Draw = Callable[[np.random.Generator], Pair]
TRIES = 200  # draws for each held-out pair that is asked for; small ranges have fewer


def is_held_out(kind: str, pair: Pair, share: float) -> bool:
    """A function of the pair alone, so no run can train on what another holds out. `share` of all pairs are."""
    words, _ = key_words(0, "split", kind, *pair)
    return words < share * 2**32


def training_pair(rng: np.random.Generator, draw: Draw, held_out: Callable[[Pair], bool]) -> Pair:
    """The first one drawn that is not held out."""
    while True:
        pair = draw(rng)
        if not held_out(pair):
            return pair


def held_out_pairs(rng: np.random.Generator, draw: Draw, held_out: Callable[[Pair], bool], count: int) -> list[Pair]:
    """Up to `count` different ones, in the order in which they are drawn."""
    found: dict[Pair, None] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        pair = draw(rng)
        if held_out(pair):
            found[pair] = None
    return list(found)


def judged(prompt: Prompt, completion_text: str, style_of: Callable[[str], str] = lambda before: "") -> Outcome:
    """What follows the last `#` counts; `style_of` names the way of answering by what stands before it."""
    before, mark, answer = completion_text.rpartition("#")
    style = style_of(before)
    if not mark or not (answer.isascii() and answer.isdigit()):
        return Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, format_ok=False, style=style, detail="no number after #")
    right = answer == prompt.answer
    kind = OutcomeKind.VALUE if right else OutcomeKind.WRONG
    return Outcome(kind=kind, reward=float(right), format_ok=True, style=style, detail=f"read {answer}, want {prompt.answer}")
