"""Pieces of a large tensor, worked on by all processors.

numpy lets go of the interpreter's lock while it works on an array, so threads are enough, and the pieces are
independent: what comes out does not depend on how many there are. A small tensor is not worth a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SMALL = 1 << 20
"""Elements below which one thread does everything."""

_MOST = 8  # each holds a few MiB, and by then memory is what all of them wait for

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_parallel(work: Callable[[Piece], Result], pieces: Sequence[Piece], size: int) -> list[Result]:
    """What work gives for each of the pieces, in their order. size: how many elements they have together.

    An exception of a piece is raised. `numpy.errstate` of the caller does not reach work.
    """
    workers = min(_MOST, len(pieces), processors()) if size >= SMALL else 1
    if workers <= 1:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, pieces))


def processors() -> int:
    """How many this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1
