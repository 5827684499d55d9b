"""What samplers, graders and the coordinator say to each other about verdicts. Used by all three; pure.

A sampler asks for verdicts on replies and collects them; a grader takes replies and hands verdicts in. A reply is named by what it is:
the same name is the same prompt, answer and text, whoever has sent it and whenever.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipstream.core.records import Outcome, Prompt
from slipstream.runtime.coordinator.messages import Call, Message

AT_ONCE = 64  # replies of one call, at most: texts may be long


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a model said to a prompt of the run."""

    ticket_index: Annotated[int, Field(ge=0)]
    sample: Annotated[int, Field(ge=0)]
    content: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]  # `content_of`
    text: str

    @property
    def name(self) -> str:
        """Worked example: "12/3/0f…"."""
        return f"{self.ticket_index}/{self.sample}/{self.content}"


def content_of(prompt: Prompt, text: str) -> str:
    """Hash of a reply with the prompt and the answer that it is judged by: a grader with other data finds another one."""
    said = json.dumps((prompt.id, prompt.text, prompt.answer, text)).encode()
    return hashlib.blake2b(said, digest_size=16).hexdigest()


class Ask(Call):
    """A sampler wants verdicts on these."""

    replies: list[Reply] = Field(max_length=AT_ONCE)


class Asked(Message):
    """The first `taken` of them are known; there is no room for the others now."""

    taken: int


class Collect(Call):
    """A sampler has got the verdicts `taken`, and waits for those of `waiting` and of what it asks for meanwhile. Names of replies."""

    taken: list[str]
    waiting: list[str]
    wait_s: float = Field(default=0.0, ge=0, le=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a reply."""

    name: str  # the reply's to its sampler, the order's to its grader
    outcome: Outcome


class Collected(Message):
    """Verdicts that are there, and what has to be asked for again: the coordinator does not know it (any more)."""

    verdicts: list[Verdict]
    unknown: list[str]


class Take(Call):
    """A grader has room for so many replies. Orders that are leased to it and not among `holding` got lost on the way."""

    room: int = Field(ge=0, le=AT_ONCE)
    holding: list[str]
    wait_s: float = Field(default=0.0, ge=0, le=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A reply to judge."""

    name: str
    reply: Reply


class Taken(Message):
    """Replies to judge."""

    orders: list[Order]
    done: bool  # the last batch is trained: there is nothing more to judge


class HandIn(Call):
    """A grader has judged these."""

    verdicts: list[Verdict]
