"""`slipstream generate`: a file of prompts to a file of samples with token ids, log-probs and versions. Called by the command line.

A sample's seed is a function of the seed, its prompt's id and its index: rows may be left out or put in another order, and
the others stay the same. Rows are written in the order of the prompts, a whole file or none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from slipstream.core.clock import Clock, SystemClock
from slipstream.core.errors import UsageError
from slipstream.core.records import FinishReason, SampleRequest
from slipstream.core.rng import stream_seed
from slipstream.models.weight import Precision
from slipstream.runtime.countdown import Countdown
from slipstream.runtime.input_rows import check_output, read_rows, row_id
from slipstream.runtime.serve.engine_loop import EngineLoop, Key, Update
from slipstream.runtime.serve.model import LocalModel, build_engine, open_model
from slipstream.runtime.serve.prompts import chat_ids, given_ids, text_ids
from slipstream.telemetry.atomic import atomic_write_bytes
from slipstream.telemetry.jsonl import encode_row

TOKENS_PER_DISPATCH = 8  # nobody watches single tokens here
LOOK_EVERY_S = 1.0  # whether the engine is well
STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSettings:
    """What a person chooses."""

    model: Path
    prompts: Path
    out: Path
    temperature: float = 1.0  # 0: greedy
    top_k: int = -1  # -1: all
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    n: int = 1  # samples a prompt
    max_tokens: int = 256  # new tokens a sample
    slots: int = 8
    precision: Precision = "f32"
    exact: bool = False  # log-probs are those of `score --exact` to the bit
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What was written."""

    rows: int
    tokens: int  # drawn
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    id: str | int
    token_ids: np.ndarray  # int32


@dataclass(slots=True)
class _Drawn:
    """A sample as it grows."""

    request: SampleRequest
    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: FinishReason | None = None
    raw_logprobs: Sequence[float] | None = None  # before top-k, top-p and min-p


