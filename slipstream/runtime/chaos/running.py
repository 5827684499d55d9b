"""A run of several processes, all of whose ways go through a proxy, with a schedule of faults: what `slipstream bench chaos` does.

Coordinator, learner and samplers are the real commands under the real supervisor. Called by the command line and by tests.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from slipstream.config.schema import RunConfig
from slipstream.core.errors import RunFailed
from slipstream.runtime.chaos.director import Director, Done
from slipstream.runtime.chaos.faults import COORDINATOR, LEARNER, Fault, sampler_names, to_coordinator, weights_of
from slipstream.runtime.chaos.proxy import Proxy
from slipstream.runtime.chaos.small_disk import SmallDisk
from slipstream.runtime.opening import open_run
from slipstream.runtime.processes.supervisor import Role, Supervisor, command_role, free_port
from slipstream.runtime.stop import StopFlag
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.run_directory import RunDirectory

# Of a piece on the learner's way to the coordinator. At least two requests a step: so a step lasts for a second or two however fast
# the machine is, and a fault that lasts for seconds is over before the schedule's next is due.
LATENCY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A run that has ended."""

    run_dir: Path
    seconds: float  # from its start to the end of the last process
    done: Sequence[Done]
    deaths: int  # of processes, that the supervisor took note of
    faults_told: dict[str, int]  # of fetched weights, by cause, as the samplers' events say


def disturbed_run(
    config: RunConfig,
    run_dir: Path,
    schedule: Sequence[Fault],
    *,
    samplers: int,
    lease_s: float,
    seed: int,
    disk: SmallDisk | None = None,
    learner_dir: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Disturbed:
    """A new run to its end. Raises RunFailed when it does not come there.

    `disk`: what is filled, where the schedule says so. `learner_dir`: where the learner keeps its files, as on a machine of its own.
    """
    _, directory = open_run(config, run_dir, resume=False)
    directory.release()  # for the coordinator to take
    started_s = time.monotonic()
    with closing(Proxy(seed)) as proxy:
        port = free_port()
        roles = wired(run_dir, learner_dir or run_dir, port, samplers, lease_s, proxy)
        director = Director(
            schedule,
            roles=roles,
            journal=directory.journal,
            metrics=RunDirectory(learner_dir or run_dir).metrics,
            proxy=proxy,
            disk=disk,
            seed=seed,
            tell=tell,
        )
        supervisor = Supervisor(run_dir, f"http://127.0.0.1:{port}", roles, StopFlag(), director.look, tell)
        if not supervisor.run():
            raise RunFailed(f"the run in {run_dir} was stopped")
        director.end()
    causes = [row["cause"] for row in read_jsonl(directory.events) if row["kind"] == "weights_fault"]
    return Disturbed(
        run_dir=run_dir,
        seconds=time.monotonic() - started_s,
        done=director.done,
        deaths=sum(row["kind"] == "role_died" for row in read_jsonl(directory.events)),
        faults_told={cause: causes.count(cause) for cause in sorted(set(causes))},
    )


def wired(run_dir: Path, learner_dir: Path, port: int, samplers: int, lease_s: float, proxy: Proxy) -> list[Role]:
    """The roles of a run, its coordinator at a port; each reaches it, and the others its weights, over routes of the proxy."""

    def worker(name: str, *arguments: str) -> Role:
        latency_s = LATENCY_S if name == LEARNER else 0.0
        join = f"http://127.0.0.1:{proxy.route(to_coordinator(name), port, latency_s=latency_s)}"
        serves = free_port()
        advertised = f"http://127.0.0.1:{proxy.route(weights_of(name), serves)}"
        places = ("--host", "127.0.0.1", "--port", str(serves), "--advertise", advertised)
        return command_role(name, *arguments, "--join", join, "--name", name, *places)

    return [
        command_role(COORDINATOR, "coordinator", "--run-dir", str(run_dir), "--port", str(port), "--lease", f"{lease_s:g}"),
        worker(LEARNER, "learner", "--run-dir", str(learner_dir)),
        *(worker(name, "sampler") for name in sampler_names(samplers)),
    ]
