"""A long poll: an answer that is not there yet is waited for. On the event loop; called by `coordinator.app` and `verdict_desk`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


async def long_poll(
    look: Callable[[], Awaitable[Result | None]], change: Callable[[], asyncio.Event], wait_s: float, closing: Callable[[], bool]
) -> Result | None:
    """What `look` finds, now or after a change within the time; None when the time is up or the coordinator closes.

    `change` gives the event of the next change, and is asked before each look, so that nothing between the two is missed.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    while True:
        changed = change()
        found = await look()
        left_s = until_s - loop.time()
        if found is not None or left_s <= 0 or closing():
            return found
        try:
            async with asyncio.timeout(left_s):
                await changed.wait()
        except TimeoutError:
            continue
