"""Time, as ratios: works take turns, so that what else the machine does meets all alike.

A figure of one machine says little and a ratio much, but only if both its parts were measured side by side. So every
benchmark hands all its works to `medians` at once. The garbage collector runs as it would for a user, but each work
starts with a clean slate.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable

import numpy as np

RUNS = 5


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one run; what it returned is freed after the clock has stopped."""
    gc.collect()
    start = time.perf_counter()
    kept = work()
    passed = time.perf_counter() - start
    del kept
    return passed


def medians(*works: Callable[[], object], runs: int = RUNS) -> list[float]:
    """Seconds of each work, the median of `runs` rounds in which all take turns."""
    times = np.array([[seconds(work) for work in works] for _ in range(runs)])
    return [float(t) for t in np.median(times, axis=0)]


def machine() -> str:
    """What this runs on, for the head of a table."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}"
