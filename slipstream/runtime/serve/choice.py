"""The text side of one sample: ids as text, stop strings, log-probs by token, versions by span. Called by `serve.app`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from slipstream.core.records import FinishReason
from slipstream.runtime.serve.engine_loop import Update
from slipstream.text.detokenize import Decoding, Detokenizer
from slipstream.text.stop import StopScanner


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One drawn token for the answer's log-probs."""

    id: int
    logprob: float
    offset: int  # characters of the completion's text that were settled before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What an update added: text that can be shown, and all its tokens (a stop string's included). `finish` in the last one."""

    text: str
    tokens: tuple[Token, ...]
    finish: str | None  # "stop" or "length"


@dataclass(slots=True)
class Choice:
    """A sample as it grows. After the piece with `finish` the engine may be told to abort it: what it draws more is not wanted."""

    decoding: Decoding
    stops: Sequence[str] = ()
    stop_ids: Sequence[int] = ()  # tokens that end it, and make no text
    after: Sequence[int] = ()  # ids whose text this one's goes on from
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str | None = None
    _detokenizer: Detokenizer = field(init=False)
    _scanner: StopScanner = field(init=False)
    _settled: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.decoding, after=self.after)
        self._scanner = StopScanner(self.stops)

    def push(self, update: Update) -> Piece:
        """Take an update in. Raises ValueError after the end (a bug)."""
        if self.finish is not None:
            raise ValueError("the choice has ended")
        shown, first = "", len(self.tokens)
        for token_id, logprob, version in zip(update.token_ids, update.logprobs, update.versions, strict=True):
            self.tokens.append(Token(id=token_id, logprob=logprob, offset=self._settled))
            self.versions.append(version)
            piece = "" if token_id in self.stop_ids else self._detokenizer.push((token_id,))
            self._settled += len(piece)
            shown += self._scanner.push(piece)
            if self._scanner.match:
                self.finish = "stop"
                break
        else:
            if update.finish is not None:
                shown += self._scanner.flush(self._detokenizer.flush())
                ended = self._scanner.match or update.finish is FinishReason.STOP
                self.finish = "stop" if ended else "length"
        self.text += shown
        return Piece(text=shown, tokens=tuple(self.tokens[first:]), finish=self.finish)

    def spans(self) -> list[dict[str, int]]:
        """Runs of tokens drawn by one weight version: `start` to before `end`, counted in the completion's tokens."""
        found, start = [], 0
        for version, run in groupby(self.versions):
            end = start + len(list(run))
            found.append({"version": version, "start": start, "end": end})
            start = end
        return found
