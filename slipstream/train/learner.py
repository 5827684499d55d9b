"""The learner: an actor that holds parameters and optimizer state and turns sequences into the next policy version.

Implements `core.ports.Learner`; called by one thread only. Published weights are immutable arrays, so samplers may keep
using version v while v + 1 is made.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from slipstream.config.schema import OptimizerSection, RunConfig, WarmStartSection
from slipstream.core.records import ROLLOUTS, TrainingSequence, WeightVersion
from slipstream.models.attention.registry import DENSE_UP_TO, pick
from slipstream.models.attention.rule import attention_rule
from slipstream.models.lora import Adapted, LoraSpec, Policy, base_of, initial_adapters
from slipstream.models.numerics import EXACT, FAST, Numerics
from slipstream.models.parameters import Params
from slipstream.models.quant import COMPUTE
from slipstream.models.spec import ModelSpec
from slipstream.train.arrays import leaves, on_host, read_tree, write_leaves
from slipstream.train.columns import Columns
from slipstream.train.cost import model_cost
from slipstream.train.objectives import needs_reference, nothing_without_advantage, objective
from slipstream.train.objectives.sft import sft
from slipstream.train.optimizer import (
    ess_factor,
    reinforcement_optimizer,
    reinforcement_schedule,
    warm_start_optimizer,
    warm_start_schedule,
)
from slipstream.train.packing import Microbatch, pack, padding_waste, unpack
from slipstream.train.placement import WholeCopies, configured_placement
from slipstream.train.shapes import configured_shapes
from slipstream.train.shares import Share, Stream, minibatches, share, trained_tokens
from slipstream.train.statistics import joined, step_statistics, value_statistics
from slipstream.train.step_columns import StepColumns, token_table
from slipstream.train.update import Layout, TokenStatistics, accumulate, apply_gradient, fresh_state, score, values, zero_gradient
from slipstream.train.update_metrics import Update, expert_metrics, losses, summed_loss, update_metrics, value_loss
from slipstream.train.utilization import ADAPTERS, FULL, product_rate, useful_flops
from slipstream.train.value_head import Learned, Valued, ValueHead, fresh_head, moved_of, policy_of, with_head, with_moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A fixed policy that the learner is held near to, or taught by. Its vocabulary is the learner's."""

    spec: ModelSpec
    params: Params


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """What differs between supervised and reinforcement steps."""

    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    ess_power: float = 0.0  # see `optimizer.ess_factor`


