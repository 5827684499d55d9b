"""A server under load for minutes: nothing lost, memory flat. SLIPSTREAM_SOAK_S sets how long (30 s unless told)."""

import asyncio
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.runtime.serving import Running, serving

SOAK_S = float(os.environ.get("SLIPSTREAM_SOAK_S", "30"))
CLIENTS = 200
WARM_SHARE = 0.3  # of the time, before memory is first measured: allocators fill their pools
GROWTH_BYTES = 24 << 20  # allowed from then to the end; a leak of one request's data would be hundreds of MB in ten minutes


def resident_bytes(server: Running) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


async def client_life(client: openai.AsyncOpenAI, number: int, until_s: float, counts: dict[str, int]) -> None:
    """Requests one after the other, one in eight given up in the middle."""
    rng = random.Random(number)
    while time.monotonic() < until_s:
        fields: dict[str, Any] = {"model": "tiny", "prompt": "x" * rng.randrange(1, 60), "max_tokens": rng.randrange(1, 64), "seed": number}
        stream = await client.completions.create(**fields, stream=True)
        leaves = rng.random() < 1 / 8
        finish = None
        async for chunk in stream:
            finish = chunk.choices[0].finish_reason
            if leaves:
                break
        await stream.close()
        counts["left" if leaves else "finished" if finish else "lost"] += 1


@pytest.mark.slow
def test_memory_is_flat_and_nothing_is_lost(tmp_path: Path) -> None:
    counts = {"finished": 0, "left": 0, "lost": 0}
    with serving(tmp_path, "--slots", "16", "--max-tokens", "128") as server:

        async def body() -> list[int]:
            begun, sizes = time.monotonic(), []
            async with server.async_client() as client:
                lives = [asyncio.create_task(client_life(client, number, begun + SOAK_S, counts)) for number in range(CLIENTS)]
                for share in (WARM_SHARE, 0.5, 0.75, 1.0):
                    await asyncio.sleep(max(0.0, begun + share * SOAK_S - time.monotonic()))
                    sizes.append(resident_bytes(server))
                await asyncio.gather(*lives)
            return sizes

        sizes = asyncio.run(body())
        server.wait_idle()
        tokens = server.figure("completion_tokens_total")
        print(f"{counts}, {tokens / SOAK_S:.0f} tokens/s, resident MiB {[size >> 20 for size in sizes]}")
        assert counts["lost"] == 0
        assert counts["finished"] > CLIENTS
        assert sizes[-1] - sizes[0] < GROWTH_BYTES
        server.stop()
