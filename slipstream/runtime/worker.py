"""A thread that never dies silently: what falls in it is kept for whoever watches."""

import threading
from collections.abc import Callable


class Worker:
    """Runs `body` in a thread of its own. `failure` is what ended it, None while all is well."""

    def __init__(self, name: str, body: Callable[[], None], on_end: Callable[[], None]) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._body, self._on_end = body, on_end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """True when the thread has ended within the time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise what the thread died of, if it did."""
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 - kept and raised again by `check`
            self.failure = error
        finally:
            self._on_end()
