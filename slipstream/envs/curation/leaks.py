"""Which texts are also in a set that must stay unseen: the whole text, or n words in a row (Brown et al. 2020, appendix C).

Words in a row that three or more of the unseen texts share are boilerplate ("where m and n are relatively prime positive integers")
and tell nothing. How many of the texts share them does not matter: a set may hold many variants of one unseen question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.envs.curation.words import Gram, grams, same_text, words

WORDS = 13
BOILERPLATE = 3  # unseen texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Why one text must go."""

    against: int  # place of the unseen text that it matches
    words: str | None  # the first shared words; None where the whole texts are the same


def find_leaks(texts: Sequence[str], unseen: Sequence[str], length: int = WORDS) -> dict[int, Leak]:
    """Places of `texts` that match one of `unseen`, with the match. `length` 0 compares whole texts only."""
    wholes = {same_text(text): place for place, text in reversed(list(enumerate(unseen)))}
    telling = _telling_grams({place: unseen[place] for place in wholes.values()}, length) if length else {}
    found: dict[int, Leak] = {}
    for place, text in enumerate(texts):
        if (key := same_text(text)) in wholes:
            found[place] = Leak(against=wholes[key], words=None)
        elif telling and (gram := next((gram for gram in grams(words(text), length) if gram in telling), None)):
            found[place] = Leak(against=telling[gram], words=" ".join(gram))
    return found


def _telling_grams(unseen: Mapping[int, str], length: int) -> dict[Gram, int]:
    """Runs of words that are no boilerplate, with the place of a text that each is in. The texts are all different."""
    places: dict[Gram, list[int]] = {}
    for place, text in unseen.items():
        for gram in set(grams(words(text), length)):
            places.setdefault(gram, []).append(place)
    return {gram: found[0] for gram, found in places.items() if len(found) < BOILERPLATE}
