"""A checked request made into samples for the engine: prompts, seeds, limits. Pure. Called by `serve.app`, off the event loop.

The seeds of a request's samples are functions of its seed and their index alone: a prompt sent in a list is answered as if it
were sent by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.core.records import SampleRequest
from slipstream.core.rng import stream_seed
from slipstream.runtime.serve.model import LocalModel
from slipstream.runtime.serve.prompts import chat_text, given_ids, text_ids
from slipstream.runtime.serve.wire import ChatRequest, CompletionRequest, Request, RequestError
from slipstream.text.tokenizer import Tokenizer
from slipstream.text.tool_calls import ToolFormat, tool_format

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for completions; a chat may go on to the end of the context
MAX_SAMPLES = 4096  # of one request: prompts times n

Given = ParamSpec("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a request asks of the engine."""

    prompts: tuple[np.ndarray, ...]  # int32, one each
    samples: tuple[SampleRequest, ...]  # prompt by prompt, `n` each; a sample's index is its choice's
    seed: int  # given, or drawn for this request
    tools: ToolFormat | None = None  # how calls are written; None: none are looked for
    thinking_open: bool = False  # the prompt has begun the model's thinking

    def prompt_of(self, index: int) -> np.ndarray:
        """The prompt of a choice."""
        return self.prompts[index // (len(self.samples) // len(self.prompts))]


def plan_chat(request: ChatRequest, model: LocalModel, *, id: str, max_tokens: int, fresh_seed: int) -> Plan:
    """Raises RequestError for a request that this model cannot answer."""
    if request.prompt_token_ids is not None:
        prompt = _named("prompt_token_ids", given_ids, request.prompt_token_ids, model.tokens, "prompt_token_ids")
        return _plan(request, model, [prompt], id, max_tokens, None, fresh_seed)
    text = _named("messages", _rendered, request, model)
    prompt = _named("messages", model.tokenizer.encode, text)
    made = _plan(request, model, [prompt], id, max_tokens, None, fresh_seed)
    tools = tool_format(model.chat_template().source) if request.shown_tools() else None
    return replace(made, tools=tools, thinking_open=text.rstrip().endswith("<think>"))


def plan_completion(request: CompletionRequest, model: LocalModel, *, id: str, max_tokens: int, fresh_seed: int) -> Plan:
    """Raises RequestError for a request that this model cannot answer."""
    field = "prompt" if request.prompt_token_ids is None else "prompt_token_ids"
    prompts = [
        _named(field, text_ids, model.tokenizer, prompt)
        if isinstance(prompt, str)
        else _named(field, given_ids, prompt, model.tokens, field)
        for prompt in request.prompts()
    ]
    return _plan(request, model, prompts, id, max_tokens, DEFAULT_COMPLETION_TOKENS, fresh_seed)


def _rendered(request: ChatRequest, model: LocalModel) -> str:
    variables = request.chat_template_kwargs
    return chat_text(model.chat_template(), request.messages or [], tools=request.shown_tools(), variables=variables)


def _named(param: str, function: Callable[Given, Made], *arguments: Given.args, **options: Given.kwargs) -> Made:
    """What `function` gives; its UsageError and its recursion in JSON nested too deep are told as faults of the field."""
    try:
        return function(*arguments, **options)
    except UsageError as error:
        raise RequestError(str(error), param=param) from error
    except RecursionError as error:
        raise RequestError(f"{param} is nested too deep", param=param) from error


def _plan(
    request: Request,
    model: LocalModel,
    prompts: Sequence[np.ndarray],
    id: str,
    max_tokens: int,
    default_new: int | None,
    fresh_seed: int,
) -> Plan:
    if len(prompts) * request.choices() > MAX_SAMPLES:
        raise RequestError(f"{len(prompts)} prompts times n = {request.choices()}: at most {MAX_SAMPLES} samples a request", param="n")
    check_stops(request.stops(), model.tokenizer)
    seed = fresh_seed if request.seed is None else request.seed
    fitted = [_fitted(request, prompt, max_tokens, default_new) for prompt in prompts]
    bias, stop_ids = _bias(request, model.tokens), _stop_ids(request, model)
    samples = tuple(
        SampleRequest(
            key=(id, place * request.choices() + index),
            prompt_ids=prompt,
            seed=stream_seed(seed, "serve", index),
            max_new_tokens=new,
            temperature=1.0 if request.temperature is None else request.temperature,
            stop_ids=stop_ids,
            top_k=request.top_k or -1,
            top_p=1.0 if request.top_p is None else request.top_p,
            min_p=request.min_p or 0.0,
            min_new_tokens=request.min_tokens or 0,
            logit_bias=bias,
        )
        for place, (prompt, new) in enumerate(fitted)
        for index in range(request.choices())
    )
    return Plan(prompts=tuple(prompt for prompt, _ in fitted), samples=samples, seed=seed)


def _fitted(request: Request, prompt: np.ndarray, max_tokens: int, default_new: int | None) -> tuple[np.ndarray, int]:
    """The prompt, cut if that was asked for, and how many tokens may follow it. Raises RequestError with counts where they do not fit."""
    asked = request.new_tokens()
    keep = request.truncate_prompt_tokens
    if keep is not None:
        room = max_tokens - (asked or 1)
        prompt = prompt[len(prompt) - min(len(prompt), room if keep == -1 else keep) :] if room > 0 else prompt
    if not len(prompt):
        raise RequestError("the prompt is empty", param="prompt")
    room = max_tokens - len(prompt)
    wanted = asked if asked is not None else max(1, min(room, default_new or room))
    if wanted > room:
        counts = f"{len(prompt)} prompt + {wanted} new tokens"
        advice = "shorten the prompt, ask for fewer tokens, or set truncate_prompt_tokens (-1: keep what fits)"
        raise RequestError(
            f"{counts} make {len(prompt) + wanted}; the context is {max_tokens} tokens: {advice}", code="context_length_exceeded"
        )
    if request.min_tokens and request.min_tokens > wanted:
        raise RequestError(f"min_tokens is {request.min_tokens}, but only {wanted} tokens will be drawn", param="min_tokens")
    return prompt, wanted


def _bias(request: Request, tokens: int) -> tuple[tuple[int, float], ...]:
    wrong = [key for key in request.logit_bias or {} if not (key.isascii() and key.isdigit() and int(key) < tokens)]
    if wrong:
        raise RequestError(f"logit_bias[{wrong[0]!r}] is no token id; token ids are 0 to {tokens - 1}", param="logit_bias")
    return tuple(sorted((int(key), value) for key, value in (request.logit_bias or {}).items()))


def _stop_ids(request: Request, model: LocalModel) -> tuple[int, ...]:
    return tuple(dict.fromkeys([*(() if request.ignore_eos else model.tokenizer.stop_ids), *extra_stop_ids(request, model.tokens)]))


def extra_stop_ids(request: Request, tokens: int) -> tuple[int, ...]:
    """Those that the request names. Raises RequestError for ids that are not below `tokens`."""
    given = request.stop_token_ids or []
    return tuple(_named("stop_token_ids", given_ids, given, tokens, "stop_token_ids").tolist()) if given else ()


def check_stops(stops: Sequence[str], tokenizer: Tokenizer) -> None:
    """A stop string that no token can write would never be found. Raises RequestError."""
    for stop in stops:
        try:
            tokenizer.encode(stop)
        except UsageError as error:
            raise RequestError(f"stop = {stop!r} can never occur: {error}", param="stop") from error
