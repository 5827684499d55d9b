"""Puts a run together: from configuration, policy and directory to the roles that will work on it."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from slipstream.config.schema import RunConfig
from slipstream.core.clock import Clock
from slipstream.core.ports import Ledger as LedgerPort
from slipstream.core.ports import WeightStore
from slipstream.core.records import EvaluationResult, WeightVersion
from slipstream.engine.engine import Engine
from slipstream.ledger.ledger import Ledger
from slipstream.loop.advantages import ADVANTAGES
from slipstream.loop.audit import OnRatios
from slipstream.loop.collect import Collector
from slipstream.loop.dispatch import Dispatch, SamplingRules
from slipstream.loop.evaluate import evaluate
from slipstream.loop.gae import Gae
from slipstream.loop.learn import Learn, Lessons, SamplerCounters
from slipstream.loop.phases import Phases
from slipstream.loop.rewards import Shaping
from slipstream.models.weight import Precision
from slipstream.runtime.embedded import Roles
from slipstream.runtime.environments import open_environments
from slipstream.runtime.eval_plan import evaluation_plan
from slipstream.runtime.ledger_policy import environments, ledger_policy
from slipstream.runtime.policy import Policy
from slipstream.runtime.shape import Shaped
from slipstream.telemetry.events import Events, NullEvents
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.train.learner import Learner
from slipstream.train.objectives import needs_reference
from slipstream.weights.store import MemoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Everything that runs, and what restarts need to reach."""

    learner: Learner
    ledger: Ledger
    store: MemoryStore
    sampler: Engine
    dispatch: Dispatch
    roles: Roles


def longest(config: RunConfig, shape: Shaped) -> int:
    """Tokens of the longest prompt and completion together."""
    return shape.task.max_prompt_tokens + config.sampling.max_new_tokens


def build_engine(
    config: RunConfig,
    shape: Shaped,
    clock: Clock,
    name: str,
    slots: int,
    events: Events = NullEvents(),
    precision: Precision | None = None,
) -> Engine:
    """An engine for the configuration's longest prompt and completion, in the configuration's precision or another."""
    return Engine(
        shape.spec,
        id=name,
        clock=clock,
        slots=slots,
        max_tokens=longest(config, shape),
        tokens_per_dispatch=config.sampling.tokens_per_dispatch,
        precision=precision or config.sampling.precision,
        exact=config.model.numerics == "exact",
        page_tokens=config.sampling.page_tokens,
        on_swap=config.sampling.kv_on_swap,
        divergence_limit=config.sampling.kv_divergence_limit,
        events=events,
    )


def assemble(
    config: RunConfig, policy: Policy, directory: RunDirectory, clock: Clock, events: Events, run_id: str, restart_at: int | None = None
) -> Assembly:
    """All roles of an embedded run, at the policy's weights; the ledger as its journal has it, put back to version `restart_at`."""
    ledger = Ledger(directory.journal, ledger_policy(config), policy.task, clock, environment_of=environments(config, policy.task))
    if restart_at is not None:
        ledger.restart(restart_at if config.has_rollouts else 0)  # it knows of no batch where there are none
    store = MemoryStore(keep=config.mode.eta + 2)
    learner = Learner(config, policy.spec, policy.params, ledger.state.lineage, policy.reference)
    learner_phases, sampler_phases, evaluator_phases = (Phases(role, clock, events) for role in ("learner", "sampler-0", "evaluator"))
    engine = build_engine(config, policy, clock, "sampler-0", config.sampling.slots, events)
    dispatch = Dispatch(
        sampler=engine,
        environments=open_environments(policy.task, clock=clock, on_answer=ledger.wake, events=events),
        ledger=ledger,
        store=store,
        collector=collector(config, policy, engine, run_id, ledger.state.lineage),
        rules=sampling_rules(config),
        phases=sampler_phases,
        events=events,
        clock=clock,
    )
    counters = SamplerCounters(
        tokens=lambda: dispatch.tokens,
        wait_s=lambda: sampler_phases.seconds().get("wait", 0.0),
        prefilled=lambda: (engine.prefilled_tokens, engine.reused_tokens),
    )
    learn = build_learn(
        config, policy, learner=learner, ledger=ledger, store=store, counters=counters, phases=learner_phases, events=events, clock=clock
    )
    roles = Roles(
        learn=learn,
        dispatch=dispatch,
        evaluate=evaluation(config, policy, clock),
        ledger=ledger,
        tickets=lambda: ledger.state.balance(),
        learner_phases=learner_phases,
        sampler_phases=sampler_phases,
        evaluator_phases=evaluator_phases,
        clock=clock,
        samples=config.has_rollouts,
    )
    return Assembly(learner=learner, ledger=ledger, store=store, sampler=engine, dispatch=dispatch, roles=roles)


