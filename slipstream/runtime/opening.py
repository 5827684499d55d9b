"""The first thing of a run: its directory, taken. Needs no jax, so that a wrong call is refused at once. Called by the command line."""

from contextlib import suppress
from pathlib import Path

from slipstream.config.compare import changes
from slipstream.config.load import dump_config, parse_config
from slipstream.config.schema import RunConfig
from slipstream.core.errors import ConfigError, UsageError
from slipstream.telemetry.run_directory import RunDirectory


def open_run(config: RunConfig | None, path: Path, resume: bool) -> tuple[RunConfig, RunDirectory]:
    """The locked directory of a new run, or of the one to go on with, whose own configuration counts.

    With `resume`, `config` may be None; one that differs from the run's is refused with all differences (ConfigError). Raises
    UsageError when the directory is taken, absent, in use, damaged or cannot be.
    """
    try:
        if not resume:
            assert config is not None, "a new run needs a configuration"
            directory = RunDirectory.create(path, dump_config(config))
            directory.lock()
            return config, directory
        directory = RunDirectory.open(path)
        directory.lock()
        begun = parse_config(directory.config.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be used: {error}") from error
    if config is not None and (different := changes(begun, config)):
        directory.release()
        raise ConfigError(different)
    return begun, directory


def discard_run(directory: RunDirectory) -> None:
    """Undo `open_run` for a new run that was refused before it began, so that the corrected call finds the place free."""
    if directory.events.exists():
        return
    directory.config.unlink()
    (directory.path / "run.lock").unlink()
    for path in (directory.rollouts, directory.checkpoints, directory.logs, directory.path):
        with suppress(OSError):  # someone else's files are in it
            path.rmdir()
