"""`slipstream replay`: a run executed again from what it recorded."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.core.errors import UsageError


def replay_command(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    steps: Annotated[str | None, typer.Option(help="First and last learner step, A:B; default all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as one JSON object.")] = False,
) -> None:
    """Draw and train a run's recorded batches again and compare tokens, log-probs, losses and weights; exit 1 at the first difference.

    Example: slipstream replay runs/quickstart-1 --steps 20:40
    """
    from slipstream.runtime.devices import configure_jax
    from slipstream.runtime.export import read_run_config
    from slipstream.runtime.replay import Replay
    from slipstream.telemetry.run_directory import RunDirectory

    configure_jax()
    directory = RunDirectory.open(run)
    replay = Replay(directory, read_run_config(directory), _range(steps))
    done = [_tell(repeated) for repeated in replay.run()]
    total: dict[str, Any] = {
        name: sum(one[name] for one in done) for name in ("turns", "tokens", "equal_logprobs", "taken_over", "skipped")
    }
    found = {"run": str(run), "first": replay.first, "last": replay.last, **total}
    found |= {"gap": max((one["gap"] for one in done), default=0.0), "weights": [one["step"] for one in done if one["weights"]]}
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(
            f"{run}: steps {replay.first} to {replay.last} are as recorded: {found['tokens']:,} tokens of {found['turns']:,} turns "
            f"({found['taken_over']} taken over, {found['skipped']} not drawn again), {found['equal_logprobs']:,} log-probs equal to "
            f"the bit, largest gap {found['gap']:.1e} nats; weights equal at {', '.join(map(str, found['weights'])) or 'no'} checkpoint"
        )


def _range(steps: str | None) -> tuple[int, int] | None:
    if steps is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", steps)
    if match is None:
        raise UsageError(f"--steps {steps}: give first and last step, such as 20:40")
    return int(match[1]), int(match[2])


def _tell(repeated: Any) -> dict[str, Any]:
    found = asdict(repeated)
    where = ", weights" if repeated.weights else ""
    equal = f"{repeated.equal_logprobs} of {repeated.tokens} log-probs to the bit"
    print(f"step {repeated.step}: equal ({repeated.tokens} tokens, {equal}{where})", file=sys.stderr)
    return found
