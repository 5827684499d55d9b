"""The tree of settings of a run. Frozen; unknown keys are refused; each field says its unit and why its default is what it is.

Counts name what they count: prompts, samples, tokens, steps. `load.py` builds the tree; `check.py` judges it as a whole.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
HeldOut = Annotated[float, Field(gt=0.0, le=0.5)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Base of all sections: immutable, strict about names, documented by attribute docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class RunSection(Section):
    """What to run and for how long."""

    recipe: str = "custom"
    """Name of the recipe this configuration came from; shown in reports."""
    seed: Count = 0
    """Seed of every random draw of the run."""
    steps: Positive = 100
    """Policy updates (learner steps) after the warm start."""


class ScratchModel(Section):
    """A small decoder with fresh weights; its vocabulary is the task's alphabet."""

    kind: Literal["scratch"] = "scratch"
    d_model: Positive = 64
    """Width of the residual stream; 64 learns three-digit addition in seconds on two cores."""
    layers: Positive = 2
    """Decoder layers."""
    heads: Positive = 4
    """Query heads; four learn faster than two at this width."""
    kv_heads: Positive = 2
    """Key/value heads, each shared by heads / kv_heads query heads."""
    d_ff: Positive = 192
    """Width of the gated feed-forward layer."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary position frequencies."""


class PretrainedModel(Section):
    """A model read from a directory in Hugging Face layout."""

    kind: Literal["pretrained"] = "pretrained"
    path: str
    """Directory with config.json, *.safetensors and tokenizer.json (`slipstream import-gguf` writes one)."""


class LoraSection(Section):
    """Low-rank adapters that are trained in place of all parameters (Hu et al. 2021, arXiv 2106.09685)."""

    rank: Count = 0
    """Columns of each adapter; 0: all parameters are trained. RL's signal is small: 8 to 32 learn like full fine-tuning."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's share is multiplied by alpha / rank."""
    targets: tuple[Literal["q", "k", "v", "o", "gate", "up", "down"], ...] = ("q", "k", "v", "o", "gate", "up", "down")
    """Matrices with adapters; all of them learn best. Those of experts have none."""


class ModelSection(Section):
    """The policy."""

    source: ScratchModel | PretrainedModel = Field(default=ScratchModel(), discriminator="kind")
    """Fresh weights or a directory."""
    learner_layers: Literal["scan", "unroll"] = "unroll"
    """How the learner's layers are compiled: unrolled runs faster when small, scanned compiles faster when deep."""
    remat: bool = False
    """Recompute each layer's activations in the backward pass: less memory, a little more time; for deep models."""
    numerics: Literal["fast", "exact"] = "fast"
    """`exact`: sampler and learner give the same log-prob to the bit at equal weights; costs time. `fast`: to rounding."""
    lora: LoraSection = LoraSection()
    """Adapters, or none."""
    learner_precision: Literal["f32", "bf16"] = "f32"
    """Activations and products of the learner; master weights stay float32. bf16 is for accelerators: on CPU it is slower."""


class ArithmeticTask(Section):
    """Generated sums or products of whole numbers, answered by characters after a `#`."""

    kind: Literal["arithmetic"] = "arithmetic"
    operation: Literal["addition", "multiplication"] = "addition"
    """Which operation; multiplication is by a one-digit number."""
    digits: Annotated[int, Field(ge=1, le=6)] = 3
    """Largest number of digits of the first number (and of the second, for addition)."""
    held_out: HeldOut = 0.1
    """Share of all problems, chosen by hash, that is never trained on; at most a half."""


class ProductsTask(Section):
    """Generated products, answered by characters after a `#`, with a calculator to ask: the smallest task of several turns."""

    kind: Literal["products"] = "products"
    digits: Annotated[int, Field(ge=1, le=4)] = 2
    """Digits of both numbers."""
    held_out: HeldOut = 0.1
    """Share of all problems, chosen by hash, that is never trained on; at most a half."""
    max_turns: Annotated[int, Field(ge=1)] = 4
    """Turns of the model in one episode; one that has not answered by then has given no answer."""
    step_seconds: float = Field(default=10.0, gt=0)
    """Longest time for one answer of the environment; past it the episode is a timeout, and never a reward."""
    episode_seconds: float = Field(default=600.0, gt=0)
    """Longest time from the environment's first answer to its last one, generation between them included."""


