"""What clients send, as OpenAI's clients write it, with fields of our own. Pure: bytes to a checked request, or every problem named.

A field that is not known is refused, and so is one that would change the answer and that this server cannot honour; the latter
is let pass at the value that changes nothing (e.g. `presence_penalty` = 0). What concerns the service only (`user`,
`metadata`) is taken and has no effect. Called by `serve.app`.
"""

import json
import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.core.errors import UsageError, near_names

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256

_WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    }
)
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {  # by field the values that change nothing
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "functions": (),
    "function_call": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "parallel_tool_calls": (True,),
    "prompt_logprobs": (0,),
}

Finite = Annotated[float, Field(allow_inf_nan=False)]


class RequestError(UsageError):
    """A request that cannot be answered. `param` names the first field at fault, `code` and `status` are the HTTP answer's."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class StreamOptions(BaseModel):
    """How a stream is written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # taken and without effect: nothing is padded


class Request(BaseModel):
    """What both kinds of completion take. None: as if it were not there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None  # new tokens, the stop token included
    temperature: Annotated[Finite, Field(ge=0)] | None = None  # 0 means greedy; default 1
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, Annotated[Finite, Field(ge=-100, le=100)]] | None = None  # by token id
    # fields of our own
    top_k: Annotated[int, Field(ge=-1)] | None = None  # -1 and 0: all tokens
    min_p: Annotated[Finite, Field(ge=0, lt=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None  # no stop token before so many tokens
    ignore_eos: bool | None = None  # go on past the model's stop tokens, to max_tokens
    stop_token_ids: list[int] | None = None  # further tokens that end a sample, not shown in its text
    prompt_token_ids: list[int] | None = None  # the prompt as token ids, in place of messages or prompt
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None  # keep the prompt's last so many; -1: as many as fit
    return_token_ids: bool | None = None
    weight_version: int | None = None  # refuse the request where other weights are loaded

    def choices(self) -> int:
        return self.n or 1

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def new_tokens(self) -> int | None:
        """The limit that was asked for."""
        return self.max_tokens

    def wants_logprobs(self) -> bool:
        raise NotImplementedError

    def contradictions(self) -> list[tuple[str, str]]:
        """Fields that do not go together, and why."""
        found = [
            ("stop", f"is {_shown(stop)}: a stop string has 1 to {MAX_STOP_CHARACTERS} characters")
            for stop in self.stops()
            if not 1 <= len(stop) <= MAX_STOP_CHARACTERS
        ]
        if len(self.stops()) > MAX_STOPS:
            found.append(("stop", f"has {len(self.stops())} stop strings; at most {MAX_STOPS} are taken"))
        limit = self.new_tokens()
        if self.min_tokens and limit is not None and self.min_tokens > limit:
            found.append(("min_tokens", f"is {self.min_tokens}, more than the {limit} tokens of max_tokens"))
        if self.stream_options is not None and not self.stream:
            found.append(("stream_options", 'needs "stream": true'))
        return found


class ChatRequest(Request):
    """Body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None  # OpenAI's newer name of max_tokens
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # told to the chat template by name, e.g. enable_thinking

    def new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    def shown_tools(self) -> list[dict[str, Any]] | None:
        """Tools for the template; None where there are none to show."""
        return self.tools if self.tools and self.tool_choice != "none" else None

    def contradictions(self) -> list[tuple[str, str]]:
        found = super().contradictions()
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            found.append(("max_completion_tokens", f"is {self.max_completion_tokens}, but max_tokens is {self.max_tokens}; give one"))
        if self.top_logprobs:
            found.append(("top_logprobs", f"is {self.top_logprobs}; only the log-prob of the drawn token is given: 0"))
        if self.messages is None and self.prompt_token_ids is None:
            found.append(("messages", "is missing; give messages or prompt_token_ids"))
        if self.tools and self.prompt_token_ids is not None:
            found.append(("tools", "cannot be shown to a prompt that is given as prompt_token_ids"))
        return found


class CompletionRequest(Request):
    """Body of POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    logprobs: bool | int | None = None  # 0, 1 or true: the log-prob of the drawn token

    def wants_logprobs(self) -> bool:
        return self.logprobs is not None and self.logprobs is not False

    def prompts(self) -> list[str | list[int]]:
        """One or more prompts, each a text or ids."""
        prompt = self.prompt_token_ids if self.prompt_token_ids is not None else self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt or isinstance(prompt[0], int):
            return [prompt or []]  # type: ignore[list-item] - ids
        return list(prompt)  # type: ignore[arg-type] - texts, or lists of ids

    def contradictions(self) -> list[tuple[str, str]]:
        found = super().contradictions()
        if self.logprobs not in (None, False, True, 0, 1):
            found.append(("logprobs", f"is {self.logprobs}; only the log-prob of the drawn token is given: 0 or 1"))
        if self.prompt is None and self.prompt_token_ids is None:
            found.append(("prompt", "is missing; give prompt or prompt_token_ids"))
        return found


AnyRequest = TypeVar("AnyRequest", bound=Request)


def read_request(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """The request of a body. Raises RequestError with all that is wrong with it."""
    fields = _fields(body)
    problems = [problem for name in list(fields) if (problem := _set_aside(kind, name, fields))]
    try:
        request = kind.model_validate(fields)
    except ValidationError as error:
        raise _error([*problems, *_told(error)]) from error
    problems += request.contradictions()
    if problems:
        raise _error(problems)
    return request


def _fields(body: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise RequestError(f"the body is a JSON {type(tree).__name__}; an object is needed")
    return tree


def _set_aside(kind: type[Request], name: str, fields: dict[str, Any]) -> tuple[str, str] | None:
    """Take a field that is not the model's out of `fields`; why it cannot be let pass, or None."""
    if name in kind.model_fields:
        return None
    value = fields.pop(name)
    if name in _WITHOUT_EFFECT or value is None:
        return None
    if name in _UNSUPPORTED:
        passing = _UNSUPPORTED[name]
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in passing):
            return None
        allowed = f"only {' or '.join(map(json.dumps, passing))} can be given" if passing else "leave it out"
        return name, f"= {_shown(value)} is not supported; {allowed}"
    return name, f"is no field of this request; {near_names(name, kind.model_fields)}"


def _told(error: ValidationError) -> list[tuple[str, str]]:
    """A line a field: a union's complaints about each of its kinds make one."""
    told: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0])
        place = "".join(f"[{part}]" if isinstance(part, int) else "" for part in detail["loc"][1:])
        told.setdefault(name, f"{place} = {_shown(detail['input'])}: {detail['msg']}".strip())
    return list(told.items())


def _error(problems: list[tuple[str, str]]) -> RequestError:
    return RequestError("; ".join(f"{name}{'' if text.startswith('[') else ' '}{text}" for name, text in problems), param=problems[0][0])


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
