"""The learner: an actor that holds parameters and optimizer state and turns sequences into the next policy version.

Implements `core.ports.Learner`; called by one thread only. Published weights are immutable arrays, so samplers may keep
using version v while v + 1 is made.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from slipstream.config.schema import ObjectiveSection, OptimizerSection, RunConfig, WarmStartSection
from slipstream.core.records import TrainingSequence, WeightVersion
from slipstream.models.attention.registry import DENSE_UP_TO, pick
from slipstream.models.attention.rule import attention_rule
from slipstream.models.numerics import EXACT, FAST, Numerics
from slipstream.models.parameters import Params
from slipstream.models.quant import COMPUTE
from slipstream.models.spec import ModelSpec
from slipstream.train.arrays import read_tree, write_tree
from slipstream.train.objectives import TokenLoss, objective
from slipstream.train.objectives.sft import sft
from slipstream.train.optimizer import adamw, reinforcement_schedule, warm_start_schedule
from slipstream.train.packing import Microbatch, Placed, pack, padding_waste, unpack
from slipstream.train.statistics import TokenTable, step_statistics
from slipstream.train.update import Layout, TokenStatistics, accumulate, apply_gradient, fresh_state, score, zero_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """What differs between supervised and reinforcement steps."""

    loss: TokenLoss
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule


class Learner:
    """One device's learner. `version` counts reinforcement steps; supervised warm-start steps come before version 0."""

    def __init__(self, config: RunConfig, spec: ModelSpec, params: Params, lineage: int = 0) -> None:
        self._spec, self._batch, self._lineage = spec, config.batch, lineage
        self._numerics: Numerics = EXACT if config.model.numerics == "exact" else FAST
        self._layout = _layout(config, spec)
        self._temperature = jnp.float32(config.sampling.temperature)
        self._warm = _warm_phase(cast(Hashable, config.warm_start))
        self._reinforcement = _reinforcement_phase(cast(Hashable, config.optimizer), cast(Hashable, config.objective))
        self._params = params
        self._state = fresh_state(self._warm.optimizer, params)
        self._version = -1
        self._updates = 0

    @property
    def version(self) -> int:
        return self._version

    def weights(self) -> WeightVersion:
        return WeightVersion(lineage=self._lineage, version=self._version, params=self._params)

    def warm_step(self, sequences: Sequence[TrainingSequence]) -> float:
        """One supervised optimizer step, at temperature 1; returns its loss, nats a token.

        Always in fast numerics: nothing that a sampler drew is compared with it.
        """
        microbatches, _ = pack(sequences, self._batch.row_tokens, self._batch.rows_per_microbatch)
        tokens = _trained_tokens(sequences)
        statistics, _, _ = self._update(self._warm, microbatches, [None] * len(microbatches), tokens, jnp.float32(1.0), FAST)
        return float(sum(np.asarray(part.loss).sum(dtype=np.float64) for part in statistics) / tokens)

    def begin_reinforcement(self) -> None:
        """The present weights become version 0, with a fresh optimizer."""
        self._state = fresh_state(self._reinforcement.optimizer, self._params)
        self._version, self._updates = 0, 0

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """One policy update: an optimizer step for each minibatch of the sequences. Returns the metrics of the step.

        Sequences without any advantage count in the denominator but are not computed on: their gradient is zero.
        """
        parts = _split(sequences, self._batch.minibatches)
        packed = [self._pack(_with_signal(part))[0] for part in parts]
        proximal = self._proximal(packed)
        tables, grad_norms, update_norms, loads = [], [], [], []
        rate = float(np.asarray(self._reinforcement.schedule(self._updates)))
        for part, microbatches, near in zip(parts, packed, proximal, strict=True):
            statistics, grad_norm, update_norm = self._update(
                self._reinforcement, microbatches, near, max(1, _trained_tokens(part)), self._temperature, self._numerics
            )
            tables.append(_table(microbatches, statistics))
            loads += [np.asarray(batch.expert_load) for batch in statistics]
            grad_norms.append(grad_norm)
            update_norms.append(update_norm)
            self._updates += bool(np.isfinite(grad_norm))
        self._version += 1
        tokens = _trained_tokens(sequences)
        metrics = step_statistics(_concatenate(tables), max(1, tokens))
        waste = padding_waste([microbatch for group in packed for microbatch in group])
        return (
            metrics
            | _expert_metrics(loads)
            | {
                "tokens": float(tokens),
                "lr": rate,
                "grad_norm": float(np.max(grad_norms)),
                "update_norm": max(update_norms),
                "nonfinite_updates": float(sum(not np.isfinite(norm) for norm in grad_norms)),
                "padding_waste": waste,
            }
        )

    def score(self, sequences: Sequence[TrainingSequence], weights: WeightVersion, temperature: float | None = None) -> list[np.ndarray]:
        """Log-probs of each sequence's tokens [tokens] under given weights; 0 for the first and for a prompt shared with a neighbour.

        `temperature` is that of training samples unless another is given.
        """
        microbatches, places = self._pack(sequences)
        at = self._temperature if temperature is None else jnp.float32(temperature)
        found = [np.asarray(self._score(weights.params, batch, at)) for batch in microbatches]
        return unpack(found, sequences, places)

    def save(self, directory: Path) -> None:
        write_tree(directory / "params.safetensors", self._params)
        write_tree(directory / "optimizer.safetensors", self._state, {"version": str(self._version), "updates": str(self._updates)})

    def restore(self, directory: Path) -> None:
        """Continue from what `save` wrote. Raises RunFailed when files and model disagree."""
        params, _ = read_tree(directory / "params.safetensors", self._params)
        state, counters = read_tree(directory / "optimizer.safetensors", fresh_state(self._reinforcement.optimizer, params))
        self._params, self._state = params, state
        self._version, self._updates = int(counters["version"]), int(counters["updates"])

    def _pack(self, sequences: Sequence[TrainingSequence]) -> tuple[list[Microbatch], list[Placed]]:
        return pack(sequences, self._batch.row_tokens, self._batch.rows_per_microbatch, self._layout.page_tokens)

    def _score(self, params: Params, batch: Microbatch, temperature: jax.Array) -> jax.Array:
        return score(params, self._spec, self._layout, batch, temperature, numerics=self._numerics)[0]

    def _proximal(self, packed: Sequence[Sequence[Microbatch]]) -> list[list[jax.Array | None]]:
        """Log-probs at the start of the step, needed once there is a second optimizer step; None = the current ones."""
        if len(packed) == 1:
            return [[None] * len(packed[0])]
        return [[self._score(self._params, batch, self._temperature) for batch in microbatches] for microbatches in packed]

    def _update(
        self,
        phase: _Phase,
        microbatches: Sequence[Microbatch],
        proximal: Sequence[jax.Array | None],
        denominator: int,
        temperature: jax.Array,
        numerics: Numerics,
    ) -> tuple[list[TokenStatistics], float, float]:
        gradient = zero_gradient(self._params)
        statistics = []
        for batch, near in zip(microbatches, proximal, strict=True):
            gradient, part = accumulate(
                self._params,
                self._spec,
                self._layout,
                phase.loss,
                gradient,
                batch,
                near,
                temperature,
                jnp.float32(denominator),
                numerics=numerics,
            )
            statistics.append(part)
        self._params, self._state, grad_norm, update_norm = apply_gradient(phase.optimizer, self._params, self._state, gradient)
        return statistics, float(grad_norm), float(update_norm)


