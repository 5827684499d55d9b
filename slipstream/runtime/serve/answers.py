"""What clients get, in OpenAI's form, with fields of our own. Pure: choices to plain data. Called by `serve.app`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slipstream.runtime.serve.choice import Choice, Piece, Token
from slipstream.runtime.serve.plan import Plan
from slipstream.text.detokenize import Decoding, token_bytes
from slipstream.text.tool_calls import MalformedCall, ToolCall, parse_turn

Json = dict[str, Any]


def error_body(message: str, *, type: str, param: str | None = None, code: str | None = None) -> Json:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writes the answers to one request, whole or in chunks."""

    kind: Literal["chat", "completion"]
    id: str
    created: int  # seconds since 1970
    model: str
    plan: Plan
    decoding: Decoding
    logprobs: bool
    token_ids: bool

    def whole(self, choices: Sequence[Choice]) -> Json:
        """The answer to a request that is not streamed."""
        body = self._head("chat.completion" if self.kind == "chat" else "text_completion")
        body["choices"] = [self._choice(index, choice) for index, choice in enumerate(choices)]
        body["usage"] = self.usage(choices)
        if self.token_ids and self.kind == "chat":
            body["prompt_token_ids"] = self.plan.prompts[0].tolist()
        return body

    def opening(self) -> list[Json]:
        """The chunks before any token."""
        if self.kind == "completion":
            return []
        first = [self._chunk(index, {"delta": {"role": "assistant", "content": ""}}) for index in range(len(self.plan.samples))]
        if self.token_ids:
            first[0]["prompt_token_ids"] = self.plan.prompts[0].tolist()
        return first

    def chunks(self, index: int, choice: Choice, piece: Piece) -> list[Json]:
        """The chunks of a piece: none while there is nothing to tell. Where tools are looked for, text comes at the end."""
        held = self.plan.tools is not None
        text = "" if held else piece.text
        found: list[Json] = []
        extras = self._extras(piece.tokens, first=len(choice.tokens) == len(piece.tokens), index=index)
        if text or extras:
            content = {"text": text} if self.kind == "completion" else {"delta": {"content": text} if text else {}}
            found.append(self._chunk(index, content | extras))
        if piece.finish is None:
            return found
        finish, delta = piece.finish, {}
        if held:
            finish, delta = self._turn(index, choice)
            delta.pop("role")
            if "tool_calls" in delta:
                delta["tool_calls"] = [{"index": place} | call for place, call in enumerate(delta["tool_calls"])]
        last = {"text": ""} if self.kind == "completion" else {"delta": delta}
        found.append(self._chunk(index, last | {"finish_reason": finish, "weight_versions": choice.spans()}))
        return found

    def usage_chunk(self, choices: Sequence[Choice]) -> Json:
        return self._head("chat.completion.chunk" if self.kind == "chat" else "text_completion") | {
            "choices": [],
            "usage": self.usage(choices),
        }

    def usage(self, choices: Sequence[Choice]) -> Json:
        """Each prompt counts once, whatever `n` is."""
        prompt, completion = sum(map(len, self.plan.prompts)), sum(len(choice.tokens) for choice in choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "seed": self.plan.seed}

    def _chunk(self, index: int, content: Json) -> Json:
        choice = {"index": index, "logprobs": None, "finish_reason": None} | content
        return self._head("chat.completion.chunk" if self.kind == "chat" else "text_completion") | {"choices": [choice]}

    def _choice(self, index: int, choice: Choice) -> Json:
        finish = choice.finish
        if self.kind == "completion":
            told: Json = {"text": choice.text}
        else:
            finish, message = self._turn(index, choice)
            told = {"message": message}
        found = {"index": index, **told, "logprobs": None, "finish_reason": finish, "weight_versions": choice.spans()}
        return found | self._extras(choice.tokens, first=True, index=index)

    def _extras(self, tokens: Sequence[Token], *, first: bool, index: int) -> Json:
        """Log-probs and ids, where they were asked for and there are tokens."""
        found: Json = {}
        if self.logprobs and tokens:
            found["logprobs"] = self._chat_logprobs(tokens) if self.kind == "chat" else self._completion_logprobs(tokens)
        if self.token_ids:
            if tokens:
                found["token_ids"] = [token.id for token in tokens]
            if first and self.kind == "completion":
                found["prompt_token_ids"] = self.plan.prompt_of(index).tolist()
        return found

    def _chat_logprobs(self, tokens: Sequence[Token]) -> Json:
        entries = []
        for token in tokens:
            data = token_bytes(self.decoding, token.id)
            entries.append({"token": data.decode(errors="replace"), "bytes": list(data), "logprob": token.logprob, "top_logprobs": []})
        return {"content": entries, "refusal": None}

    def _completion_logprobs(self, tokens: Sequence[Token]) -> Json:
        return {
            "tokens": [token_bytes(self.decoding, token.id).decode(errors="replace") for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": None,
            "text_offset": [token.offset for token in tokens],
        }

    def _turn(self, index: int, choice: Choice) -> tuple[str | None, Json]:
        """Finish reason and message. A call that cannot be read stays in the content as it was written."""
        if self.plan.tools is None:
            return choice.finish, {"role": "assistant", "content": choice.text, "refusal": None}
        turn = parse_turn(choice.text, self.plan.tools, thinking_open=self.plan.thinking_open)
        calls = [call for call in turn.calls if isinstance(call, ToolCall)]
        content = "\n".join(part for part in (turn.content, *(call.raw for call in turn.calls if isinstance(call, MalformedCall))) if part)
        message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if turn.thinking is not None:
            message["reasoning_content"] = turn.thinking
        if not calls:
            return choice.finish, message
        message["tool_calls"] = [self._call(f"{index}_{place}", call) for place, call in enumerate(calls)]
        return "tool_calls" if choice.finish == "stop" else choice.finish, message

    def _call(self, place: str, call: ToolCall) -> Json:
        name = f"call_{self.id.rpartition('-')[2][:16]}_{place}"
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        return {"id": name, "type": "function", "function": {"name": call.name, "arguments": arguments}}
