"""What a worker and the coordinator say to each other: heads in JSON, rollouts in their own bytes. Used by both sides; pure.

Every message is one POST. A head names the run and, but for `Join`, the worker with its epoch. Where rollouts travel the body is
`framed`: the head's length (uint32, little-endian), the head, then the rollouts one after the other, their lengths in the head.
"""

import json
import struct
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream import __version__
from slipstream.core.codec import CodecError, rollout_from_bytes, rollout_to_bytes
from slipstream.core.errors import SlipstreamError
from slipstream.core.records import Batch, Partial, Prompt, Rollout, Ticket

SCHEMA_VERSION = 2  # of these messages
CODE_VERSION = __version__
TERM_HEADER = "X-Slipstream-Term"  # the coordinator's, in every answer
SEQUENCE_HEADER = "X-Slipstream-Sequence"  # of its ledger, where there is no batch yet
FRAMED = "application/x-slipstream-framed"
_BATCH_COUNTS = ("step", "refilled_groups", "stale_samples")
_BATCH_PARTS = ("rollouts", "dropped", "aside")  # in the body one behind the other, their numbers in the head
_LENGTH = struct.Struct("<I")

Name = Field(min_length=1, max_length=200)


class MessageError(SlipstreamError):
    """A message that means nothing or comes at the wrong time. `status` is the HTTP answer's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Message(BaseModel):
    """Base of all heads: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Join(Message):
    """I want to take part. The same incarnation again is the same worker, one epoch later."""

    kind: Literal["sampler", "learner", "grader"]
    incarnation: str = Name
    capabilities: dict[str, str] = {}
    schema_version: int = SCHEMA_VERSION
    code: str = CODE_VERSION
    run_id: str | None = None  # of the run it expects; None: whichever is here


class Joined(Message):
    """Welcome: who you are, what the run is, and what time it is."""

    worker: str
    epoch: int
    term: int
    lease_s: float
    run_id: str
    clock_s: float  # run clock
    config: str  # the run's configuration, TOML
    run_dir: str  # where the coordinator keeps the run
    host: str  # machine of run_dir
    version: int  # trained steps as the ledger has them
    lineage: int


class Call(Message):
    """What every call of a worker carries."""

    run_id: str
    worker: str = Name
    epoch: int = Field(ge=1)


class Counted(Call):
    """A call of a sampler that also says what it has done since it joined."""

    tokens: int = Field(default=0, ge=0)  # drawn
    wait_s: float = Field(default=0.0, ge=0)  # spent waiting


class Renew(Counted):
    """I am alive, and this is how far I am (`core.records.Progress`)."""

    last_token_s: float = Field(ge=0)
    last_load_s: float = Field(ge=0)
    phase: str
    phase_s: float = Field(default=0.0, ge=0)


class Claim(Counted):
    """Give me up to `tickets` tickets. Others than `holding` that are leased to me got lost on the way and are open again."""

    tickets: int = Field(ge=1, le=10_000)
    loaded_version: int
    holding: list[int]  # ticket indices


class Wanted(Call):
    """Which version should I have loaded, when `newest` is the newest I can have?"""

    newest: int


class Submit(Counted):
    """Head of finished rollouts."""

    sizes: list[int]


class WirePartial(Message):
    """`core.records.Partial`: what has been drawn of a sample."""

    ticket_index: int = Field(ge=0)
    sample: int = Field(ge=0)
    completion_ids: list[int]
    logprobs: list[float]
    versions: list[int]


class SaveProgress(Call):
    """Tokens of samples that somebody else will have to finish."""

    partials: list[WirePartial]


class Step(Call):
    """A batch to hand out, or to take note of as trained."""

    step: int = Field(ge=0)
    wait_s: float = Field(default=0.0, ge=0, le=60)


class Counters(Message):
    """What all samplers have done in this term of the coordinator: tokens drawn, and the mean of the seconds spent waiting."""

    tokens: int = 0
    wait_s: float = 0.0


class Begin(Call):
    """The learner starts from its checkpoint of `version`."""

    version: int = Field(ge=0)


class Canary(Message):
    """Log-probs of the fixed tokens under some weights, and what computed them."""

    computed_by: str = Field(pattern=r"^[^/]+/(f32|bf16|int8|fp8)(/exact)?$")  # device kind / precision [/ exact]
    logprobs: list[float] = Field(min_length=1, max_length=100)


class Prove(Call):
    """A sampler has loaded a version, and this is what it computes with it."""

    version: int = Field(ge=0)
    digest: str
    canary: Canary


class Publish(Call):
    """The weights of a version can be fetched."""

    lineage: int = Field(ge=0)
    version: int = Field(ge=0)
    digest: str
    manifest: dict[str, Any]
    sources: list[str] = Field(min_length=1, max_length=100)
    canary: Canary | None = None  # the learner's; None: samplers' canaries are compared with nothing


class Ratio(Message):
    """`core.records.RolloutRatio`."""

    sampler: str = Name
    claimed_s: float
    version: int = Field(ge=0)
    tokens: int = Field(ge=0)
    total: float = Field(ge=0)
    squares: float = Field(ge=0)


class Ratios(Call):
    """What the learner found in an audit, a rollout each."""

    ratios: list[Ratio]


class Watch(Call):
    """Tell me when something changes that I have not seen."""

    seen: list[str]  # `News.seen` of the last answer; nothing at first
    wait_s: float = Field(default=0.0, ge=0, le=60)


