"""From an agent's request to the ids that the model goes on from. Pure: a checked request and the turns so far. Called by `agents.app`.

A request goes on from an earlier turn where it repeats all of it and adds something: messages that equal those before, the model's as
it was answered, or ids or text that begin with those of the turn. Then only what was added is rendered and tokenised. Everything else
(a history that was rewritten, a second conversation) begins a conversation of its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.runtime.agents.record import Said, Turn
from slipstream.runtime.serve.plan import DEFAULT_COMPLETION_TOKENS
from slipstream.runtime.serve.prompts import chat_text, given_ids, plain_message, text_ids
from slipstream.runtime.serve.wire import ChatRequest, CompletionRequest, Request, RequestError
from slipstream.text.chat import ChatTemplate, Message
from slipstream.text.conversation import open_conversation
from slipstream.text.tokenizer import Tokenizer

_FIXED = ("top_p", "top_k", "min_p", "min_tokens", "logit_bias", "seed", "ignore_eos", "truncate_prompt_tokens", "weight_version")
_NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "min_tokens": 0, "ignore_eos": False, "logit_bias": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every request of an episode."""

    tokenizer: Tokenizer
    tokens: int  # ids from here on are no tokens
    template: ChatTemplate
    temperature: float  # at which turns are drawn
    max_prompt_tokens: int  # of a conversation's first prompt
    max_new_tokens: int  # of everything after it, what the agent adds included