class SumsTask(Section):
    """Addition asked in words through the chat template, with the answer's turn opened: `3+4=`."""

    kind: Literal["sums"] = "sums"
    digits: Literal[1, 2] = 2
    """Digits of both numbers: 1 (1..9) or 2 (10..99)."""
    one_digit_share: Share = 0.0
    """Share of training prompts with one-digit numbers instead; a small model gets its first rewards there."""
    held_out: HeldOut = 0.2
    """Share of all pairs, chosen by hash, that is never trained on (at most 64 are evaluated by default)."""


class WordsTask(Section):
    """What tasks that are asked in words and judged by an answer have in common."""

    instruction: str = "auto"
    """Said with the question in the user's turn; `auto`: the named task's own, which its grader fits; empty: nothing."""
    system: str = ""
    """Text of a system turn before everything; empty: no such turn."""
    format_weight: Share = 0.0
    """Reward for having the asked form, apart from correctness; 0 leaves correctness alone."""
    max_prompt_tokens: Positive = 256
    """Rows with longer prompts are counted and left out."""
    tools: tuple[Literal["calculator", "python", "search"], ...] = ()
    """Tools that the model may call, in its chat template's own format, before it answers; empty: one turn, the answer."""
    search_file: str = ""
    """What the tool `search` searches: a file of rows with `text` and, where there is one, `title`."""
    max_turns: Annotated[int, Field(ge=1)] = 8
    """With tools: turns of the model in one episode; one that has not answered by then has given no answer. Requests of an agent."""
    step_seconds: float = Field(default=60.0, gt=0)
    """With tools: longest time for the calls of one turn; past it the episode is a timeout, and never a reward."""
    episode_seconds: float = Field(default=1800.0, gt=0)
    """With tools: longest time from the first call to the verdict, generation between them included. Of an agent: all its time."""


class RowsTask(WordsTask):
    """Questions with a way to judge their answers, from two files; docs/data.md lists the tasks known by name."""

    kind: Literal["rows"] = "rows"
    name: str = "custom"
    """Task of the catalogue (gsm8k, math, mbpp, ...): fields, prompt and grader of its rows. `custom`: a question and an answer."""
    train: str
    """Rows to train on: a .jsonl, .jsonl.gz or .parquet file, or hub:OWNER/NAME[:CONFIG]:SPLIT with the extra `hub`."""
    test: str
    """Held-out rows, in the same ways. What is also here is left out of training."""
    question_field: str = ""
    """Field of the question; empty: as the named task spells it (custom: question, problem or prompt)."""
    answer_field: str = ""
    """Field of the answer; empty: as the named task spells it (custom: answer or final_answer)."""
    id_field: str = ""
    """Field of the row's id; empty: id or the like. Rows without one are named by their line."""
    environment_field: str = ""
    """Field of the name under which batch.caps counts a row; empty: all rows count under the task's own."""
    shots: Annotated[int, Field(ge=0, le=32)] = 0
    """Worked examples shown before each question: the first training rows that have a solution, which are then not trained on."""
    grader: Literal["auto", "exact", "final_number", "math", "code", "countdown"] = "auto"
    """`auto`: the named task's own. `final_number` compares the number after `####` or else the last; `exact` the whole reply."""
    reward: str = ""
    """A Python function instead of a grader: module:function or path/to/file.py:function, called as reward(row, response) -> float."""
    reward_seconds: float = Field(default=30.0, gt=0)
    """Longest time of one call of that function, after which its process is ended and the sample has no verdict (`timeout`)."""
    reward_workers: Positive = 2
    """Processes that call it."""
    environment: str = ""
    """A class of your own instead of a grader and tools, for episodes of several turns: module:Class or path/to/file.py:Class, made
    as Class(row) for each sample; docs/environments.md says what it has to have."""
    agent: str = ""
    """A function of your own that leads the episode and returns its reward, in place of a grader and tools: module:function or
    path/to/file.py:function, called as function(base_url, api_key, prompt). It asks the run's endpoint for turns of the model."""
    agents_at_once: Positive = 64
    """Agents that run at a time."""
    bad_rows: Literal["skip", "refuse"] = "skip"
    """Rows that cannot be used are left out and counted, or end the start of the run with one error that lists them."""
    decontaminate_words: Count = 13
    """Training rows that share so many words in a row with a test row are left out, beside those with equal text; 0: equal text only."""
    curriculum: Literal["none", "easy_first", "hard_first"] = "none"
    """Order of the first pass by measured pass rates; later passes, and `none`, are mixed."""
    pass_rates: str = ""
    """File with pass rates of the training rows for the curriculum: JSONL of id and pass_rate, or a run's rollouts/."""


