"""The cyclic garbage collector, paused while a model is read, rewritten and written.

A model in memory is hundreds of thousands of small objects, all alive. Each time that some more of them were made,
CPython's collector walks through all of them to find cycles which are not there: three quarters of the time that it
takes to read a large model, and more with each rewrite. What has no cycles is freed by its reference count as ever.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_running = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector of this process until the last of all threads leaves; then it is as it was before."""
    global _running, _was_enabled
    with _lock:
        if _running == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0 and _was_enabled:
                gc.enable()
