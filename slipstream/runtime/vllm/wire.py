"""What is said to a vLLM server and what it says: requests to JSON, lines of a stream to tokens. Pure. Called by `vllm.sampler`.

Tokens go both ways as ids, and every setting that a server may have a default for is said: a model directory's
generation_config.json would else truncate and penalise without anybody having asked.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.core.records import SampleRequest
from slipstream.core.rng import stream_seed

Json = dict[str, Any]

LEAST_TEMPERATURE = 0.01  # the server would take this for anything less
LARGEST_BIAS = 100.0  # the server would cut what is beyond
PROBED = 5  # most likely tokens that are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a line of a stream tells."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: str | None = None  # the server's word for why it ended
    prompt_ids: tuple[int, ...] | None = None  # with the first tokens: the prompt as the server has it


class WireError(Exception):
    """An answer that is not in vLLM's form, or is an error in it. The message is for people."""


def problems(request: SampleRequest) -> list[str]:
    """What a server would silently take for something else."""
    found = []
    if 0 < request.temperature < LEAST_TEMPERATURE:
        found.append(f"temperature {request.temperature} is below {LEAST_TEMPERATURE}, the least a vLLM server takes; 0 is greedy")
    wild = [(token, value) for token, value in request.logit_bias if abs(value) > LARGEST_BIAS]
    if wild:
        found.append(f"logit_bias of token {wild[0][0]} is {wild[0][1]}; a vLLM server takes -{LARGEST_BIAS:g} to {LARGEST_BIAS:g}")
    if request.drawn is not None:
        found.append("tokens drawn elsewhere; a vLLM server's random stream would begin anew after them")
    return found


def body(request: SampleRequest, model: str, padding: range, drawn: Iterable[int] = ()) -> Json:
    """Body of POST /v1/completions for the rest of a sample of which `drawn` is there already, streamed.

    `padding` are the rows of the vocabulary that are no tokens. The server knows of none; a bias keeps it off them.
    """
    done = list(drawn)
    bias = dict.fromkeys(padding, -LARGEST_BIAS) | dict(request.logit_bias)
    return {
        "model": model,
        "prompt": [*request.prompt_ids.tolist(), *done],
        "max_tokens": request.max_new_tokens - len(done),
        "min_tokens": max(0, request.min_new_tokens - len(done)),
        "seed": server_seed(request.seed, len(done)),
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "stop_token_ids": list(request.stop_ids),
        "ignore_eos": True,  # a sample ends at the request's own stop tokens
        "logit_bias": {str(token): value for token, value in bias.items()} or None,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,  # the drawn token's
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # as text, two tokens can look the same
        "stream": True,
    }


def server_seed(seed: int, start: int) -> int:
    """The server's seed for draws from the `start`-th token on, from 0 to 2**63 - 1 (-1 would mean none).

    All 64 bits of ours are mixed into the low 32, because torch's generator on a CPU takes only those: among n samples of one
    prompt two share a seed with probability of about n**2 / 2**33.
    """
    return stream_seed(seed, "vllm", start) & (2**63 - 1)


def read_line(line: bytes | str) -> Piece | None:
    """A line of a stream; None for one that tells nothing. Raises WireError."""
    text = line.decode() if isinstance(line, bytes) else line
    if not text.startswith("data:") or text == "data: [DONE]":
        return None
    tree = read_json(text.removeprefix("data:"))
    if "error" in tree:
        raise WireError(error_text(tree))
    if not tree.get("choices"):
        return None
    choice = tree["choices"][0]
    try:
        ids, prompt = tuple(choice["token_ids"]), choice.get("prompt_token_ids")
        told = tuple(float(value) for value in choice["logprobs"]["token_logprobs"]) if ids else ()
    except (KeyError, TypeError) as error:
        raise WireError(f"no token ids and log-probs in {text[:200]}; vLLM 0.10.2 or newer is needed") from error
    if len(told) != len(ids):
        raise WireError(f"{len(ids)} tokens with {len(told)} log-probs: {text[:200]}")
    return Piece(token_ids=ids, logprobs=told, finish=choice.get("finish_reason"), prompt_ids=None if prompt is None else tuple(prompt))


def read_json(text: str) -> Json:
    """An object. Raises WireError."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise WireError(f"not JSON: {text[:200]!r}") from error
    if not isinstance(tree, dict):
        raise WireError(f"no JSON object: {text[:200]!r}")
    return tree


def error_text(answer: object) -> str:
    """The message of an answer that refuses, in any of the server's forms."""
    if isinstance(answer, dict):
        inner = answer.get("error", answer.get("detail", answer))
        return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
    return str(answer)[:500]


# ---- which log-probs the server tells


def probe_bodies(model: str) -> tuple[Json, Json]:
    """Two requests whose answers show what the server's log-probs are: one at temperature 1, one at 0.5."""
    asked = {"model": model, "prompt": [0], "max_tokens": 1, "seed": 0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
    asked |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    asked |= {"logprobs": PROBED, "return_tokens_as_token_ids": True}
    return asked | {"temperature": 1.0}, asked | {"temperature": 0.5}


def probe_problem(at_one: Json, at_half: Json) -> str:
    """Why the server's log-probs cannot be stored as those of its draws; empty when they can.

    Halving the temperature doubles all differences of log-probs, where they are of the distribution that is drawn from. A server
    tells the model's own by default, which stay as they are.
    """
    ones, halves = _likeliest(at_one), _likeliest(at_half)
    if max(sum(map(math.exp, found.values())) for found in (ones, halves)) > 1.01:
        return "it tells logits, not log-probs"
    common = sorted(ones.keys() & halves.keys(), key=lambda token: ones[token])
    if len(common) < 2 or ones[common[-1]] - ones[common[0]] < 1e-3:
        return "all tokens are equally likely, which shows nothing of its log-probs"
    growth = (halves[common[-1]] - halves[common[0]]) / (ones[common[-1]] - ones[common[0]])
    return "" if abs(growth - 2) < 0.1 else "it tells log-probs before temperature and truncation, which are not those of its draws"


def _likeliest(answer: Json) -> Mapping[str, float]:
    try:
        found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        return {token: float(value) for token, value in found.items()}
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise WireError(f"no log-probs in {str(answer)[:200]}") from error