@cache
def _warm_phase(settings: WarmStartSection) -> _Phase:
    schedule = warm_start_schedule(settings)
    return _Phase(loss=sft, schedule=schedule, optimizer=adamw(schedule, b1=0.9, b2=settings.b2, weight_decay=0.0, clip_norm=1.0))


@cache
def _reinforcement_phase(settings: OptimizerSection, loss: ObjectiveSection) -> _Phase:
    """Cached, so that learners of equal settings share compiled programs."""
    schedule = reinforcement_schedule(settings)
    optimizer = adamw(schedule, b1=settings.b1, b2=settings.b2, weight_decay=settings.weight_decay, clip_norm=settings.clip_norm)
    return _Phase(loss=objective(loss), schedule=schedule, optimizer=optimizer)


def _layout(config: RunConfig, spec: ModelSpec) -> Layout:
    """Short rows attend densely; for long ones the first implementation that is right on this device is taken."""
    precision, attention = config.model.learner_precision, "dense"
    exact = config.model.numerics == "exact"
    if config.batch.row_tokens > DENSE_UP_TO and not exact:
        dtype = jnp.dtype(COMPUTE[precision]).name
        attention = pick("packed", spec.heads, spec.kv_heads, spec.head_dim, dtype, attention_rule(spec))
    scan = config.model.learner_layers == "scan"
    page_tokens = config.sampling.page_tokens if exact else 1
    return Layout(scan=scan, remat=config.model.remat, attention=attention, precision=precision, page_tokens=page_tokens)


def _expert_metrics(loads: Sequence[np.ndarray]) -> dict[str, float]:
    """How unevenly the experts of a mixture are used: the busiest one's visits over the mean, worst layer; 1 = evenly."""
    total = np.sum(loads, axis=0) if loads else np.zeros((0, 0))
    return {"expert_load_max": float((total.max(axis=1) / total.mean(axis=1)).max())} if total.any() else {}


def _split(sequences: Sequence[TrainingSequence], parts: int) -> list[Sequence[TrainingSequence]]:
    """`parts` contiguous shares, equal to within one sequence."""
    edges = [round(part * len(sequences) / parts) for part in range(parts + 1)]
    return [sequences[start:end] for start, end in pairwise(edges)]


def _with_signal(sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    return [sequence for sequence in sequences if sequence.advantages.any()]


def _trained_tokens(sequences: Sequence[TrainingSequence]) -> int:
    return int(sum(sequence.loss_mask.sum() for sequence in sequences))


def _table(microbatches: Sequence[Microbatch], statistics: Sequence[TokenStatistics]) -> TokenTable:
    masks = [batch.loss_mask > 0 for batch in microbatches]

    def gather(arrays: Sequence[np.ndarray | jax.Array]) -> np.ndarray:
        return np.concatenate([np.asarray(array)[mask] for array, mask in zip(arrays, masks, strict=True)] or [np.zeros(0, np.float32)])

    return TokenTable(
        current=gather([part.logprobs for part in statistics]),
        behaviour=gather([batch.behaviour_logprobs for batch in microbatches]),
        entropy=gather([part.entropy for part in statistics]),
        loss=gather([part.loss for part in statistics]),
        limited=gather([part.limited for part in statistics]),
    )


def _concatenate(tables: Sequence[TokenTable]) -> TokenTable:
    names = ("current", "behaviour", "entropy", "loss", "limited")
    return TokenTable(**{name: np.concatenate([getattr(table, name) for table in tables]) for name in names})