class CountdownTask(WordsTask):
    """Generated countdown problems: reach a target from numbers with + - * / and brackets, each number exactly once."""

    kind: Literal["countdown"] = "countdown"
    numbers: Annotated[int, Field(ge=2, le=6)] = 4
    """How many numbers a problem has."""
    largest: Annotated[int, Field(ge=1, le=9999)] = 99
    """Largest number."""
    largest_target: Annotated[int, Field(ge=1, le=9999)] = 99
    """Largest target; targets are whole numbers from 1."""
    size: Annotated[int, Field(ge=2, le=200_000)] = 4000
    """Problems, all different, held-out ones included; the run's seed changes their order, not the problems."""
    held_out: HeldOut = 0.1
    """Share of the problems, chosen by hash, that is never trained on."""


class GymTask(WordsTask):
    """A data set of reasoning-gym by name, scored by its own `score_answer`; needs the extra `gym`."""

    kind: Literal["gym"] = "gym"
    name: str
    """Name of the data set, e.g. basic_arithmetic."""
    size: Positive = 2000
    """Training problems."""
    test_size: Positive = 256
    """Held-out problems; those that also come up in training are left out there."""
    seed: Count = 0
    """Seed of the training problems; held-out ones start where they end."""
    parameters: dict[str, bool | int | float | str | list[int | float | str]] = Field(default_factory=dict)
    """Settings of the data set's own, e.g. min_terms and max_terms of basic_arithmetic."""


class VerifiersTask(Section):
    """An environment written for the package `verifiers` (0.1 to 0.3), which brings its own prompts, turns and rewards."""

    kind: Literal["verifiers"] = "verifiers"
    environment: str
    """Its module, or path/to/file.py; its function `load_environment` is called, or another one named behind a colon."""
    arguments: dict[str, bool | int | float | str | list[int | float | str]] = Field(default_factory=dict)
    """Keyword arguments of that function."""
    test_size: Positive = 256
    """Held-out problems: the first of the evaluation set, or, where it has none, of the training set, whose they are no more."""
    max_prompt_tokens: Positive = 1024
    """Of a conversation's first request. Problems with longer prompts are counted and left out."""
    max_turns: Annotated[int, Field(ge=1)] = 32
    """Requests that one episode may make."""
    episode_seconds: float = Field(default=1800.0, gt=0)
    """Longest time of an episode, generation and scoring included; past it the episode is a timeout, and never a reward."""
    agents_at_once: Positive = 64
    """Episodes that run at a time."""


Task = Annotated[ArithmeticTask | ProductsTask | SumsTask | RowsTask | CountdownTask | GymTask | VerifiersTask, Field(discriminator="kind")]


class WarmStage(Section):
    """One stretch of supervised steps."""

    steps: Positive
    """Optimizer steps of this stage."""
    worked_share: Share
    """Share of the demonstrations that show their working; the rest are terse."""


class WarmStartSection(Section):
    """Supervised steps before reinforcement learning begins, by the same learner."""

    stages: tuple[WarmStage, ...] = ()
    """Stages in order; skill first, then style: mixing both from the start is far slower. Empty: none."""
    samples_per_step: Positive = 64
    """Demonstrations a step; small batches learn the most for their time."""
    learning_rate: Rate = 5e-3
    """Peak learning rate."""
    warmup_steps: Count = 50
    """Steps of linear rise to the peak; then a cosine falls to a tenth."""
    b2: Decay = 0.98
    """Adam's second decay; short runs need a short memory."""