class Learner:
    """`version` counts reinforcement steps; supervised warm-start steps come before version 0.

    Where the configuration has a mesh, parameters, gradients and moments are spread over its devices. With several processes
    (`jax.distributed`) each holds a learner, and all call the same with the same sequences; all get the same results.
    """

    def __init__(self, config: RunConfig, spec: ModelSpec, params: Params, lineage: int = 0, reference: Reference | None = None) -> None:
        """`reference`: that of objective.reference_path; without it the weights at version 0 are the reference where one is needed.

        Raises ConfigError where the machine has too few devices.
        """
        self._config, self._spec, self._lineage = config, spec, lineage
        self._placement = configured_placement(config.mesh)
        self._copies = WholeCopies(self._placement)
        self._numerics: Numerics = EXACT if config.model.numerics == "exact" else FAST
        self._layout = _layout(config, spec)
        cost = model_cost(spec, whole_rows=self._layout.attention == "dense" and not self._numerics.exact)
        self._shapes = configured_shapes(config.batch, cost, align=self._layout.page_tokens, devices=self._placement.row_shares)
        self._fast_shapes = configured_shapes(config.batch, cost, devices=self._placement.row_shares)
        self._temperature = jnp.float32(config.sampling.temperature)
        self._warm = _warm_phase(cast(Hashable, config.warm_start))
        self._has_values = config.objective.advantage == "gae"
        value_rate = config.objective.value_rate if self._has_values else 0.0
        self._reinforcement = _reinforcement_phase(cast(Hashable, config.optimizer), spec, _updates(config), value_rate)
        self._streams = _streams(config, self._temperature, self._numerics)
        self._keeps_reference = needs_reference(config.objective) and reference is None
        self._reference = reference and replace(reference, params=self._placement.parameters(reference.params, reference.spec))
        self._policy: Policy = self._placement.parameters(params, spec)
        self._head: ValueHead | None = None  # from version 0 on, where there is one
        self._state = self._fresh_state(self._warm, self._policy)
        self._version = -1
        self._updates = 0

    @property
    def version(self) -> int:
        return self._version

    @property
    def peak_flops(self) -> float:
        """FLOP/s that its devices reach in large matrix products of its precision; measured at the first call."""
        return self._placement.devices * product_rate(jnp.dtype(COMPUTE[self._config.model.learner_precision]).name)

    def weights(self) -> WeightVersion:
        """The present version, for samplers: whole, on one device of this process."""
        return WeightVersion(lineage=self._lineage, version=self._version, params=self._copies.of(self._policy))

    def warm_step(self, sequences: Sequence[TrainingSequence]) -> float:
        """One supervised optimizer step, at temperature 1; returns its loss, nats a token.

        Always in fast numerics: nothing that a sampler drew is compared with it.
        """
        whole = self._share(_supervised("warm_start"), sequences)
        update = self._update(self._warm, [whole], [[Columns(weights=weights) for weights in whole.weights]])
        return summed_loss(update.statistics[0])

    def begin_reinforcement(self) -> None:
        """The present weights become version 0, with a fresh optimizer; and the reference, where one is needed and none was given.

        With adapters configured the weights are frozen and adapters that change nothing yet are put beside them; and so is a value
        head where advantages need values.
        """
        self._policy = self._with_adapters(base_of(self._policy))
        self._head = self._fresh_head() if self._has_values else None
        self._state = self._fresh_state(self._reinforcement, _learned(self._policy, self._head))
        self._version, self._updates = 0, 0
        if self._keeps_reference:
            self._reference = Reference(spec=self._spec, params=base_of(self._policy))

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """One policy update: an optimizer step for each minibatch of the sequences. Returns the metrics of the step.

        Sequences of several streams may be mixed; each stream has its loss, denominator and weight. Where the objective's gradient is
        in proportion to the advantage, sequences without any count in the denominator but are not computed on.
        """
        parts = [
            [self._share(self._stream(name), members) for name, members in part.items()]
            for part in minibatches(sequences, self._config.batch.minibatches)
        ]
        columns = StepColumns(self._config, self._version, [of for part in parts for of in part if of.stream.name == ROLLOUTS], self._score)
        rate = float(np.asarray(self._reinforcement.schedule(self._updates)))
        updates, tables = [], []
        for number, part in enumerate(parts):
            given = [columns.of(of, number, len(parts)) for of in part]
            updates.append(self._update(self._reinforcement, part, given))
            self._updates += updates[-1].moved
            tables += [
                token_table(of, statistics, columns.start(number), first=number == 0)
                for of, statistics in zip(part, updates[-1].statistics, strict=True)
                if of.stream.name == ROLLOUTS
            ]
        self._version += 1
        microbatches = [microbatch for part in parts for of in part for microbatch in of.microbatches]
        return (
            step_statistics(joined(tables))
            | losses(parts, updates)
            | expert_metrics([np.asarray(one.expert_load) for update in updates for many in update.statistics for one in many])
            | update_metrics(updates)
            | ({"value_loss": value_loss(updates)} | value_statistics(sequences) if self._head else {})
            | {"tokens": float(trained_tokens(sequences)), "lr": rate, "padding_waste": padding_waste(microbatches)}
            | {"model_flops": useful_flops(self._spec, microbatches, ADAPTERS if isinstance(self._policy, Adapted) else FULL)}
        )

    def score(self, sequences: Sequence[TrainingSequence], weights: WeightVersion, temperature: float | None = None) -> list[np.ndarray]:
        """Log-probs of each sequence's tokens [tokens] under given weights; 0 for the first and for a prompt shared with a neighbour.

        `temperature` is that of training samples unless another is given.
        """
        policy = self._copies.back(weights.params, self._spec)
        at = self._temperature if temperature is None else jnp.float32(temperature)
        return self._computed(sequences, lambda batch: score(policy, self._spec, self._layout, batch, at, numerics=self._numerics)[0])

    def reference_logprobs(self, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """As `score`, under the reference policy. Raises ValueError where the objective needs none, or before version 0."""
        if self._reference is None:
            raise ValueError("this run has no reference policy (yet): objective.kl_coefficient is 0, or version 0 is still to come")
        spec, params = self._reference.spec, self._reference.params
        layout = self._layout if spec == self._spec else _layout(self._config, spec)
        return self._computed(sequences, lambda batch: score(params, spec, layout, batch, self._temperature, numerics=self._numerics)[0])

    def values(self, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """By the present value head, of the states in which each sequence's tokens [tokens] are chosen; 0 where `score` is 0.

        Raises ValueError where there is no head, or before version 0.
        """
        learned = _learned(self._policy, self._head)
        if not isinstance(learned, Valued):
            raise ValueError("this run has no value head (yet): objective.advantage is not gae, or version 0 is still to come")
        return self._computed(sequences, lambda batch: values(learned, self._spec, self._layout, batch, numerics=self._numerics))

    def save(self, directory: Path) -> None:
        self.snapshot()(directory)

    def snapshot(self) -> Callable[[Path], None]:
        """What `save` would write now, as a function for another thread to call while the learner goes on.

        Parameters are kept by reference; the optimizer's state is copied to the host at once, because the next update writes over it.
        """
        policy, state = leaves(self._policy), on_host(leaves(self._state))
        keeps = self._keeps_reference and self._reference is not None and not isinstance(self._policy, Adapted)
        reference = leaves(self._reference.params) if keeps and self._reference else None
        head = leaves(self._head) if self._head else None
        counters = {"version": str(self._version), "updates": str(self._updates)}

        def write(directory: Path) -> None:
            write_leaves(directory / "params.safetensors", policy)
            write_leaves(directory / "optimizer.safetensors", state, counters)
            if reference is not None:
                write_leaves(directory / "reference.safetensors", reference)
            if head is not None:
                write_leaves(directory / "value_head.safetensors", head)

        return write

    def restore(self, directory: Path) -> None:
        """Continue from what `save` wrote. Raises RunFailed when files and model disagree."""
        policy, _ = read_tree(directory / "params.safetensors", self._with_adapters(base_of(self._policy)))
        head = read_tree(directory / "value_head.safetensors", self._fresh_head())[0] if self._has_values else None
        fresh = self._fresh_state(self._reinforcement, _learned(policy, head))
        state, counters = read_tree(directory / "optimizer.safetensors", fresh)
        if self._keeps_reference:
            base = base_of(policy)
            kept = base if isinstance(policy, Adapted) else read_tree(directory / "reference.safetensors", base)[0]
            self._reference = Reference(spec=self._spec, params=kept)
        self._policy, self._head, self._state = policy, head, state
        self._version, self._updates = int(counters["version"]), int(counters["updates"])

    def _with_adapters(self, params: Params) -> Policy:
        lora = self._config.model.lora
        if not lora.rank:
            return params
        chosen = LoraSpec(rank=lora.rank, alpha=lora.alpha, targets=lora.targets)
        adapters = initial_adapters(self._spec, chosen, self._config.run.seed)
        return Adapted(base=params, adapters=self._placement.parameters(adapters, self._spec))

    def _fresh_head(self) -> ValueHead:
        return self._placement.parameters(fresh_head(self._spec), self._spec)

    def _fresh_state(self, phase: _Phase, learned: Learned) -> optax.OptState:
        return self._placement.parameters(fresh_state(phase.optimizer, moved_of(learned)), self._spec)

    def _stream(self, name: str) -> Stream:
        if name not in self._streams:
            raise ValueError(f"a sequence is of stream {name!r}, and the run's streams are {', '.join(self._streams)}")
        return self._streams[name]

    def _share(self, stream: Stream, sequences: Sequence[TrainingSequence]) -> Share:
        """Packed for the stream's numerics: exact ones start every sequence on a page."""
        shapes = self._shapes if stream.numerics.exact else self._fast_shapes
        return share(stream, sequences, lambda chosen: pack(chosen, shapes))

    def _score(self, batch: Microbatch) -> jax.Array:
        """Log-probs [rows, row_tokens] under the present weights."""
        with self._placement.active():
            rows = self._placement.rows(batch)
            return score(self._policy, self._spec, self._layout, rows, self._temperature, numerics=self._numerics)[0]

    def _computed(self, sequences: Sequence[TrainingSequence], compute: Callable[[Microbatch], jax.Array]) -> list[np.ndarray]:
        """`compute` (of a microbatch, [rows, row_tokens]) for each sequence's tokens [tokens]."""
        microbatches, places = pack(sequences, self._shapes)
        with self._placement.active():
            found = [compute(self._placement.rows(batch)) for batch in microbatches]
        return unpack([np.asarray(one) for one in found], sequences, places)

    def _update(self, phase: _Phase, shares: Sequence[Share], columns: Sequence[Sequence[Columns]]) -> Update:
        """One optimizer step; without any microbatch nothing is computed and nothing moves."""
        if not any(of.microbatches for of in shares):
            return Update(statistics=[[] for _ in shares], grad_norm=0.0, update_norm=0.0)
        learned, laid = _learned(self._policy, self._head), self._placement.rows
        statistics: list[list[TokenStatistics]] = []
        with self._placement.active():
            gradient = zero_gradient(moved_of(learned))
            for of, given in zip(shares, columns, strict=True):
                statistics.append([])
                for batch, column in zip(of.microbatches, given, strict=True):
                    gradient, part = accumulate(
                        learned,
                        self._spec,
                        self._layout,
                        of.stream.objective,
                        gradient,
                        laid(batch),
                        laid(column),
                        of.stream.temperature,
                        numerics=of.stream.numerics,
                    )
                    statistics[-1].append(part)
            moved, self._state, grad_norm, update_norm = apply_gradient(
                phase.optimizer, moved_of(learned), self._state, gradient, _factor(phase, shares, statistics), self._spec
            )
        learned = with_moved(learned, moved)
        self._policy, self._head = policy_of(learned), learned.head if isinstance(learned, Valued) else None
        return Update(statistics=statistics, grad_norm=float(grad_norm), update_norm=float(update_norm))


@cache
def _warm_phase(settings: WarmStartSection) -> _Phase:
    schedule = warm_start_schedule(settings)
    return _Phase(schedule=schedule, optimizer=warm_start_optimizer(settings, schedule))


@cache
def _reinforcement_phase(settings: OptimizerSection, spec: ModelSpec, updates: int, value_rate: float) -> _Phase:
    """Cached, so that learners of equal settings share compiled programs. `value_rate`: 0 where there is no value head."""
    schedule = reinforcement_schedule(settings, updates)
    optimizer = reinforcement_optimizer(settings, spec, schedule)
    if value_rate:
        optimizer = with_head(optimizer, settings, lambda step: value_rate * schedule(step))
    return _Phase(schedule=schedule, optimizer=optimizer, ess_power=settings.ess_power)


def _learned(policy: Policy, head: ValueHead | None) -> Learned:
    return policy if head is None else Valued(part=policy, head=head)


def _updates(config: RunConfig) -> int:
    """Optimizer steps of the run, for rates that fall; 0 where the rate asks for no end, so that runs of any length share programs."""
    return config.run.steps * config.batch.minibatches if config.optimizer.schedule != "constant" else 0


def _factor(phase: _Phase, shares: Sequence[Share], statistics: Sequence[Sequence[TokenStatistics]]) -> jax.Array | float:
    """What the learning rate of this update is multiplied by: its rollouts' effective sample size before it, to the configured power."""
    if not phase.ess_power:
        return 1.0
    chosen = [
        (part.logprobs - batch.behaviour_logprobs, jnp.asarray(weights > 0))
        for of, parts in zip(shares, statistics, strict=True)
        if of.stream.name == ROLLOUTS
        for part, batch, weights in zip(parts, of.microbatches, of.weights, strict=True)
    ]
    return ess_factor([logs for logs, _ in chosen], [mask for _, mask in chosen], phase.ess_power) if chosen else 1.0


def _streams(config: RunConfig, temperature: jax.Array, numerics: Numerics) -> dict[str, Stream]:
    """The rollouts and every static corpus, by name."""
    rollouts = Stream(
        name=ROLLOUTS,
        objective=objective(config.objective, config.correction),
        temperature=temperature,
        numerics=numerics,
        reducer=config.objective.reducer,
        sum_tokens=config.sampling.max_new_tokens,
        needs_advantage=nothing_without_advantage(config.objective),
    )
    return {ROLLOUTS: rollouts} | {stream.name: _supervised(stream.name, stream.weight) for stream in config.streams}


def _supervised(name: str, weight: float = 1.0) -> Stream:
    return Stream(name=name, objective=sft, temperature=jnp.float32(1.0), numerics=FAST, weight=weight)


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