class NoRoom(RequestError):
    """The conversation has come to its limit of tokens."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="context_length_exceeded")


def check_parameters(request: Request, rules: Rules) -> None:
    """Raises RequestError for what would draw the turn otherwise than the run draws."""
    if request.temperature not in (None, rules.temperature):
        raise RequestError(
            f"temperature = {request.temperature:g}, but turns are drawn at {rules.temperature:g}, the run's own; leave it out",
            param="temperature",
        )
    if request.choices() != 1:
        raise RequestError(f"n = {request.n}: an episode has one answer to a request; ask again for others", param="n")
    for name in _FIXED:
        value = getattr(request, name)
        if value is not None and value != _NEUTRAL.get(name):
            raise RequestError(f"{name} = {json.dumps(value)}: the run says how turns are drawn; leave it out", param=name)


def room(request: Request, said: Said, rules: Rules) -> int:
    """How many tokens may be drawn: as many as were asked for, as far as there is room. Raises NoRoom where there is none."""
    if said.parent is None and said.opening > rules.max_prompt_tokens:
        limit = f"a conversation's first prompt may have {rules.max_prompt_tokens} (task.max_prompt_tokens)"
        raise NoRoom(f"the prompt has {said.opening} tokens, which exceeds the model's context length here: {limit}")
    used = len(said.prompt_ids) - said.opening
    left = rules.max_new_tokens - used
    if left < 1:
        limit = f"{used} of {rules.max_new_tokens} tokens after its first prompt (sampling.max_new_tokens)"
        raise NoRoom(f"the conversation exceeds the model's context length here: it has {limit}")
    asked = request.new_tokens()
    if asked is None and isinstance(request, CompletionRequest):
        asked = DEFAULT_COMPLETION_TOKENS
    return left if asked is None else min(asked, left)


def plan_chat(request: ChatRequest, rules: Rules, turns: Sequence[Turn]) -> Said:
    """Raises RequestError for messages that cannot be rendered."""
    if request.prompt_token_ids is not None:
        return _of_ids(request.prompt_token_ids, rules, turns, "prompt_token_ids")
    tools, variables = request.shown_tools(), request.chat_template_kwargs or {}
    try:
        chat_text(rules.template, request.messages or [], tools=tools, variables=variables)  # refuses what cannot be shown
        told = [plain_message(message, f"messages[{place}]") for place, message in enumerate(request.messages or [])]
        forms = tuple(map(canonical, told))
        before = _goes_on(forms, _shown(tools, variables), turns)
        if before is not None and before.conversation is not None:
            conversation = before.conversation.extend(told[len(before.messages) :])
            return Said(parent=before, prompt_ids=conversation.token_ids, conversation=conversation, messages=forms)
        conversation = open_conversation(rules.template, rules.tokenizer, told, tools=tools, **variables)
    except UsageError as error:
        raise RequestError(str(error), param="messages") from error
    except RecursionError as error:
        raise RequestError("messages is nested too deep", param="messages") from error
    return Said(parent=None, prompt_ids=conversation.token_ids, conversation=conversation, messages=forms)


def plan_completion(request: CompletionRequest, rules: Rules, turns: Sequence[Turn]) -> Said:
    """Raises RequestError for more prompts than one, or one that cannot be used."""
    field = "prompt" if request.prompt_token_ids is None else "prompt_token_ids"
    prompts = request.prompts()
    if len(prompts) != 1:
        raise RequestError(f"{field} holds {len(prompts)} prompts; an episode asks one at a time", param=field)
    prompt = prompts[0]
    if not isinstance(prompt, str):
        return _of_ids(prompt, rules, turns, field)
    earlier = [turn for turn in turns if turn.text is not None and prompt.startswith(turn.text)]
    try:
        if not earlier:
            return Said(parent=None, prompt_ids=text_ids(rules.tokenizer, prompt), text=prompt)
        before = max(earlier, key=lambda turn: len(turn.text or ""))
        added = prompt[len(before.text or "") :]
        if not added:  # nothing comes between: a conversation of its own, of the same ids
            return Said(parent=None, prompt_ids=before.ids, text=prompt)
        ids = np.concatenate([before.ids, rules.tokenizer.encode(added)]).astype(np.int32)
        return Said(parent=before, prompt_ids=ids, text=prompt)
    except UsageError as error:
        raise RequestError(str(error), param=field) from error


def chat_turn(said: Said, turn: Turn, answered: Message) -> Turn:
    """The turn of a chat, with the message that the agent was given."""
    if said.conversation is None:
        return turn
    told = plain_message({**answered, "content": answered.get("content") or ""}, "the answer")
    return replace(
        turn,
        conversation=said.conversation.after_model_turn(turn.sample.completion_ids, told),
        messages=(*said.messages, canonical(told)),
    )


def canonical(message: Message) -> str:
    """A message as far as it says something: equal texts for equal messages, whatever a client adds to the model's when it repeats it."""
    said: dict[str, Any] = {name: value for name, value in message.items() if value is not None}
    if said.get("role") == "assistant":
        calls = [[call.get("id"), call["function"]["name"], call["function"]["arguments"]] for call in said.get("tool_calls") or ()]
        said = {"role": "assistant", "content": said.get("content") or "", "tool_calls": calls}
    return json.dumps(said, sort_keys=True, default=str)


def _goes_on(forms: tuple[str, ...], shown: str, turns: Sequence[Turn]) -> Turn | None:
    """The latest turn whose messages are the longest beginning of these, with something after them."""
    found = [
        turn
        for turn in turns
        if turn.conversation is not None
        and len(turn.messages) < len(forms)
        and forms[: len(turn.messages)] == turn.messages
        and _shown(turn.conversation.tools, turn.conversation.variables) == shown
    ]
    return max(reversed(found), key=lambda turn: len(turn.messages), default=None)


def _shown(tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]) -> str:
    return json.dumps([None if tools is None else list(tools), dict(variables)], sort_keys=True, default=str)


def _of_ids(ids: Sequence[int], rules: Rules, turns: Sequence[Turn], field: str) -> Said:
    try:
        prompt = given_ids(ids, rules.tokens, field)
    except UsageError as error:
        raise RequestError(str(error), param=field) from error
    earlier = [turn for turn in turns if len(turn.ids) < len(prompt) and np.array_equal(prompt[: len(turn.ids)], turn.ids)]
    return Said(parent=max(earlier, key=lambda turn: len(turn.ids), default=None), prompt_ids=prompt)
