"""What an engine may be asked. Pure; every request passes here before it waits, so that a bad one harms nobody else."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from slipstream.core.records import SampleRequest

BIASES = 32  # most biased tokens a request: rows of a dispatch have places for so many
STOPS = 8  # most stop ids a request
LEAST_TEMPERATURE = 1e-4  # below it float32 sees no second token; ask for greedy
LARGEST_BIAS = 1e9  # more than any logit; divided by the least temperature it is still finite


def check_request(request: SampleRequest, *, vocabulary: int, known: int, max_tokens: int) -> None:
    """Raises ValueError with everything that is wrong. `known` ids of the `vocabulary` are tokens, the rest padding rows."""
    problems = [
        *_length_problems(request, vocabulary, max_tokens),
        *_randomness_problems(request),
        *_truncation_problems(request),
        *_stop_problems(request, vocabulary, known),
        *_bias_problems(request.logit_bias, known),
        *_drawn_problems(request, vocabulary, known),
    ]
    if problems:
        raise ValueError(f"request {request.key}: {'; '.join(problems)}")


def restricts(request: SampleRequest, known: int) -> bool:
    """Whether the sample is drawn from something else than the model's own distribution at the request's temperature."""
    truncates = 0 < request.top_k < known or request.top_p < 1 or request.min_p > 0
    early_stops = request.min_new_tokens > 0 and bool(request.stop_ids)
    return bool(request.logit_bias) or early_stops or (truncates and request.temperature > 0)


def _drawn_problems(request: SampleRequest, vocabulary: int, known: int) -> Iterator[str]:
    if request.drawn is None:
        return
    ids, limit = request.drawn.completion_ids, request.max_new_tokens
    if len({len(ids), len(request.drawn.logprobs), len(request.drawn.versions)}) > 1:
        yield f"drawn tokens, log-probs and versions are {len(ids)}, {len(request.drawn.logprobs)} and {len(request.drawn.versions)}"
    if not 1 <= len(ids) < limit:
        yield f"{len(ids)} tokens are drawn already; at least 1 and fewer than max_new_tokens = {limit} can be"
    elif np.min(ids) < 0 or np.max(ids) >= vocabulary or set(ids.tolist()) & set(request.stop_ids):
        yield f"the tokens drawn already hold a stop id, or one outside the vocabulary of {vocabulary}"
    if restricts(request, known):
        yield "tokens are drawn already, whose log-probs before truncation or bias are not known"


def _length_problems(request: SampleRequest, vocabulary: int, max_tokens: int) -> Iterator[str]:
    tokens, new, least = len(request.prompt_ids), request.max_new_tokens, request.min_new_tokens
    if tokens == 0:
        yield "the prompt is empty"
    elif np.min(request.prompt_ids) < 0 or np.max(request.prompt_ids) >= vocabulary:
        yield f"a token id lies outside the vocabulary of {vocabulary}"
    if new < 1 or tokens + new > max_tokens:
        yield f"{tokens} prompt + {new} new tokens; at most {max_tokens} fit, and at least 1 is drawn"
    if not 0 <= least <= max(new, 0):
        yield f"min_new_tokens = {least} is not between 0 and max_new_tokens = {new}"


def _randomness_problems(request: SampleRequest) -> Iterator[str]:
    if not 0 <= request.seed < 2**64:
        yield f"seed {request.seed} is not an unsigned 64-bit number"
    if not 0 <= request.temperature < math.inf:
        yield f"temperature {request.temperature} is neither 0 (greedy) nor a positive number"
    elif 0 < request.temperature < LEAST_TEMPERATURE:
        yield f"temperature {request.temperature} is below {LEAST_TEMPERATURE}; 0 is greedy"


def _truncation_problems(request: SampleRequest) -> Iterator[str]:
    if request.top_k == 0 or request.top_k < -1:
        yield f"top_k = {request.top_k} is neither -1 (all tokens) nor at least 1"
    if not 0 < request.top_p <= 1:
        yield f"top_p = {request.top_p} is not above 0 and at most 1"
    if not 0 <= request.min_p < 1:
        yield f"min_p = {request.min_p} is not at least 0 and below 1"


def _stop_problems(request: SampleRequest, vocabulary: int, known: int) -> Iterator[str]:
    stops = set(request.stop_ids)
    if len(stops) > STOPS:
        yield f"{len(stops)} stop ids; at most {STOPS} are possible"
    if any(not 0 <= stop < vocabulary for stop in stops):
        yield f"a stop id of {request.stop_ids} lies outside the vocabulary of {vocabulary}"
    if request.min_new_tokens > 0 and len([stop for stop in stops if 0 <= stop < known]) >= known:
        yield f"min_new_tokens = {request.min_new_tokens}, but every token is a stop id"


def _bias_problems(bias: Sequence[tuple[int, float]], known: int) -> Iterator[str]:
    if len(bias) > BIASES:
        yield f"logit_bias of {len(bias)} tokens; at most {BIASES} are possible"
    unknown = [token for token, _ in bias if not 0 <= token < known]
    if unknown:
        yield f"logit_bias names token {unknown[0]}; tokens are 0 to {known - 1}"
    if len({token for token, _ in bias}) < len(bias):
        yield "logit_bias names a token twice"
    wild = [(token, value) for token, value in bias if not abs(value) <= LARGEST_BIAS]
    if wild:
        yield f"logit_bias of token {wild[0][0]} is {wild[0][1]}, not a number between -{LARGEST_BIAS:.0e} and {LARGEST_BIAS:.0e}"
