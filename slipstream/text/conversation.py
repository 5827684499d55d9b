"""A conversation as token ids: opened once from messages, then only ever extended. Token ids are the truth.

What a model sampled stays as it was sampled; what its environment answers is tokenised by itself, in the text that the chat
template puts after the model's turn. Nothing that went before is rendered or tokenised again, so log-probs keep belonging to
their ids, also where a template would strip thinking, trim, or move text around (`text.template_check` tells which does).
Pure: each call gives a new record. Called by environments with several turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.text.chat import ChatTemplate, Message
from slipstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # arrays have no one equality
class Conversation:
    """Token ids of a conversation that is at the model's turn, or just after it.

    Example (ChatML): open -> "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n"; the model samples "Yes<|im_end|>";
    extended by a user's "Why?" there follow "\\n<|im_start|>user\\nWhy?<|im_end|>\\n<|im_start|>assistant\\n".
    """

    template: ChatTemplate
    tokenizer: Tokenizer
    tools: tuple[Mapping[str, Any], ...] | None
    variables: Mapping[str, Any]  # told to the template by name, e.g. enable_thinking
    messages: tuple[Message, ...]  # as the template sees them: each turn of the model is a stand-in
    token_ids: np.ndarray  # int32 [tokens]
    model_chose: np.ndarray  # bool [tokens]: True where the model chose the token, its stop token included
    is_models_turn: bool

    def after_model_turn(self, sampled_ids: Sequence[int] | np.ndarray, message: Message | None = None) -> "Conversation":
        """The conversation with the sampled ids, exactly as they are. Raises ValueError when it is not the model's turn.

        `message` is needed where messages to come refer to the turn: of its "tool_calls" the ids and names (not the text) are
        shown to the template, so that tool results can follow.
        """
        if not self.is_models_turn:
            raise ValueError("the model's turn is over; extend the conversation first")
        ids = np.asarray(sampled_ids, np.int32).reshape(-1)
        return replace(self._with_ids(ids, by_model=True), messages=(*self.messages, _stand_in(message or {})), is_models_turn=False)

    def extend(self, messages: Sequence[Message]) -> "Conversation":
        """The conversation with further messages and the opening of the model's next turn.

        The added ids begin with what closes the model's turn: after a sampled stop token what the template writes after it
        (e.g. a newline), else the template's stop token too. Raises UsageError when the template refuses the messages or
        leaves them out, ValueError when it is not their turn.
        """
        if self.is_models_turn:
            raise ValueError("it is the model's turn")
        shown = (*self.messages, *messages)
        mark = _unused_mark(self._render(shown))
        turn = len(self.messages) - 1
        rest = _after(mark, self._render(_marked(shown, turn, mark)))
        try:
            bare = _after(mark, self._render(_marked(self.messages, turn, mark)))
        except UsageError:  # a template may refuse a conversation that ends so, e.g. in a call without its result
            bare = None
        if messages and rest == bare:
            raise UsageError(f"the chat template leaves out the messages after a model's turn (role {messages[0].get('role')!r})")
        stop = _first_stop(rest, len(rest) if bare is None else shared_characters(rest, bare), self.tokenizer)
        return replace(self._with_ids(self._closing_ids(rest, stop), by_model=False), messages=shown, is_models_turn=True)

    def _closing_ids(self, rest: str, stop: tuple[int, int] | None) -> np.ndarray:
        """Ids of the text after a model's turn, where the template's stop token for it stands at `stop` (place, id)."""
        last = int(self.token_ids[-1]) if len(self.token_ids) and self.model_chose[-1] else None
        stopped = last is not None and last in self.tokenizer.stop_ids
        if stop is None:
            return _ids_after(last, rest, self.tokenizer) if stopped else self.tokenizer.encode(rest)
        place, stop_id = stop
        after = rest[place + len(_token_text(stop_id, self.tokenizer)) :]
        if stopped:
            return _ids_after(last, after, self.tokenizer)
        return np.append(np.int32(stop_id), _ids_after(stop_id, after, self.tokenizer)).astype(np.int32)

    def _render(self, messages: Sequence[Message]) -> str:
        return self.template.render(messages, add_generation_prompt=True, tools=self.tools, **self.variables)

    def _with_ids(self, ids: np.ndarray, *, by_model: bool) -> "Conversation":
        return replace(
            self,
            token_ids=np.concatenate([self.token_ids, ids]).astype(np.int32),
            model_chose=np.concatenate([self.model_chose, np.full(len(ids), by_model)]),
        )


def open_conversation(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> Conversation:
    """The rendered messages and the opening of the model's first turn. Raises UsageError when the template refuses them."""
    ids = tokenizer.encode(template.render(messages, add_generation_prompt=True, tools=tools, **variables))
    return Conversation(
        template=template,
        tokenizer=tokenizer,
        tools=None if tools is None else tuple(tools),
        variables=variables,
        messages=tuple(messages),
        token_ids=ids,
        model_chose=np.zeros(len(ids), bool),
        is_models_turn=True,
    )


def shared_characters(first: str, second: str) -> int:
    """How many characters two texts have in common from their start."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def _stand_in(message: Message) -> Message:
    """A model's turn as the template is told of it: the model's text is in the ids, and only there."""
    calls = [{**call, "function": {"name": call["function"]["name"], "arguments": {}}} for call in message.get("tool_calls") or ()]
    return {"role": "assistant", "content": "ok", **({"tool_calls": calls} if calls else {})}


def _marked(messages: Sequence[Message], turn: int, mark: str) -> list[Message]:
    """The messages with `mark` as what the model said at `turn`; in its calls' arguments too, as templates may write either."""
    message = {**messages[turn], "content": mark}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{**call, "function": {**call["function"], "arguments": {"mark": mark}}} for call in calls]
    return [*messages[:turn], message, *messages[turn + 1 :]]


def _unused_mark(text: str) -> str:
    """A text that `text` does not hold, whatever a user or a tool has put into it."""
    return next(mark for index in count() if (mark := f"ModelTurn{index}x") not in text)


def _after(mark: str, text: str) -> str:
    """What a template writes after the model's text."""
    _, found, rest = text.partition(mark)
    if not found:
        raise UsageError("the chat template does not write what the assistant said; a conversation cannot be extended with it")
    return rest


def _first_stop(text: str, limit: int, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Place and id of the first stop token before `limit`: past it `text` is of the messages that follow."""
    texts = {stop_id: _token_text(stop_id, tokenizer) for stop_id in tokenizer.stop_ids}
    found = [(place, stop_id) for stop_id, stop in texts.items() if stop and 0 <= (place := text.find(stop)) <= limit - len(stop)]
    return min(found, default=None)


def _token_text(token_id: int, tokenizer: Tokenizer) -> str:
    return tokenizer.backend.id_to_token(token_id) or ""


def _ids_after(token_id: int | None, text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Ids of `text` as it is tokenised behind the special token: no space in front as at a text's start, no spaces that it swallows."""
    ids = tokenizer.encode(_token_text(token_id, tokenizer) + text) if token_id is not None else np.zeros(0, np.int32)
    return ids[1:] if len(ids) and ids[0] == token_id else tokenizer.encode(text)