class ModeSection(Section):
    """How far sampling may run ahead of learning. One code path, one setting."""

    kind: Literal["sync", "lagged", "inflight"] = "inflight"
    """`sync`: version v samples batch v. `lagged`: batch t is sampled by version t - eta. `inflight`: samplers never stop."""
    eta: Count = 2
    """The largest age in versions at which a token may be trained (0 for sync; the lag for lagged)."""
    staleness: Literal["wait", "drop", "requeue"] = "wait"
    """What becomes of a group that would be older than eta when its batch is made. `wait`: nothing, as batches wait for slow groups, and
    all that is sampled is trained on. `drop`: batches wait for nobody, the group is dropped and a further prompt takes its place.
    `requeue`: the same, but its prompt is sampled anew. Both spare waiting and are unfair to long answers, which grow old most often
    (the ledger counts their lengths); only for inflight."""


class SamplingSection(Section):
    """How completions are drawn."""

    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature of training samples; the learner scores at the same one."""
    max_new_tokens: Positive = 21
    """Longest completion, the stop token included; of an episode: all turns, those of the environment included."""
    slots: Positive = 64
    """Samples that run at once in one engine; fewer than a batch, so that new weights meet running samples."""
    tokens_per_dispatch: Positive = 4
    """Decode steps between two looks at new requests and new weights."""
    page_tokens: Literal[8, 16, 32, 64, 128] = 64
    """Positions of one page of the key/value cache. Larger ones are faster; exact numerics leave half of one empty a sequence."""
    kv_on_swap: Literal["keep", "recompute", "auto"] = "keep"
    """Keys and values of older weights when new ones arrive: kept (harmless, and free), computed again, or measured (`auto`)."""
    kv_divergence_limit: float = Field(default=0.05, gt=0)
    """`auto` keeps them up to this difference of next tokens' log-probs, nats: a bf16 sampler's own, a quarter of the clip range."""
    precision: Literal["f32", "bf16", "int8", "fp8"] = "f32"
    """Weights of the sampler; below f32 its log-probs differ from the learner's, and the objective corrects for it."""


class BatchSection(Section):
    """What one learner step is made of."""

    prompts_per_step: Positive = 32
    """Prompts (groups) a step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Samples of each prompt; the group's rewards are each other's baseline."""
    refill: Count = 0
    """Prompts that a step may ask for in place of groups whose rewards are all equal, which teach nothing and are dropped;
    what is left of them when these are used up fills the batch. 0: all groups are trained on."""
    caps: dict[str, Positive] = {}
    """By the name of an environment: so many of its groups may be drawn at once, over all samplers, for one that is slow or can bear
    no more. Other environments' groups are drawn meanwhile. Names are those in task.environment_field, or else the task's alone."""
    minibatches: Positive = 1
    """Optimizer steps a learner step, each on its share of the groups."""
    row_tokens: Positive = 128
    """Tokens of one packed row; several sequences share a row."""
    row_lengths: tuple[Positive, ...] = ()
    """Shorter rows, in tokens, rising: used where they cost less, so that short samples need not pay for row_tokens.
    Each is one more compiled program (and one more for each of partial_microbatches)."""
    rows_per_microbatch: Positive = 16
    """Packed rows computed at once (more, where they are shorter); bounds memory, does not change the result."""
    partial_microbatches: Annotated[int, Field(ge=0, le=5)] = 2
    """The last microbatches may have a half (1), a quarter (2), ... of the rows, where that is a whole number: a compiled program
    each, and less padding. Two leave 3 % of a step of 256 samples empty, none 6 %."""


OWN_DEFAULTS: Mapping[str, Mapping[str, float | str]] = {
    "decoupled_ppo": {"clip_low": 0.2, "clip_high": 0.2, "weight_cap": 5.0},
    "ppo": {"clip_low": 0.2, "clip_high": 0.2},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28},
    "reinforce_is": {"weight_cap": 5.0},
    "reinforce": {},
    "cispo": {"weight_cap": 4.0},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "reducer": "sequence"},
    "dppo": {"clip_low": 0.2, "clip_high": 0.2, "ratio_penalty": 1e-3},
    "distill": {"weight_cap": 5.0},
    "sft": {},
}
"""Each objective's name, the settings of its formula that it reads, and their values where none are given."""


