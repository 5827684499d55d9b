"""The tree of settings of a run. Frozen; unknown keys are refused; each field says its unit and why its default is what it is.

Counts name what they count: prompts, samples, tokens, steps. `load.py` builds the tree; `check.py` judges it as a whole.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
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


class SumsTask(Section):
    """Addition asked in words through the chat template, with the answer's turn opened: `3+4=`."""

    kind: Literal["sums"] = "sums"
    digits: Literal[1, 2] = 2
    """Digits of both numbers: 1 (1..9) or 2 (10..99)."""
    one_digit_share: Share = 0.0
    """Share of training prompts with one-digit numbers instead; a small model gets its first rewards there."""
    held_out: HeldOut = 0.2
    """Share of all pairs, chosen by hash, that is never trained on (at most 64 are evaluated by default)."""


class RowsTask(Section):
    """Questions with a final number as answer, one JSON object a line."""

    kind: Literal["rows"] = "rows"
    train: str
    """JSONL file (or .jsonl.gz) with the training rows."""
    test: str
    """JSONL file (or .jsonl.gz) with the held-out rows."""
    question_field: str = "question"
    """Field of the question."""
    answer_field: str = "answer"
    """Field of the answer; a number, or text that ends in `#### number`."""
    id_field: str = "id"
    """Field of the row's id; rows without one are named by their line."""
    instruction: str = "Solve the problem step by step. End with a line '#### ' and the final number."
    """Said after the question in the user's turn."""
    grader: Literal["exact", "final_number"] = "final_number"
    """`final_number` reads the number after `####` or else the last number; `exact` compares the whole reply."""
    format_weight: Share = 0.0
    """Reward for having the asked form, apart from correctness; 0 leaves correctness alone."""
    max_prompt_tokens: Positive = 256
    """Rows with longer prompts are counted and left out."""


Task = Annotated[ArithmeticTask | SumsTask | RowsTask, Field(discriminator="kind")]


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


class SamplingSection(Section):
    """How completions are drawn."""

    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature of training samples; the learner scores at the same one."""
    max_new_tokens: Positive = 21
    """Longest completion, the stop token included."""
    slots: Positive = 64
    """Samples that run at once in one engine; fewer than a batch, so that new weights meet running samples."""
    tokens_per_dispatch: Positive = 4
    """Decode steps between two looks at new requests and new weights."""
    page_tokens: Literal[8, 16, 32, 64, 128] = 64
    """Positions of one page of the key/value cache. Larger ones are faster; exact numerics leave half of one empty a sequence."""
    kv_on_swap: Literal["keep", "recompute"] = "keep"
    """Keys and values of older weights when new ones arrive: kept (harmless, and free) or computed again."""
    precision: Literal["f32", "bf16", "int8", "fp8"] = "f32"
    """Weights of the sampler; below f32 its log-probs differ from the learner's, and the objective corrects for it."""


class BatchSection(Section):
    """What one learner step is made of."""

    prompts_per_step: Positive = 32
    """Prompts (groups) a step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Samples of each prompt; the group's rewards are each other's baseline."""
    minibatches: Positive = 1
    """Optimizer steps a learner step, each on its share of the groups."""
    row_tokens: Positive = 128
    """Tokens of one packed row; several sequences share a row."""
    rows_per_microbatch: Positive = 16
    """Packed rows computed at once; bounds memory, does not change the result."""


class ObjectiveSection(Section):
    """The loss."""

    name: Literal["decoupled_ppo", "ppo", "reinforce_is", "reinforce"] = "decoupled_ppo"
    """Which loss; decoupled_ppo equals ppo on fresh data and holds up on stale data."""
    advantage: Literal["rloo", "dr_grpo", "grpo"] = "rloo"
    """Baseline of a group: mean of the others, mean, or mean and standard deviation."""
    clip_low: Rate = 0.2
    """Ratios below 1 - clip_low earn no further gradient (ppo kinds)."""
    clip_high: Rate = 0.2
    """Ratios above 1 + clip_high earn no further gradient (ppo kinds)."""
    weight_cap: float = Field(default=5.0, gt=0)
    """Largest importance weight: beyond it decoupled_ppo leaves the token out, reinforce_is cuts the weight to it."""


class OptimizerSection(Section):
    """AdamW and its schedule."""

    learning_rate: Rate = 2e-4
    """Step size after the warm-up; constant. Adam on tiny batches breaks by step size long before gradient norm."""
    warmup_steps: Count = 5
    """Optimizer steps of linear rise; Adam's moments start empty, so never 0 for real runs."""
    b1: Decay = 0.9
    """Adam's first decay."""
    b2: Decay = 0.99
    """Adam's second decay; shorter than usual because RL runs are short and drift."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay; none by default, runs are short."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest global gradient norm."""


class EvaluationSection(Section):
    """Held-out scores during the run, greedy, pinned to one version."""

    every_steps: Positive = 10
    """Learner steps between evaluations; one is made before the first step and one after the last."""
    prompts: Positive = 256
    """Held-out prompts; 256 give a standard error of at most 3 points."""
    samples_kept: Count = 6
    """Answers kept for reading."""


class CheckpointSection(Section):
    """What survives."""

    every_steps: Positive = 25
    """Learner steps between checkpoints; one is written after the warm start and one at the end."""


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
    optimizer: OptimizerSection = OptimizerSection()
    """AdamW and its schedule."""
    evaluation: EvaluationSection = EvaluationSection()
    """Held-out scores."""
    checkpoint: CheckpointSection = CheckpointSection()
    """What survives."""

    @property
    def samples_per_step(self) -> int:
        """Samples a learner step: prompts times group size."""
        return self.batch.prompts_per_step * self.batch.group_size
