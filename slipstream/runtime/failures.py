"""What ends a run badly, told twice: the cause to the person, everything to the log."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.core.errors import RunFailed, SlipstreamError, UsageError


@contextmanager
def failures_logged(log: Path) -> Iterator[None]:
    """Any failure in this context goes to `log` with its traceback and comes out as a RunFailed that names cause and log.

    Usage errors pass as they are: nothing has run yet.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        with suppress(OSError), log.open("a") as file:  # the disk may be what failed
            file.write("".join(traceback.format_exception(error)))
        cause = str(error) if isinstance(error, SlipstreamError) else f"{type(error).__name__}: {error}"
        raise RunFailed(f"{cause}\nlog: {log}") from error
