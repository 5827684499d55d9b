"""What must be true of a run that has ended, whoever was killed: checked from its journal and what it wrote. Reads files, changes none.

Called by `slipstream bench chaos` and by tests. That the journal is executed again to the same result is `slipstream replay`'s to say.
"""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

from slipstream.config.schema import RunConfig
from slipstream.core.errors import RunFailed, TransitionError
from slipstream.core.records import Fate
from slipstream.ledger.events import Batched
from slipstream.ledger.journal import Journal
from slipstream.ledger.state import LedgerState
from slipstream.ledger.transition import apply
from slipstream.runtime.ledger_policy import ledger_policy
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.run_directory import RunDirectory

Trained = tuple[int, int]  # ticket index, sample index


def broken_promises(config: RunConfig, run_dir: Path) -> list[str]:
    """One line for each promise that does not hold of a finished run; none where all is well."""
    directory, steps = RunDirectory.open(run_dir), config.run.steps
    try:
        state, batches = _played(directory.journal, LedgerState(policy=ledger_policy(config)))
    except (RunFailed, TransitionError) as error:
        return [f"the journal cannot be played: {error}"]
    found: list[str] = []

    def must(holds: bool, otherwise: str) -> None:
        if not holds:
            found.append(otherwise)

    must(state.version == state.batched == steps, f"the journal ends at version {state.version} with {state.batched} batches, not {steps}")
    must(sorted(step for step, _ in batches) == list(range(steps)), f"batches were fixed for steps {[step for step, _ in batches]}")
    twice = [ticket for ticket, times in Counter(ticket for _, members in batches for ticket in members).items() if times > 1]
    must(not twice, f"tickets {twice} are in more than one batch")
    balance = state.balance()
    must(sum(balance.values()) == state.issued, f"tickets {balance} are not the {state.issued} ever issued")
    rows = [row["step"] for row in read_jsonl(directory.metrics)]
    must(rows == list(range(1, steps + 1)), f"metrics.jsonl has steps {rows}")
    found += _of_rollouts(directory.rollouts, batches, config.mode.eta)
    return found


def _played(path: Path, state: LedgerState) -> tuple[LedgerState, list[tuple[int, tuple[int, ...]]]]:
    """The state at the journal's end, from its very first event on, and each batch as it was fixed."""
    batches: list[tuple[int, tuple[int, ...]]] = []
    with closing(Journal(path)) as journal:
        for event in journal.events():
            state = apply(event, state)
            if isinstance(event, Batched):
                batches.append((event.step, tuple(event.members)))
    return state, batches


def _of_rollouts(folder: Path, batches: list[tuple[int, tuple[int, ...]]], eta: int) -> list[str]:
    """What was trained on, as the learner wrote it down, against the batches of the journal."""
    import pyarrow.parquet as pq

    found: list[str] = []
    seen = Counter[Trained]()
    for step, members in batches:
        path = folder / f"{step:06d}.parquet"
        if not path.exists():
            found.append(f"the rollouts of batch {step} are not on disk")
            continue
        rows = pq.read_table(path, columns=["ticket_index", "sample_index", "fate", "versions"]).to_pylist()
        trained = [row for row in rows if row["fate"] == Fate.TRAINED]
        if strange := {row["ticket_index"] for row in trained} - set(members):
            found.append(f"step {step + 1} trained on tickets {sorted(strange)}, which are not in its batch")
        if old := [row["ticket_index"] for row in trained if not 0 <= step - min(row["versions"]) <= eta]:
            found.append(f"step {step + 1} trained on samples of tickets {old} that are older than {eta}")
        seen.update((row["ticket_index"], row["sample_index"]) for row in trained)
    if twice := [key for key, times in seen.items() if times > 1]:
        found.append(f"samples {twice} were trained on more than once")
    return found


def final_weights(run_dir: Path) -> str:
    """SHA-256 of the last checkpoint's parameters."""
    newest = max(path for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit())
    return json.loads((newest / "manifest.json").read_text())["files"]["params.safetensors"]["sha256"]