class ObjectiveSection(Section):
    """The loss of rollouts; docs/learning.md has the formulas. Bounds that are not given take the objective's own values."""

    name: Literal["decoupled_ppo", "ppo", "dapo", "reinforce_is", "reinforce", "cispo", "gspo", "dppo", "distill", "sft"] = "decoupled_ppo"
    """Which loss; decoupled_ppo equals ppo on fresh data and holds up on stale data. `sft`: no rollouts, the streams alone."""
    advantage: Literal["rloo", "dr_grpo", "grpo", "reinforce++", "gae"] = "rloo"
    """Baseline of a group: mean of the others, mean, mean and deviation; mean and then the deviation of the whole batch; or a learned
    value of every token's state (`gae`), which the settings of the value head below are for."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount a token. An answer is worth the same however long it is, so 1; overlong_tokens is the way to ask for short ones."""
    gae_lambda: Share = 1.0
    """Advantages: 1 return less value (unbiased), 0 the next token's value less this one's. The reward comes with the last token, and
    below 1 little of it reaches the first ones of a long answer (0.95^100 is 0.6 %) before the values are good."""
    value_coefficient: float = Field(default=0.1, gt=0)
    """Weight of the value loss. Adam makes the head's own steps independent of it; it is the values' pull on the layers shared with the
    policy, which small values keep to the policy's task."""
    value_rate: float = Field(default=1.0, gt=0)
    """The value head's learning rate as a multiple of the policy's; its weights start at 0."""
    value_clip: float = Field(default=0.0, ge=0)
    """Later minibatches earn nothing by moving a value farther than this from where the step found it; 0: off, as no gain was measured."""
    whiten_advantages: bool = True
    """Bring the batch's token advantages to mean 0 and deviation 1: values that fit badly are off by much the same everywhere, and the
    step's size should not depend on the scale of rewards."""
    reducer: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens of an optimizer step, over its sequences' means, or sums divided by sequences * sampling.max_new_tokens."""
    clip_low: Rate = 0.2
    """Ratios below 1 - clip_low earn no further gradient (dppo: probabilities that fell by more than it)."""
    clip_high: Rate = 0.2
    """Ratios above 1 + clip_high earn no further gradient (dppo: probabilities that rose by more than it)."""
    weight_cap: float = Field(default=5.0, gt=0, allow_inf_nan=True)
    """Largest importance weight: beyond it decoupled_ppo leaves the token out, others cut the weight. inf: for exact reinforce_is."""
    ratio_penalty: float = Field(default=1e-3, ge=0)
    """dppo's penalty on the squared log-ratio, which pulls back what its mask lets go."""
    proximal: Literal["recomputed", "interpolated"] = "recomputed"
    """Log-probs at the start of a step, for later minibatches: scored once more, or interpolated by version between old and current."""
    overlong_tokens: Count = 0
    """Soft penalty on length: over the last so many tokens before sampling.max_new_tokens the reward falls by up to 1 (DAPO); 0: none."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the reference policy; 0: none."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How one sample's KL is estimated: log-ratio, half its square, or the unbiased non-negative one."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Added to each token's loss, or taken off each sample's reward before the group's baseline."""
    reference_path: str = ""
    """Model directory of the reference (of distill: the teacher); empty: the weights at version 0."""

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, given: Any) -> Any:
        """What the named objective reads and nobody gave, at the objective's own value."""
        if not isinstance(given, dict):
            return given
        tree = cast(dict[str, Any], given)
        named = str(tree.get("name", cls.model_fields["name"].default))
        return {**OWN_DEFAULTS.get(named, {}), **tree}


