"""What one dispatch does, and what came of it: the records between the scheduler and the engine that runs them.

A token's keys and values are written when the token is processed. Prefill processes a sequence's tokens but the last; a
decode step processes the newest token and draws the next. Prompt of 5 tokens, pages of 4: positions 0..3 are prefilled into
the first page of the table; the first decode step processes position 4, in the second page, and draws token 5.
"""

from dataclasses import dataclass

RequestKey = tuple[str, int]  # `SampleRequest.key`
Table = tuple[int, ...]  # a sequence's pages in position order; position p lies in page p // page_tokens of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive tokens of one sequence to prefill. They may attend to what earlier chunks of the same plan write."""

    key: RequestKey
    row: int
    start: int  # position of the first token
    token_ids: tuple[int, ...]
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """A sequence that decodes: everything before `position` is in its pages, and they reach as far as the dispatch goes."""

    key: RequestKey
    row: int
    token: int  # newest token, processed by the first step
    position: int  # its position
    steps_left: int  # tokens the request may still draw; the dispatch ends at `tokens_per_dispatch`
    mixed: bool  # some of its keys and values may be of other weights than this plan's
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One dispatch: copy, then prefill chunks and decode. Never empty; each sequence is in at most one of the last two."""

    version: int  # of the weights it is planned for
    copies: tuple[tuple[int, int], ...]  # (from page, to page); no page is in two roles, so their order means nothing
    prefill: tuple[Chunk, ...]  # at most `prefill_tokens` together
    decode: tuple[Decoding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a decoding row did in a dispatch."""

    token_ids: tuple[int, ...]  # drawn, in order: 1 to `tokens_per_dispatch`
    ended: bool  # at a stop token; reaching the request's last token ends it in any case