def build_learn(
    config: RunConfig,
    policy: Policy,
    *,
    learner: Learner,
    ledger: LedgerPort,
    store: WeightStore,
    counters: SamplerCounters,
    phases: Phases,
    events: Events,
    clock: Clock,
    on_ratios: OnRatios = lambda ratios: None,
) -> Learn:
    """The learner's turns as configured, whoever serves the batches."""
    return Learn(
        learner=learner,
        ledger=ledger,
        store=store,
        lessons=lessons(config, policy),
        audit_every=config.evaluation.every_steps,
        counters=counters,
        phases=phases,
        events=events,
        clock=clock,
        peak_flops=learner.peak_flops,
        on_ratios=on_ratios,
    )


def lessons(config: RunConfig, policy: Policy) -> Lessons:
    """What the configuration teaches beside the verdicts."""
    objective = config.objective
    gae = Gae(gamma=objective.gamma, decay=objective.gae_lambda, whiten=objective.whiten_advantages)
    return Lessons(
        advantage=gae if objective.advantage == "gae" else ADVANTAGES[objective.advantage],
        shaping=Shaping(
            max_new_tokens=config.sampling.max_new_tokens,
            overlong_tokens=objective.overlong_tokens,
            kl_coefficient=objective.kl_coefficient if objective.kl_in == "reward" else 0.0,
            kl_estimator=objective.kl_estimator,
        ),
        scores_reference=needs_reference(objective),
        corpora=policy.corpora,
        samples=config.has_rollouts,
    )


def sampling_rules(config: RunConfig) -> SamplingRules:
    """How the configuration draws its training samples."""
    return SamplingRules(
        seed=config.run.seed,
        group_size=config.batch.group_size,
        max_new_tokens=config.sampling.max_new_tokens,
        temperature=config.sampling.temperature,
        pinned=config.mode.kind != "inflight",
    )


def collector(config: RunConfig, shape: Shaped, engine: Engine, run_id: str, lineage: int) -> Collector:
    """What turns an engine's samples into rollouts."""
    return Collector(
        run_id=run_id,
        seed=config.run.seed,
        lineage=lineage,
        sampler_id=engine.id,
        sampler_class=engine.sampler_class,
        codec=shape.task.tokenizer,
    )


def evaluation(config: RunConfig, policy: Policy, clock: Clock) -> Callable[[WeightVersion], EvaluationResult]:
    """A function from weights to their held-out score, with an engine of its own, made at the first call."""
    prompts = policy.task.held_out(config.evaluation.prompts)
    plan = evaluation_plan(config, policy.task)
    slots = config.evaluation.slots or config.sampling.slots
    engines: list[Engine] = []

    def run(weights: WeightVersion) -> EvaluationResult:
        if not engines:
            engines.append(build_engine(config, policy, clock, "evaluator", slots))
        task = policy.task
        with closing(open_environments(task, clock=clock)) as host:
            return evaluate(sampler=engines[0], weights=weights, prompts=prompts, environments=host, codec=task.tokenizer, plan=plan)

    return run