class CorrectionSection(Section):
    """What is done about samples of another policy than the learner's (older, or in other numerics), on top of any objective.

    Weights are w = pi_proximal / pi_behaviour; with them on, the objective's own ratio is taken against the proximal policy.
    """

    importance: Literal["none", "truncated", "masked"] = "none"
    """Multiply each token's loss by w: cut at weight_cap, or left out where w is outside [weight_low, weight_high]."""
    level: Literal["token", "sequence"] = "token"
    """Whose w: each token's, or the product over its sequence."""
    weight_cap: float = Field(default=2.0, gt=0)
    """Largest w of truncated importance weights."""
    weight_low: float = Field(default=0.5, gt=0)
    """Smallest w that masked importance weights keep."""
    weight_high: float = Field(default=5.0, gt=0)
    """Largest w that masked importance weights keep."""
    sequence_kl: float = Field(default=0.0, ge=0)
    """Leave out sequences of negative advantage whose mean log(pi_behaviour / pi_current) exceeds this (OPSM), nats; 0: off."""
    second_moment: float = Field(default=0.0, ge=0)
    """Leave out the tokens of largest log(w)^2 until its mean over the batch is at most this (M2PO; the paper: 0.04); 0: off."""
    classes: tuple[str, ...] = ()
    """Correct only samples of these sampler classes, e.g. "cpu/int8"; empty: all."""


class StreamSection(Section):
    """A static corpus of which every learner step takes some rows, beside the rollouts."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    """Its name in metrics."""
    file: str
    """JSONL file (or .jsonl.gz): rows of prompt_ids + completion_ids, of messages, or of text."""
    kind: Literal["sft", "text"] = "sft"
    """`sft`: the loss falls on the completion or the last message; `text`: on every token (mid-training)."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of the stream's mean loss a token; that of rollouts has weight 1."""
    samples_per_step: Positive
    """Rows a learner step."""


class OptimizerSection(Section):
    """From gradients to steps."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon`: orthogonal steps for the matrices of the layers; embedding, head, norms and biases keep AdamW, at the same rate."""
    learning_rate: Rate = 2e-4
    """Step size after the warm-up. Adam on tiny batches breaks by step size long before gradient norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: the same rate, or a fall to final_fraction of it at the last step. RL runs seldom need one."""
    warmup_steps: Count = 5
    """Optimizer steps of linear rise; Adam's moments start empty, so never 0 for real runs."""
    final_fraction: Share = 0.1
    """Share of learning_rate that is left at the last optimizer step (linear and cosine)."""
    b1: Decay = 0.9
    """Adam's first decay."""
    b2: Decay = 0.99
    """Adam's second decay; shorter than usual because RL runs are short and drift."""
    muon_momentum: Decay = 0.95
    """Muon's decay of its momentum (Nesterov)."""
    muon_iterations: Annotated[int, Field(ge=1, le=20)] = 5
    """Newton-Schulz iterations that make a step orthogonal; five bring all singular values to between 0.7 and 1.2."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled decay of matrices, embedding and head, times the rate; norms and biases keep theirs. None by default: runs are short."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest global gradient norm."""
    first_moment: Literal["f32", "bf16"] = "f32"
    """Type that Adam's first moment and Muon's momentum are kept in; bf16 saves 2 bytes a parameter. The second moment stays
    float32: its small increments would round away."""
    ess_power: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The rate of each optimizer step is multiplied by its effective sample size to this power, which is 1 on fresh data and small
    where few tokens decide. 0: not at all; 1: in proportion; 0.5 suits Adam."""


class MeshSection(Section):
    """The devices that one learner is spread over; their product is how many it takes. All 1: one device."""

    data: Positive = 1
    """Copies of the weights, each with its share of a microbatch's rows. The only axis of exact numerics."""
    fsdp: Positive = 1
    """Shares of the weights and of a microbatch's rows; weights are gathered at use."""
    tensor: Positive = 1
    """Shares of heads, feed-forward and vocabulary."""
    expert: Positive = 1
    """Shares of a mixture's experts, and of a microbatch's rows elsewhere."""


class GradingSection(Section):
    """Who judges the replies of training; evaluations judge their own."""

    on: Literal["samplers", "graders"] = "samplers"
    """`samplers`: whoever draws a reply judges it, beside drawing, which is enough for most verifiers. `graders`: processes of their own
    (`slipstream grader`), where verdicts need more of a machine than samplers leave, or another machine. A run in one process is its
    own grader."""