def generate(settings: GenerateSettings) -> Generated:
    """Raises UsageError for settings, prompts or a model that cannot be used, before anything is drawn; RunFailed when the engine fails."""
    _check(settings)
    check_output(settings.out)
    model = open_model(settings.model)
    prompts = read_rows(settings.prompts, lambda row: _prompt(row, model, settings))
    clock = SystemClock()
    engine = build_engine(
        model,
        clock,
        slots=settings.slots,  # however few samples: shapes, and with them bits, are the same for every file
        max_tokens=_cache_tokens(prompts, settings, model),
        precision=settings.precision,
        exact=settings.exact,
        tokens_per_dispatch=TOKENS_PER_DISPATCH,
    )
    requests = list(_requests(prompts, settings, model))
    progress = Countdown(len(requests), "samples", clock, (lambda _: None) if settings.quiet else None)
    drawn = _draw(engine, requests, settings.slots, clock, progress)
    rows = [_row(sample, prompts[index // settings.n], index % settings.n, model) for index, sample in enumerate(drawn)]
    atomic_write_bytes(settings.out, b"".join(map(encode_row, rows)))
    progress.finish()
    tokens = sum(len(sample.token_ids) for sample in drawn)
    return Generated(rows=len(rows), tokens=tokens, tokens_per_second=progress.tokens_per_second())


def _check(settings: GenerateSettings) -> None:
    bounds = (
        ("temperature", 0 <= settings.temperature < np.inf, "must be 0 (greedy) or a positive number"),
        ("top_k", settings.top_k == -1 or settings.top_k >= 1, "must be -1 (all tokens) or at least 1"),
        ("top_p", 0 < settings.top_p <= 1, "must be above 0 and at most 1"),
        ("min_p", 0 <= settings.min_p < 1, "must be at least 0 and below 1"),
        ("n", settings.n >= 1, "must be at least 1"),
        ("max_tokens", settings.max_tokens >= 1, "must be at least 1"),
        ("slots", settings.slots >= 1, "must be at least 1"),
    )
    problems = [f"--{name.replace('_', '-')} {getattr(settings, name)}: {rule}" for name, holds, rule in bounds if not holds]
    if problems:
        raise UsageError("; ".join(problems))


def _prompt(row: dict[str, Any], model: LocalModel, settings: GenerateSettings) -> _Prompt:
    """A row's prompt as ids: `prompt_ids`, else `messages`, else `prompt`."""
    id = row_id(row)
    if row.get("prompt_ids") is not None:
        ids = given_ids(_list(row, "prompt_ids"), model.tokens, "prompt_ids")
    elif row.get("messages") is not None:
        ids = chat_ids(model.chat_template(), model.tokenizer, _list(row, "messages"))
    elif isinstance(row.get("prompt"), str):
        ids = text_ids(model.tokenizer, row["prompt"])
    else:
        raise UsageError("one of prompt_ids (a list), messages (a list) or prompt (a text) is needed")
    total = len(ids) + settings.max_tokens
    if total > model.spec.context:
        counts = f"{len(ids)} prompt + {settings.max_tokens} new tokens make {total}"
        raise UsageError(f"{counts}; the model's context is {model.spec.context} tokens: shorten the prompt or lower --max-tokens")
    return _Prompt(id=id, token_ids=ids)


def _list(row: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(row[name], list):
        raise UsageError(f"{name} must be a list")
    return row[name]


def _cache_tokens(prompts: Sequence[_Prompt], settings: GenerateSettings, model: LocalModel) -> int:
    """Room for the longest, as a power of two, so that few programs are compiled."""
    longest = max(len(prompt.token_ids) for prompt in prompts) + settings.max_tokens
    return min(model.spec.context, 1 << (longest - 1).bit_length())


def _requests(prompts: Sequence[_Prompt], settings: GenerateSettings, model: LocalModel) -> Iterator[SampleRequest]:
    for place, prompt in enumerate(prompts):
        for sample in range(settings.n):
            yield SampleRequest(
                key=(str(place), sample),
                prompt_ids=prompt.token_ids,
                seed=stream_seed(settings.seed, "generate", prompt.id, sample),
                max_new_tokens=settings.max_tokens,
                temperature=settings.temperature,
                stop_ids=model.tokenizer.stop_ids,
                top_k=settings.top_k,
                top_p=settings.top_p,
                min_p=settings.min_p,
            )


def _draw(engine: Any, requests: Sequence[SampleRequest], slots: int, clock: Clock, progress: Countdown) -> list[_Drawn]:
    """All samples, in the order of the requests. A few more than there are slots are with the engine at a time."""
    arrived: SimpleQueue[Sequence[Update]] = SimpleQueue()
    loop = EngineLoop(engine, arrived.put, clock=clock)
    drawn: dict[Key, _Drawn] = {}
    waiting = iter(requests)

    def feed(count: int) -> None:
        for request in (next(waiting, None) for _ in range(count)):
            if request is not None:
                drawn[request.key] = _Drawn(request, [], [], [])
                loop.submit([request])

    loop.start()
    try:
        feed(2 * slots)
        ended = 0
        while ended < len(requests):
            updates = _next(arrived, loop)
            finished = sum(_take(drawn[update.key], update) for update in updates)
            progress.add(finished, sum(len(update.token_ids) for update in updates))
            feed(finished)
            ended += finished
    finally:
        loop.stop(STOP_S)
    return list(drawn.values())


def _next(arrived: "SimpleQueue[Sequence[Update]]", loop: EngineLoop) -> Sequence[Update]:
    """The next updates; RunFailed once the engine can give none."""
    while True:
        try:
            return arrived.get(timeout=LOOK_EVERY_S)
        except Empty:
            loop.check()


def _take(sample: _Drawn, update: Update) -> bool:
    """Add an update to its sample; True when that was its last. All prompts were judged before: a refusal is of the settings."""
    if update.refused:
        raise UsageError(update.refused.partition(": ")[2] or update.refused)
    sample.token_ids += update.token_ids
    sample.logprobs += update.logprobs
    sample.versions += update.versions
    sample.finish, sample.raw_logprobs = update.finish, update.raw_logprobs
    return update.finish is not None


def _row(drawn: _Drawn, prompt: _Prompt, sample: int, model: LocalModel) -> dict[str, Any]:
    assert drawn.finish is not None
    stops = model.tokenizer.stop_ids
    spoken = drawn.token_ids[:-1] if drawn.finish is FinishReason.STOP and drawn.token_ids[-1] in stops else drawn.token_ids
    raw = {} if drawn.raw_logprobs is None else {"raw_logprobs": drawn.raw_logprobs}
    return {
        "id": prompt.id,
        "sample": sample,
        "prompt_ids": prompt.token_ids,
        "completion_ids": drawn.token_ids,
        "logprobs": drawn.logprobs,
        "versions": drawn.versions,
        "finish_reason": drawn.finish.value,
        "text": model.tokenizer.decode(spoken),
        "seed": drawn.request.seed,
        **raw,
    }
