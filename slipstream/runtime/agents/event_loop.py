"""An event loop in a daemon thread, for code that is called from others. Called by `agents.host`."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
STOP_S = 5.0  # for what is cancelled at the end


class EventLoop:
    """Runs until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Soon, in the loop's thread."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine's end."""
        return self.submit(coroutine).result()

    def stop(self) -> None:
        """Cancel what runs. A loop that something blocks is left behind: its thread ends with the process."""
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S / 2)
        self._loop.call_soon(self._loop.stop)