class TrustSection(Section):
    """When a sampler of a run of several processes is put in quarantine, beside one whose weights are not those that were published."""

    ratio_band: Annotated[float, Field(ge=0)] = 0.03
    """Its mean importance ratio (the learner's probabilities over its own, at the same weights) may differ from 1 by so much, and by four
    standard errors: log-probs that are not those of the tokens' draws are found by it. 0: no sampler is judged by its ratio."""
    ratio_tokens: Positive = 1000
    """Tokens over which the mean is taken, at least; a few rollouts are looked at every evaluation.every_steps."""


class EvaluationSection(Section):
    """Held-out scores during the run, pinned to one version, by a worker and an engine of their own."""

    every_steps: Positive = 10
    """Learner steps between evaluations; one is made before the first step and one after the last."""
    prompts: Positive = 256
    """Held-out prompts; 256 give a standard error of at most 3 points."""
    samples: Count = 0
    """Answers a prompt drawn for pass@k, beside the greedy one of pass@1; 0: none."""
    k: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Each k of pass@k, at most evaluation.samples."""
    temperature: float = Field(default=1.0, gt=0)
    """Of those answers."""
    slots: Count = 0
    """Answers drawn at a time: the evaluator's share of the machine. 0: as many as sampling.slots."""
    samples_kept: Count = 6
    """Answers kept for reading."""


class CheckpointSection(Section):
    """What survives."""

    every_steps: Positive = 20
    """Learner steps between checkpoints; one is written after the warm start and one at the end."""
    keep_best: bool = True
    """Keep the checkpoint with the best held-out score beside the newest two. Those count that were evaluated at their step: all,
    where every_steps is a multiple of evaluation.every_steps."""


class WatchdogSection(Section):
    """How long a role may be in one phase without getting on; then the run ends, or the role's process, with that cause."""

    seconds: Seconds = 1_200.0
    """Seconds for every phase without a limit of its own. Twenty minutes are more than the compilation of a large step."""
    phases: dict[str, Seconds] = {"checkpoint": 300.0, "publish": 600.0, "evaluate": 7_200.0}
    """Seconds by phase: generate and load of samplers; step, pack, audit, reference, values, publish and checkpoint of the learner;
    evaluate, which is one phase from its first to its last prompt; judge of graders, from one verdict to the next."""


class RunConfig(Section):
    """The whole tree; saved as run.toml in every run directory."""

    run: RunSection = RunSection()
    """What to run and for how long."""
    mode: ModeSection = ModeSection()
    """Synchronous, lagged or in flight."""
    model: ModelSection = ModelSection()
    """The policy."""
    task: Task = Field(default=ArithmeticTask())
    """What is asked and how it is judged."""
    warm_start: WarmStartSection = WarmStartSection()
    """Supervised steps first."""
    sampling: SamplingSection = SamplingSection()
    """How completions are drawn."""
    batch: BatchSection = BatchSection()
    """What a step is made of."""
    objective: ObjectiveSection = ObjectiveSection()
    """The loss."""
    correction: CorrectionSection = CorrectionSection()
    """What is done about samples of another policy."""
    streams: tuple[StreamSection, ...] = ()
    """Static corpora trained on beside the rollouts."""
    optimizer: OptimizerSection = OptimizerSection()
    """AdamW and its schedule."""
    mesh: MeshSection = MeshSection()
    """The learner's devices."""
    grading: GradingSection = GradingSection()
    """Who judges."""
    trust: TrustSection = TrustSection()
    """What is held against samplers."""
    evaluation: EvaluationSection = EvaluationSection()
    """Held-out scores."""
    checkpoint: CheckpointSection = CheckpointSection()
    """What survives."""
    watchdog: WatchdogSection = WatchdogSection()
    """What counts as hung."""

    @property
    def samples_per_step(self) -> int:
        """Samples a learner step: prompts times group size."""
        return self.batch.prompts_per_step * self.batch.group_size

    @property
    def has_rollouts(self) -> bool:
        """False where every step is made of static streams alone; nothing is sampled then but for evaluations."""
        return self.objective.name != "sft"
