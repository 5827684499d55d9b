"""Stop strings in streamed text, across any token boundaries. Called by whoever streams a completion token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    """Where a completion ends, e.g. tokens 7, characters 21, stop "###"."""

    stop: str  # the stop string found
    characters: int  # of the completion's text before the stop string
    tokens: int  # ids of the completion, the one whose text completed the stop string being the last


class StopScanner:
    """Finds the first stop string to be complete in a text that grows; of several complete at the same character the longest.

    `push` is called once a token, with the text that the token settled (often none). It returns the text that can be shown:
    never a part of a stop string, for the longest end of the text that could begin one is held back. When `match` is set the
    text is complete: nothing is held, and further pushes are an error (a bug).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises UsageError for an empty stop string. One text is taken as one stop string."""
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        if "" in self._stops:
            raise UsageError("a stop string is empty, which would end every completion before its first token; leave it out")
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._shown_characters = 0
        self._tokens = 0
        self.match: StopMatch | None = None

    def push(self, piece: str) -> str:
        """The text that can be shown after one more token."""
        self._tokens += 1
        return self._add(piece)

    def flush(self, piece: str = "") -> str:
        """The rest, at the end of the completion; `piece` is text that the detokeniser still held. May yet find a stop string."""
        text = "" if self.match and not piece else self._add(piece)
        text, self._held = text + self._held, ""
        return text

    def _add(self, piece: str) -> str:
        if self.match:
            raise ValueError("the completion has ended at a stop string; there is no text after it")
        text = self._held + piece
        ends = [(start + len(stop), -len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            end, _, stop = min(ends)
            shown, self._held = text[: end - len(stop)], ""
            self.match = StopMatch(stop=stop, characters=self._shown_characters + len(shown), tokens=self._tokens)
        else:
            split = len(text) - self._beginning(text)
            shown, self._held = text[:split], text[split:]
        self._shown_characters += len(shown)
        return shown

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