class Announcement(Message):
    """A published version and where it can be fetched."""

    lineage: int
    version: int
    manifest: dict[str, Any]
    sources: list[str]


class News(Message):
    """The state of things as far as a sampler acts on it."""

    seen: list[str]  # names this state
    announcements: list[Announcement]  # versions that can be fetched and were not seen, oldest first
    done: bool  # the last batch is trained


class EventRow(Message):
    """One event."""

    time: float | None = None  # run clock; None: now
    kind: str
    role: str
    fields: dict[str, Any] = {}


class Report(Call):
    """Events of a worker, numbered on, so that a repeated call writes none twice."""

    stream: str = Name  # of one process
    first: int = Field(ge=0)
    events: list[EventRow]


class Note(Message):
    """Events of somebody who is no worker: a supervisor."""

    events: list[EventRow]


AnyMessage = TypeVar("AnyMessage", bound=Message)


def read_message(kind: type[AnyMessage], body: bytes) -> AnyMessage:
    """The checked message. Raises MessageError that names every problem."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise MessageError(f"{kind.__name__.lower()}: {_problems(error)}") from None


def frame(head: dict[str, Any], rollouts: Sequence[bytes]) -> bytes:
    """Head and rollouts as one body; the head gets `sizes`."""
    text = json.dumps({**head, "sizes": [len(content) for content in rollouts]}).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *rollouts))


def unframe(body: bytes) -> tuple[bytes, bytes]:
    """The head's JSON and the bytes behind it."""
    if len(body) < _LENGTH.size or len(body) < _LENGTH.size + _LENGTH.unpack_from(body)[0]:
        raise MessageError(f"a framed body of {len(body)} bytes is shorter than its head")
    end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    return body[_LENGTH.size : end], body[end:]


def cut_rollouts(sizes: Sequence[int], data: bytes) -> list[Rollout]:
    """The rollouts of a framed body. Raises MessageError for one that is none."""
    if any(size < 0 for size in sizes) or sum(sizes) != len(data):
        raise MessageError(f"the head promises rollouts of {sum(sizes)} bytes, {len(data)} came")
    rollouts, start = [], 0
    for size in sizes:
        try:
            rollouts.append(rollout_from_bytes(data[start : start + size]))
        except (CodecError, ValueError) as error:
            raise MessageError(f"rollout {len(rollouts)} of the body cannot be read: {error}") from error
        start += size
    return rollouts


def frame_batch(batch: Batch) -> bytes:
    """A batch as a framed body."""
    parts = {name: getattr(batch, name) for name in _BATCH_PARTS}
    counts = {name: getattr(batch, name) for name in _BATCH_COUNTS} | {name: len(rollouts) for name, rollouts in parts.items()}
    return frame(counts, [rollout_to_bytes(rollout) for rollouts in parts.values() for rollout in rollouts])


def read_batch(body: bytes) -> Batch:
    """The batch that `frame_batch` wrote."""
    text, data = unframe(body)
    head = json.loads(text)
    rollouts = iter(cut_rollouts(head["sizes"], data))
    parts = {name: tuple(islice(rollouts, head[name])) for name in _BATCH_PARTS}
    return Batch(**parts, **{name: head[name] for name in _BATCH_COUNTS})


def ticket_to_json(ticket: Ticket) -> dict[str, Any]:
    """A ticket as JSON; log-probs survive, since a float32 is exact in JSON's decimal form of it."""
    return {
        "id": ticket.id,
        "index": ticket.index,
        "group_id": ticket.group_id,
        "prompt": {
            "id": ticket.prompt.id,
            "token_ids": ticket.prompt.token_ids.tolist(),
            "text": ticket.prompt.text,
            "answer": ticket.prompt.answer,
        },
        "samples": list(ticket.samples),
        "version_floor": ticket.version_floor,
        "version_pinned": ticket.version_pinned,
        "partials": [partial_to_wire(partial).model_dump() for partial in ticket.partials],
    }


def ticket_from_json(fields: dict[str, Any]) -> Ticket:
    """The ticket that `ticket_to_json` wrote."""
    prompt = {**fields["prompt"], "token_ids": np.array(fields["prompt"]["token_ids"], np.int32)}
    partials = tuple(partial_from_wire(WirePartial.model_validate(partial)) for partial in fields["partials"])
    return Ticket(**{**fields, "prompt": Prompt(**prompt), "samples": tuple(fields["samples"]), "partials": partials})


def partial_to_wire(partial: Partial) -> WirePartial:
    return WirePartial(
        ticket_index=partial.ticket_index,
        sample=partial.sample,
        completion_ids=partial.completion_ids.tolist(),
        logprobs=partial.logprobs.tolist(),
        versions=partial.versions.tolist(),
    )


def partial_from_wire(wire: WirePartial) -> Partial:
    """Raises MessageError where the lengths differ."""
    if not len(wire.completion_ids) == len(wire.logprobs) == len(wire.versions):
        raise MessageError(
            f"partial {wire.ticket_index}/{wire.sample}: {len(wire.completion_ids)} tokens, {len(wire.logprobs)} log-probs, "
            f"{len(wire.versions)} versions"
        )
    return Partial(
        ticket_index=wire.ticket_index,
        sample=wire.sample,
        completion_ids=np.array(wire.completion_ids, np.int32),
        logprobs=np.array(wire.logprobs, np.float32),
        versions=np.array(wire.versions, np.int32),
    )


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors(include_url=False))
