"""The order in which a rule asks its questions: the same for every rule, so that rules that begin alike
share a prefix.

First what belongs before the core, then what comes after it; in each, cheap questions before dear ones, and
near positions before far ones. A loop comes when nothing can be asked without it, and what depends on it,
after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from rewriter.compiler.questions import Lanes, Loop, Question, Space, Step


def ordered(
    questions: Mapping[Step, bool], has_core: bool, space: Space, node_positions: Collection[int]
) -> list[tuple[Step, bool]]:
    """The steps in order, each with whether its failing is a decline.

    `questions` says of each whether it belongs before the core.
    """
    placed = (space.positions[p] for p in node_positions)
    funnels = {p.parent for p in placed if p.kind == "user"}  # their one consumer is looked at only if it is one

    def key(step: Step, early: bool) -> tuple[int, int, int, str]:
        late = 1 if has_core and not early else 0
        if isinstance(step, Question):
            if step.kind in ("uses", "inner") and step.positions[0] in funnels:
                return (late, -1, step.positions[0], step.kind)
            return (late, step.cost, max(step.positions), f"{step.kind} {step.argument!r}")
        return (late, 3 if isinstance(step, Loop) else 7, step.position, repr(step))

    waiting: list[tuple[tuple[int, int, int, str], Step, frozenset[int]]] = []
    for step, early in questions.items():
        needs: frozenset[int] = frozenset()
        for position in step_positions(step):
            needs |= needed_loops(space, position)
        waiting.append((key(step, early), step, needs))
    waiting.sort(key=lambda item: item[0])
    done: set[int] = set()
    result: list[tuple[Step, bool]] = []
    heap: list[tuple[tuple[int, int, int, str], int]] = []
    blocked: list[int] = []
    for index, (k, _, needs) in enumerate(waiting):
        if needs <= done:
            heapq.heappush(heap, (k, index))
        else:
            blocked.append(index)
    while heap:
        k, index = heapq.heappop(heap)
        step = waiting[index][1]
        result.append((step, has_core and k[0] == 1))
        new = step.number if isinstance(step, Loop) else None
        if isinstance(step, Lanes):
            new = -1 - space.position("lanes", step.position, step.lane, "m")
        if new is not None:
            done.add(new)
            still: list[int] = []
            for other in blocked:
                if waiting[other][2] <= done:
                    heapq.heappush(heap, (waiting[other][0], other))
                else:
                    still.append(other)
            blocked = still
    return result


def needed_loops(space: Space, position: int) -> frozenset[int]:
    """The loops and lanes that must run before a position is known (inside a lane its own start is known)."""
    found: set[int] = set()
    while position >= 0:
        place = space.positions[position]
        if place.kind == "lane":
            break
        if place.kind == "lanes":
            found.add(-1 - position)
        elif place.kind in ("operand", "any_user"):
            found.add(max(place.loops - space.positions[place.parent].loops, default=0))
        position = place.parent
    return frozenset(found)


def step_positions(step: Step) -> tuple[int, ...]:
    if isinstance(step, Question):
        return step.positions
    if isinstance(step, Lanes):
        return (step.position, *step.outer)
    return (step.position,)
