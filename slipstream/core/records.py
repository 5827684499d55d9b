"""The records that rooms hand to each other. Frozen, keyword-only, a line a field; arrays are numpy and read-only by custom.

Worked example: prompt "12+30=" is sampled 8 times. That is one `Ticket` (8 sample indices), 8 `Rollout`s with one `group_id`, each
with an `Outcome`; the learner trains on the 8 as part of a `Batch`, and the rollouts' fate is in `rollouts/*.parquet`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

ROLLOUTS = "rl"  # name of the stream of rollouts, whose loss is the objective's; every other stream is supervised


class FinishReason(StrEnum):
    """Why a sample ended."""

    STOP = "stop"  # the model chose a stop token
    LENGTH = "length"  # the token limit was reached
    ABORTED = "aborted"  # told to stop
    ENVIRONMENT = "environment"  # the environment ended the episode


class OutcomeKind(StrEnum):
    """What the verifier found. Only the first three can carry a reward."""

    VALUE = "value"  # a judged answer with a (partial or full) reward
    WRONG = "wrong"  # a judged answer that is wrong
    UNPARSEABLE = "unparseable"  # no answer could be read
    TIMEOUT = "timeout"  # the verifier ran out of time: never a reward
    INFRASTRUCTURE = "infrastructure"  # the verifier itself failed: never a reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A verdict. `reward` is None where nothing was judged; such samples are graded again or dropped, never trained as 0."""

    kind: OutcomeKind
    reward: float | None
    format_ok: bool | None = None  # the answer had the asked form; apart from correctness, None where there is no form
    style: str = ""  # a task's own label of how the answer was given, e.g. "worked"
    detail: str = ""  # for people: what was compared
    calls: int = 0  # of tools in the episode
    failed_calls: int = 0  # those of them that were answered with an error
    side_turns: int = 0  # of the model in conversations of an agent that are not trained: all but the longest

    def __post_init__(self) -> None:
        if self.kind in (OutcomeKind.VALUE, OutcomeKind.WRONG) and self.reward is None:
            raise ValueError(f"an outcome of kind {self.kind} was judged, so it carries a reward")
        judged = self.kind in (OutcomeKind.VALUE, OutcomeKind.WRONG, OutcomeKind.UNPARSEABLE)
        if not judged and self.reward is not None:
            raise ValueError(f"an outcome of kind {self.kind} cannot carry a reward ({self.reward})")
        if self.reward is not None and not np.isfinite(self.reward):
            raise ValueError(f"reward {self.reward} is not a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One thing to answer, already turned into token ids."""

    id: str  # unique in the run: task, row and pass over the data
    token_ids: np.ndarray  # int32 [prompt_tokens]
    text: str  # the prompt as text, for people
    answer: str  # the hidden reference answer; never shown to the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """The tokens so far of a sample that still runs; whoever claims its ticket next goes on from them after one prefill."""

    ticket_index: int
    sample: int
    completion_ids: np.ndarray  # int32 [tokens], at least one
    logprobs: np.ndarray  # float32 [tokens]
    versions: np.ndarray  # int32 [tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A unit of sampling work: one group of one prompt."""

    id: str
    index: int  # place in the run's order of prompts
    group_id: str
    prompt: Prompt
    samples: tuple[int, ...]  # sample indices still to draw; all of the group unless some came in before a restart
    version_floor: int  # oldest policy version that may sample it
    version_pinned: int | None  # the one version that must sample it (sync, lagged), or None (inflight)
    partials: tuple[Partial, ...] = ()  # what earlier holders had drawn of `samples`, where they sent it; at most one a sample


class Receipt(StrEnum):
    """What became of a rollout that was handed in."""

    ACCEPTED = "accepted"  # it is in (or counted as dropped, where it carries no reward)
    DUPLICATE = "duplicate"  # the same was in already
    CONFLICT = "conflict"  # another one was in already: first write wins
    CLOSED = "closed"  # its ticket takes no more samples
    STALE = "stale"  # its tokens are of versions that its ticket does not take, or of weights that nobody published


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A worker's right to take part, for `lease_s` after each renewal."""

    worker: str  # e.g. "sampler-3"; the same whenever the same incarnation joins
    epoch: int  # rises at each join; calls with an older one are refused
    term: int  # starts of the coordinator
    lineage: int  # of the run; goes into every rollout
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a worker says of itself when it renews. Ages, not times: clocks of two machines do not compare."""

    tokens: int = 0  # completion tokens drawn so far
    last_token_s: float = 0.0  # seconds since the last of them
    last_load_s: float = 0.0  # seconds since the last load of weights
    phase: str = ""
    phase_s: float = 0.0  # seconds in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The answer to a renewal."""

    newest: int  # newest committed version
    oldest: int  # oldest version whose tokens may still be trained
    lineage: int  # a worker of another one lets go of what it runs
    drain: bool  # claim nothing more, hand in what runs, leave
    stop: bool  # the run is over


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One sample for an engine: prompt, randomness and limits, nothing about learning."""

    key: tuple[str, int]  # (ticket id, sample index)
    prompt_ids: np.ndarray  # int32 [prompt_tokens]
    seed: int  # 64-bit stream seed; the token position is folded in by the engine
    max_new_tokens: int
    temperature: float  # 0 means greedy
    stop_ids: tuple[int, ...]
    top_k: int = -1  # only the k likeliest tokens; -1, or at least the vocabulary: all
    top_p: float = 1.0  # only the likeliest tokens that reach this probability together; 1: all
    min_p: float = 0.0  # only tokens at least this share as likely as the likeliest; 0: all
    min_new_tokens: int = 0  # no stop token before so many tokens
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, addition to its logit)
    drawn: Partial | None = None  # its first tokens, drawn elsewhere: they count, and the sample goes on after them


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What an engine gives back for a request."""

    key: tuple[str, int]
    completion_ids: np.ndarray  # int32 [completion_tokens], the stop token included
    logprobs: np.ndarray  # float32 [completion_tokens], behaviour log-prob of each token
    versions: np.ndarray  # int32 [completion_tokens], policy version that drew each token
    raw_logprobs: np.ndarray | None = None  # float32 [completion_tokens], before top-k, top-p, min-p and bias; None: the same
    finish_reason: FinishReason
    slot: int  # engine row it ran in, for the lanes of the report
    started_s: float  # run clock, first dispatch
    finished_s: float  # run clock, last dispatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """What the model said in one turn of an episode: what a grader or an environment answers."""

    token_ids: np.ndarray  # int32, the stop token included
    text: str
    finish_reason: FinishReason
    room: int  # tokens left for all that may follow; 0 when the turn used up the episode's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTurn:
    """What an environment says to a model's turn: tokens put behind it, after which the model goes on."""

    token_ids: np.ndarray  # int32, at least one; what the model's next turn has to follow is included, e.g. its opening


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """The answer to an episode's last turn."""

    outcome: Outcome
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEpisode:
    """An episode that an agent led and that has ended: the longest of the conversations that it had with the model."""

    key: tuple[str, int]  # as it was begun
    outcome: Outcome
    prompt_ids: np.ndarray  # int32 [prompt_tokens], of the conversation's first request
    prompt_text: str  # the same with its special tokens, for people
    sample: Sample | None  # its turns in one; what the agent wrote between them has log-prob 0; None: the model has said nothing
    loss_mask: np.ndarray  # bool [completion_tokens]; True = the model chose it
    ended_s: float  # run clock


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentNews:
    """What agents did since one last asked."""

    asked: tuple[SampleRequest, ...] = ()  # turns of the model that are wanted, under keys of their own
    withdrawn: tuple[tuple[str, int], ...] = ()  # keys of such turns that nobody waits for any more
    ended: tuple[AgentEpisode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sample with everything needed to train on it. Token ids are the truth; `completion_text` is for people."""

    run_id: str
    lineage: int  # +1 each time the run restarts from an older checkpoint
    ticket_id: str
    ticket_index: int
    prompt_id: str
    group_id: str
    sample_index: int
    seed: int
    prompt_ids: np.ndarray  # int32 [prompt_tokens]
    completion_ids: np.ndarray  # int32 [completion_tokens]
    logprobs: np.ndarray  # float32 [completion_tokens]
    versions: np.ndarray  # int32 [completion_tokens]; what the environment wrote carries that of the model's token before it
    loss_mask: np.ndarray  # bool [completion_tokens]; True = the model chose it, False = the environment wrote it
    finish_reason: FinishReason
    outcome: Outcome
    prompt_text: str
    completion_text: str
    answer: str
    sampler_id: str
    sampler_class: str  # device kind + precision, e.g. "cpu/float32"
    weight_digest: str  # digest of the weights of the last token's version ("" where not computed)
    slot: int
    claimed_s: float  # run clock: ticket claimed
    started_s: float  # run clock: first token
    finished_s: float  # run clock: last token

    def __post_init__(self) -> None:
        tokens = len(self.completion_ids)
        for name in ("logprobs", "versions", "loss_mask"):
            if len(getattr(self, name)) != tokens:
                raise ValueError(
                    f"rollout {self.ticket_id}/{self.sample_index}: {name} has {len(getattr(self, name))} entries for {tokens} tokens"
                )

    @property
    def age_version(self) -> int:
        """The oldest policy version among the tokens; age at version v is v minus this."""
        return int(self.versions.min())


class Fate(StrEnum):
    """How a rollout ended; a column of rollouts/*.parquet."""

    TRAINED = "trained"
    DROPPED = "dropped"  # with its group, which was left out
    REQUEUED = "requeued"  # its group had grown too old, and was drawn anew
    UNJUDGED = "unjudged"  # it ended without a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The fixed content of one learner step: whole groups, in a journalled order."""

    step: int  # 0-based; training on it makes version step + 1
    rollouts: tuple[Rollout, ...]  # groups contiguous, sample index ascending
    dropped: tuple[Rollout, ...] = ()  # of groups that were left out: first those without signal, then those grown too old
    refilled_groups: int = 0  # the groups without signal, each replaced by a further prompt's
    stale_samples: int = 0  # so many at the end of `dropped` are of groups grown too old
    aside: tuple[Rollout, ...] = ()  # drawn while the batch filled and of no use to any: of groups drawn anew, or without a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRatio:
    """Importance ratios of one rollout's tokens, the learner's probability over the sampler's, at the one version that drew them."""

    sampler: str
    claimed_s: float  # run clock, as in the rollout
    version: int
    tokens: int
    total: float  # sum of the ratios: over tokens really drawn with these probabilities its expectation is their number
    squares: float  # sum of their squares


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One sequence for the learner: where to put the loss and with what weight. RL and supervised rows alike."""

    token_ids: np.ndarray  # int32 [tokens] prompt + completion
    loss_mask: np.ndarray  # bool [tokens]; True where the token is a training target (never at position 0)
    advantages: np.ndarray  # float32 [tokens]; 0 where masked; ignored by supervised objectives
    behaviour_logprobs: np.ndarray  # float32 [tokens]; 0 where masked
    versions: np.ndarray  # int32 [tokens]; policy version that drew the token; -1 where masked
    stream: str = ROLLOUTS  # what it is part of: the rollouts, or a static corpus by its name
    sampler_class: str = ""  # of the sampler that drew it; "" where nobody did
    reference_logprobs: np.ndarray | None = None  # float32 [tokens] under the reference policy; None where not scored
    values: np.ndarray | None = None  # float32 [tokens] by the value head at the start of the step; None where there is none
    returns: np.ndarray | None = None  # float32 [tokens] that the value head is taught; 0 where masked


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """An immutable published version. `params` is the pytree itself in the embedded runtime (shared by reference)."""

    lineage: int
    version: int
    params: Any
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A supervised row: a prompt and the completion to imitate."""

    prompt_ids: np.ndarray  # int32
    completion_ids: np.ndarray  # int32, the stop token included
    loss_mask: np.ndarray | None = None  # bool [completion_tokens]; False = an environment wrote it; None: all is the model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The answers to one problem of an evaluation, counted."""

    id: str
    judged: int  # answers with a verdict; fewer than were drawn where the grader failed
    right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK:
    """Mean over problems of the chance that at least one of k answers is right."""

    k: int
    value: float
    ci: tuple[float, float]  # 95 %, over problems
    problems: int  # with at least k judged answers; the others do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Scores of one evaluation, pinned to one version."""

    step: int
    task: str
    n: int  # prompts with a verdict: the denominator of pass@1
    pass_at_1: float
    ci: tuple[float, float]  # 95 % interval of pass@1, over prompts
    pass_at_k: tuple[PassAtK, ...] = ()  # k above 1, rising
    drawn: int = 1  # answers a prompt behind pass_at_k, or behind pass@1 where that is sampled
    outcomes: dict[str, int] = field(default_factory=dict[str, int])  # answers by OutcomeKind, as far as there were any
    format_hash: str = ""  # of prompt format, task settings and sampling; results of different ones do not compare
    weight_digest: str = ""  # of the weights ("" where not computed)
    extra: dict[str, float] = field(default_factory=dict[str, float])  # task's own figures, e.g. worked share, completion tokens
    samples: tuple[dict[str, Any], ...] = ()  # a few answers to read: prompt, completion, answer, reward
