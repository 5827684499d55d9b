"""The process of `slipstream learner`: joins by URL, trains on the batches it is handed, serves its weights, keeps the checkpoints.

It writes metrics, rollouts, evaluations and checkpoints into the run directory; events go through the coordinator. Killed at any moment
it goes on from its newest checkpoint, and is handed the very batches again that it was handed after that.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from slipstream.config.load import parse_config
from slipstream.config.schema import RunConfig
from slipstream.core.errors import UsageError
from slipstream.core.records import Progress
from slipstream.loop.learn import Learn, SamplerCounters, StepReport
from slipstream.loop.phases import Phases
from slipstream.models.weight import Precision
from slipstream.runtime.assembly import build_engine, build_learn, evaluation, longest
from slipstream.runtime.devices import configure_jax
from slipstream.runtime.embedded import Embedded, Roles
from slipstream.runtime.failures import failures_logged
from slipstream.runtime.join.address import JoinSettings
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.runtime.learning import Job, Parts
from slipstream.runtime.outcome import Interrupted
from slipstream.runtime.policy import Policy, open_policy
from slipstream.runtime.processes.announcer import Announcer
from slipstream.runtime.processes.canary import CanaryStore, canary
from slipstream.runtime.processes.participant import Participant
from slipstream.runtime.recorder import Recorder
from slipstream.runtime.stop import StopFlag
from slipstream.telemetry.progress import Progress as ProgressView
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.run_lock import RunLock
from slipstream.train.checkpoint import newest_checkpoint
from slipstream.train.learner import Learner
from slipstream.train.placement import configured_placement
from slipstream.weights.chunks import ChunkStore
from slipstream.weights.published_store import PublishedStore
from slipstream.weights.snapshot import WireDtype


def learn(settings: JoinSettings, run_dir: Path | None, progress: ProgressView, stop: StopFlag) -> None:
    """Train to the last step. Raises Interrupted when `stop` is set.

    Raises UsageError when the coordinator refuses to be joined or the run's directory is not here, RunFailed when it cannot go on.
    """
    configure_jax()
    import jax

    participant = Participant("learner", settings, {"device": jax.default_backend()}, stop)
    leaves = False  # one that failed is expected back: the run is not over though its last batch may be trained
    try:
        directory = _directory(participant, run_dir)
        lock = RunLock(directory.path / "learner.lock")
        lock.acquire()
        try:
            with failures_logged(directory.logs / "learner.log"):
                _Learning(participant, directory, progress, stop).run()
            leaves = True
        except Interrupted:
            leaves = True
            raise
        finally:
            lock.release()
    finally:
        participant.end(leaves=leaves)


class _Learning:
    """One start of a learner."""

    def __init__(self, participant: Participant, directory: RunDirectory, progress: ProgressView, stop: StopFlag) -> None:
        self._one, self._directory, self._progress, self._stop = participant, directory, progress, stop
        config, clock, events = participant.config, participant.clock, participant.events
        configured_placement(config.mesh)
        self._phases = Phases("learner", clock, events)
        self._phases.enter("start")
        self._ledger = RemoteLedger(participant.seat, clock)
        participant.keep_lease(self._pulse, dict, lambda: None)

    def run(self) -> None:
        one, config, directory, progress = self._one, self._one.config, self._directory, self._progress
        progress.start(f"{config.run.recipe} · {config.mode.kind} · seed {config.run.seed}", config.run.steps)
        progress.note(f"{one.name} joined run {one.seat.joined.run_id} at {one.caller.url}; run directory {directory.path}")
        progress.phase("building the model")
        policy = open_policy(config)
        checkpoint = newest_checkpoint(directory.checkpoints)
        if checkpoint and checkpoint.step >= config.run.steps:
            progress.note(f"already finished: {checkpoint.step} steps are done")
            return
        step = checkpoint.step if checkpoint else 0
        directory.truncate_after(step if checkpoint else -1, events=False)
        lineage = self._ledger.begin(step)
        recorder = Recorder(directory, one.clock, progress, one.events)
        chunks = ChunkStore(keep=config.mode.eta + 2)
        one.server.start(chunks)
        announcer = Announcer(self._ledger, one.caller, one.weights_url, keep=config.mode.eta + 2, computed_by=_computed_by(config))
        store = PublishedStore(
            chunks=chunks,
            keep=config.mode.eta + 2,
            announce=announcer.announce,
            events=one.events,
            clock=one.clock,
            wire_dtype=wire_dtype(config.sampling.precision),
        )
        try:
            evaluator = Phases("evaluator", one.clock, one.events)
            parts = self._parts(policy, store, lineage, recorder, announcer, evaluator)
            job = Job(
                config=config,
                policy=policy,
                directory=directory,
                recorder=recorder,
                progress=progress,
                clock=one.clock,
                run_id=one.seat.joined.run_id,
            )
            watchdog = one.watch([self._phases, evaluator])
            try:
                job.run(parts, checkpoint, self._stop)
            finally:
                watchdog.close()
            store.flush()
        finally:
            recorder.close()

    def _parts(
        self, policy: Policy, published: PublishedStore, lineage: int, recorder: Recorder, announcer: Announcer, evaluator: Phases
    ) -> Parts:
        config, clock, events, ledger = self._one.config, self._one.clock, self._one.events, self._ledger
        learner = Learner(config, policy.spec, policy.params, lineage, policy.reference)
        drawn = canary(policy.spec, longest(config, policy))
        store = CanaryStore(store=published, learner=learner, canary=drawn, expect=announcer.expect)
        counters = SamplerCounters(tokens=lambda: ledger.drawn.tokens, wait_s=lambda: ledger.drawn.wait_s)
        learn = build_learn(
            config,
            policy,
            learner=learner,
            ledger=ledger,
            store=store,
            counters=counters,
            phases=self._phases,
            events=events,
            clock=clock,
            on_ratios=ledger.ratios,
        )
        roles = Roles(
            learn=_Attentive(learn=learn, announcer=announcer, participant=self._one),
            dispatch=None,
            evaluate=evaluation(config, policy, clock),
            ledger=ledger,
            tickets=dict,
            learner_phases=self._phases,
            sampler_phases=self._phases,
            evaluator_phases=evaluator,
            clock=clock,
        )
        return Parts(
            learner=learner,
            store=store,
            drive=Embedded(roles, self._stop, recorder.evaluation),
            tested=build_engine(config, policy, clock, "self-test", config.sampling.slots, events),
            phases=self._phases,
            lineage=lineage,
            sync=ledger.sync,
            forget=ledger.forget_before,
        )

    def _pulse(self) -> Progress:
        return Progress(phase=self._phases.current, phase_s=max(0.0, self._phases.waited_s()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attentive:
    """A learner's turn that also looks at what else its process has to do."""

    learn: Learn
    announcer: Announcer
    participant: Participant

    def turn(self) -> StepReport | None:
        self.participant.check()
        self.announcer.look()
        return self.learn.turn()


