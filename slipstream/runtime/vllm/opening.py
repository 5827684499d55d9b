"""Whether a vLLM server can be a sampler, asked before anything is drawn. Called by `vllm.sampler`."""

from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import RunFailed, UsageError
from slipstream.runtime.vllm.connection import Answer, Connection
from slipstream.runtime.vllm.wire import WireError, probe_bodies, probe_problem

CALL_S = 60.0
FIRST_S = 600.0  # for the first token of all: a server may compile before it

_PRECISIONS = {"torch.float32": "f32", "torch.bfloat16": "bf16", "torch.float16": "f16"}
_START = "start it with VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a sampler has to know of its server."""

    max_tokens: int  # prompt plus completion
    sampler_class: str  # e.g. "vllm/cpu/bf16"
    own_head: bool  # reads an output matrix where the model is tied


def open_server(connection: Connection, model: str, slots: int, *, tied: bool) -> Server:
    """`tied`: the model's output matrix is its embedding.

    Raises UsageError for a server that lacks something, RunFailed for one that does not answer.
    """
    listed = _ask(connection, "GET", "/v1/models")
    settings = _ask(connection, "GET", "/server_info?config_format=json", needs=_START)
    try:
        limits = {one["id"]: int(one["max_model_len"]) for one in listed["data"]}
        config = settings["vllm_config"]
        dtype, device = str(config["model_config"]["dtype"]), str(config["device_config"]["device"])
        most = int(config["scheduler_config"]["max_num_seqs"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{connection.url} is no vLLM server that is known here: {error!r} in what it tells of itself") from error
    if model not in limits:
        raise UsageError(f"the vLLM server at {connection.url} serves {' and '.join(sorted(limits))}, not {model!r}")
    if slots > most:
        raise UsageError(f"{slots} slots, but the vLLM server at {connection.url} runs {most} requests at a time; see its --max-num-seqs")
    _check_logprobs(connection, model)
    own_head = tied and device == "cpu"
    if own_head:
        _check_head(connection)
    precision = _PRECISIONS.get(dtype, dtype.removeprefix("torch."))
    return Server(max_tokens=limits[model], sampler_class=f"vllm/{device}/{precision}", own_head=own_head)


def _check_logprobs(connection: Connection, model: str) -> None:
    answers = [_ask(connection, "POST", "/v1/completions", sent) for sent in probe_bodies(model)]
    try:
        problem = probe_problem(*answers)
    except WireError as error:
        problem = str(error)
    if problem:
        raise UsageError(f"the log-probs of the vLLM server at {connection.url} cannot be trained on: {problem}; {_START}")


def _check_head(connection: Connection) -> None:
    """On CPUs a tied model keeps its old output matrix when weights are loaded; see `vllm.untied`."""
    names = _ask(connection, "POST", "/weight_checker", {"action": "checksum"}, needs=_START)["checksums"]
    if not any("lm_head" in name for name in names):
        raise UsageError(
            f"the vLLM server at {connection.url} runs on a CPU and serves a model whose output matrix is tied to its embedding; "
            "it would keep the old one when new weights are loaded. Serve a directory written by runtime.vllm.untied"
        )


def _ask(connection: Connection, method: str, path: str, body: dict[str, Any] | None = None, needs: str = "") -> Any:
    answer: Answer = connection.call(method, path, body, deadline_s=FIRST_S if body else CALL_S)
    if answer.status == 404 and needs:
        raise UsageError(f"the vLLM server at {connection.url} has no {path.partition('?')[0]}: {needs}")
    if answer.status in (401, 403):
        raise UsageError(f"the vLLM server at {connection.url} refuses the API key ({answer.problem})")
    if answer.problem:
        raise RunFailed(f"the vLLM server at {connection.url} refuses {method} {path}: {answer.problem}")
    return answer.content
