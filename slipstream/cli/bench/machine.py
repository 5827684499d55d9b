"""What machine a figure was measured on; part of every benchmark's output."""

import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """Cores, processor, Python and jax versions, device, and the load when asked."""
    import jax

    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
