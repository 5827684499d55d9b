"""The first thing of a run: its directory, taken. Needs no jax, so that a wrong call is refused at once. Called by the command line."""

from contextlib import suppress
from pathlib import Path

from slipstream.config.load import dump_config, parse_config
from slipstream.config.schema import RunConfig
from slipstream.core.errors import UsageError
from slipstream.telemetry.run_directory import RunDirectory


def open_run(config: RunConfig, path: Path, resume: bool) -> tuple[RunConfig, RunDirectory]:
    """The locked directory of a new run, or of the one to go on with (whose own configuration counts).

    Raises UsageError when it is taken, absent, in use, damaged or cannot be.
    """
    try:
        directory = RunDirectory.open(path) if resume else RunDirectory.create(path, dump_config(config))
        directory.lock()
        return (parse_config(directory.config.read_text()) if resume else config), directory
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be used: {error}") from error


def discard_run(directory: RunDirectory) -> None:
    """Undo `open_run` for a new run that was refused before it began, so that the corrected call finds the place free."""
    if directory.events.exists():
        return
    directory.config.unlink()
    (directory.path / "run.lock").unlink()
    for path in (directory.rollouts, directory.checkpoints, directory.logs, directory.path):
        with suppress(OSError):  # someone else's files are in it
            path.rmdir()
