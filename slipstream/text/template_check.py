"""What a chat template does that breaks the prefix property: a conversation plus a turn begins with the conversation rendered
for the model, then what the model said. Pure; for whoever opens a policy for a task of several turns.

`text.conversation` keeps the property for ids whatever the template does. A fault says that the model sees, in training on
such ids, another text than the template would have made of the same messages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from slipstream.core.errors import UsageError
from slipstream.text.chat import ChatTemplate, Message, compile_template
from slipstream.text.conversation import shared_characters
from slipstream.text.tokenizer import Tokenizer

_EXCERPT_CHARACTERS = 40  # on each side of the first difference
_PLAIN, _SPACED, _THOUGHT = "Yes, 4.", "\n  Yes, 4. \n\n", "<think>\nTwo and two.\n</think>\n\nYes, 4."
_ANSWER = "Sure?"


class FaultKind(Enum):
    """How a template breaks the property."""

    REFUSED = "refused"  # it raised
    TURN = "turn"  # what the model said is not written right after the opening of its turn
    TRIMMED = "trimmed"  # spaces or newlines at the ends of what the model said are changed
    THINKING = "thinking"  # thinking is stripped or inserted
    HISTORY = "history"  # earlier messages are written otherwise once later ones follow: moved, merged, left out
    NOT_CLOSED = "not closed"  # no stop token after what the model said
    BOUNDARY = "boundary"  # the opening's last token and the turn's first merge into other tokens
    DATE = "date"  # the text depends on today's date


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFault:
    """One broken property, with both texts around their first difference."""

    kind: FaultKind
    property: str  # what should hold, a sentence
    expected: str  # excerpt of the text that should have been there
    found: str  # excerpt of the text that was

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.property}; expected {self.expected!r}, found {self.found!r}"


def check_template(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    *,
    role: str = "user",
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> list[TemplateFault]:
    """The faults of a template in short probe conversations; at most one of a kind. `role` answers the model's turns.

    An empty list: the property holds in the probes. Never raises for what a template does.
    """
    probe = _Probe(template=template, tokenizer=tokenizer, role=role, tools=tools, variables=variables)
    faults: dict[FaultKind, TemplateFault] = {}
    for check in (_turn, _history, _closing, _boundary, _date):
        try:
            found = list(check(probe))
        except UsageError as error:
            found = [
                TemplateFault(kind=FaultKind.REFUSED, property="renders user, assistant and user in turn", expected="", found=str(error))
            ]
        for fault in found:
            faults.setdefault(fault.kind, fault)
    return list(faults.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    template: ChatTemplate
    tokenizer: Tokenizer
    role: str
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]

    def render(self, messages: Sequence[Message], *, opened: bool, template: ChatTemplate | None = None) -> str:
        template = template or self.template
        return template.render(messages, add_generation_prompt=opened, tools=self.tools, **self.variables)

    def conversations(self) -> Iterator[list[Message]]:
        """One and two turns, before the model speaks."""
        yield [_FIRST]
        yield [_FIRST, _said("Four."), {"role": self.role, "content": _ANSWER}]


_FIRST: Message = {"role": "user", "content": "What is 2+2?"}


def _said(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _turn(probe: _Probe) -> Iterator[TemplateFault]:
    """What the model said stands as it was, right after the opening."""
    for messages in probe.conversations():
        opening = probe.render(messages, opened=True)
        for content in (_PLAIN, _SPACED, _THOUGHT):
            found = probe.render([*messages, _said(content)], opened=False)
            if found.startswith(opening + content):
                continue
            expected = opening + content
            rule = "a conversation plus a turn begins with the opened conversation and what the model said"
            yield _fault(_kind_of_turn(expected, found, content), rule, expected, found)
            if content == _PLAIN:
                break  # the other probes would show the same


def _kind_of_turn(expected: str, found: str, content: str) -> FaultKind:
    if _thinks_otherwise(expected, found):
        return FaultKind.THINKING
    return FaultKind.TRIMMED if content == _SPACED else FaultKind.TURN


def _thinks_otherwise(expected: str, found: str) -> bool:
    return expected.count("<think>") != found.count("<think>")


def _history(probe: _Probe) -> Iterator[TemplateFault]:
    """What was written stays when messages are added, and they are written after it."""
    for messages in probe.conversations():
        for content in (_PLAIN, _THOUGHT):
            told = [*messages, _said(content)]
            before = probe.render(told, opened=False)
            after = probe.render([*told, {"role": probe.role, "content": _ANSWER}], opened=False)
            if not after.startswith(before):
                kind = FaultKind.THINKING if _thinks_otherwise(before, after) else FaultKind.HISTORY
                yield _fault(kind, "messages added to a conversation leave the text before them as it was", before, after)
                break
            if _ANSWER not in after[len(before) :]:
                rule = f"a message of role {probe.role!r} is written after those before it"
                yield _fault(FaultKind.HISTORY, rule, before + _ANSWER, after)


def _closing(probe: _Probe) -> Iterator[TemplateFault]:
    """A stop token ends the model's turn."""
    text = probe.render([_FIRST, _said(_PLAIN)], opened=False)
    rest = text[text.rfind(_PLAIN) + len(_PLAIN) :] if _PLAIN in text else text
    stops = [stop for stop_id in probe.tokenizer.stop_ids if (stop := probe.tokenizer.backend.id_to_token(stop_id))]
    if not any(rest.startswith(stop) for stop in stops):
        yield _fault(FaultKind.NOT_CLOSED, "a stop token follows what the model said", " or ".join(stops), rest)


def _boundary(probe: _Probe) -> Iterator[TemplateFault]:
    """The turn's tokens are its own."""
    opening = probe.render([_FIRST], opened=True)
    tokenizer = probe.tokenizer
    alone, together = (tokenizer.encode(text).tolist() for text in (opening, opening + _PLAIN))
    if together[: len(alone)] != alone:
        words = [" ".join(repr(tokenizer.backend.id_to_token(id)) for id in ids[-6:]) for ids in (alone, together[: len(alone)])]
        rule = "the opened conversation keeps its tokens when the model's text follows"
        yield TemplateFault(kind=FaultKind.BOUNDARY, property=rule, expected=words[0], found=words[1])


def _date(probe: _Probe) -> Iterator[TemplateFault]:
    """The text is the same on any day; runs are, too, as the date told is fixed."""
    texts = [
        probe.render([_FIRST], opened=True, template=compile_template(probe.template.source, probe.template.tokens, date=date))
        for date in (datetime(2025, 1, 1), datetime(2031, 11, 23))
    ]
    if texts[0] != texts[1]:
        yield _fault(FaultKind.DATE, "the text does not depend on the date", *texts)


def _fault(kind: FaultKind, rule: str, expected: str, found: str) -> TemplateFault:
    same = shared_characters(expected, found)
    start, end = max(0, same - _EXCERPT_CHARACTERS), same + _EXCERPT_CHARACTERS
    return TemplateFault(kind=kind, property=rule, expected=expected[start:end], found=found[start:end])