def _computed_by(config: RunConfig) -> str:
    """The learner's arithmetic, in the words of `Engine.sampler_class`."""
    from slipstream.models.quant import arithmetic

    return arithmetic(config.model.learner_precision, config.model.numerics == "exact")


def wire_dtype(precision: Precision) -> WireDtype:
    """What samplers of this precision lose nothing by: bfloat16 ones round to it anyway; eight bits are made of what the learner has."""
    return "bfloat16" if precision == "bf16" else "as_is"


def _directory(one: Participant, run_dir: Path | None) -> RunDirectory:
    """Where the run's files are: the coordinator's directory, or a given one on another machine."""
    joined = one.seat.joined
    if run_dir is not None:
        if not (run_dir / "run.toml").exists():
            return RunDirectory.create(run_dir, joined.config)
        directory = RunDirectory.open(run_dir)
    elif joined.host == socket.gethostname() and Path(joined.run_dir).is_dir():
        directory = RunDirectory.open(Path(joined.run_dir))
    else:
        raise UsageError(f"the run's directory {joined.run_dir} is on {joined.host}; give --run-dir: where to keep checkpoints and metrics")
    if parse_config(directory.config.read_text()) != one.config:
        raise UsageError(f"{directory.path} holds another run than {joined.run_id}: its run.toml differs from the coordinator's")
    return directory
