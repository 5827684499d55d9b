"""Threads that can be left behind: work that blocks and may never come back must hold up neither its neighbours nor the exit."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """Up to `most` daemon threads, started as they are needed. An abandoned job's thread no longer counts, and ends with its job."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._alive = self._idle = self._made = 0  # alive: those that count
        self._running: set[Future[Any]] = set()
        self._abandoned: set[Future[Any]] = set()
        self._closed = False

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Begin a job as soon as a thread is free. After `close` it never begins."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            self._jobs.put((future, function))
            if self._jobs.qsize() > self._idle and self._alive < self._most:
                self._start()
        return future

    def abandon(self, future: "Future[Any]") -> None:
        """Nobody waits for the job any more; where it runs, another thread takes the place of its own."""
        future.cancel()
        with self._lock:
            if future in self._running:
                self._abandoned.add(future)
                self._alive -= 1
                if self._jobs.qsize() > self._idle and not self._closed:
                    self._start()

    def close(self) -> None:
        """Idle threads end, the others with their jobs. Waits for nothing."""
        with self._lock:
            self._closed = True
            for _ in range(self._alive):
                self._jobs.put(None)

    def _start(self) -> None:
        self._alive += 1
        self._made += 1
        threading.Thread(target=self._serve, name=f"{self._name}-{self._made}", daemon=True).start()

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            future, function = job
            if not future.set_running_or_notify_cancel():
                continue
            with self._lock:
                self._running.add(future)
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - for whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)
            with self._lock:
                self._running.discard(future)
                if future in self._abandoned:
                    self._abandoned.discard(future)
                    return

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            self._idle += 1
        job = self._jobs.get()
        with self._lock:
            self._idle -= 1
        return job
