"""Asking one variant everything at one node: the nearest partial match, and what it misses.

The steps are those of the matcher, in its order, but a "no" does not end the walk: it is written down, and what hangs
on it is left out (below a node of the wrong type nothing means anything). So what is missed are separate reasons, and
their number says how near the place is. Where there are several ways (the two orders of operands, the users of a
value) the way that misses least is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rewriter.compiler.lower import Lane, Lowered
from rewriter.compiler.ordering import step_positions
from rewriter.compiler.probes import Probes
from rewriter.compiler.questions import Lanes, Loop, Question, Space, Step
from rewriter.engine import walk
from rewriter.engine.table import Table
from rewriter.errors import ModelError

MOST_MISSES = 3  # with more, a place is not near, and the walk ends
MOST_USERS = 64
MOST_WAYS = 4096

BREAKS = frozenset({"op", "present", "slot"})  # after a no, what stands there means nothing


@dataclass(frozen=True)
class Miss:
    """A question that failed, and what stood at its positions. lane: where it was asked, inside a repeated part."""

    question: Question
    seen: tuple[int, ...]
    lane: Lane | None = None
    value: int = 0  # that no node produces, where one is expected
    passed: tuple[str, ...] = ()  # ops of a chain that ends there

    @property
    def rank(self) -> int:
        """Of equally near ways, that is meant whose miss is most elementary: something is left out or too much, another
        node stands there, a condition does not hold, no node is there at all (where another way expects a constant)."""
        if self.question.kind == "op":
            return 1 if any(self.seen) else 3
        return 0 if self.question.kind in ("present", "absent") else 2


@dataclass
class Walked:
    """A way through the steps: what it missed, how many questions held (and of those, how many found a node), how many
    could not be asked as they hang on what was missed, and how many were not asked any more."""

    misses: list[Miss] = field(default_factory=list)
    held: int = 0
    nodes: int = 0
    hanging: int = 0
    left: int = 0
    at: dict[int, object] = field(default_factory=dict)  # what stands at each position

    @property
    def distance(self) -> tuple[int, int, int, int]:
        """Smaller is nearer: few misses, many nodes found, the more elementary miss, the larger pattern."""
        kinds = sum(miss.rank for miss in self.misses)
        return len(self.misses) + (1000 if self.left else 0), -self.nodes, kinds, -self.held - self.hanging


class Prober:
    """One variant's steps, on one table."""

    def __init__(self, table: Table, space: Space, probes: Probes) -> None:
        self.table = table
        self.space = space
        self.probes = probes
        self.ways = 0

    def probe(self, lowered: Lowered, node: int) -> Walked:
        """The nearest partial match with the anchor at this node."""
        self.ways = 0
        anchor = self.space.position("anchor", -1, None, "n")
        lanes = {lane.name: lane for lane in lowered.lanes}
        steps = [step for step, _ in lowered.steps]
        best = self.walk(steps, 0, Walked(at={anchor: node}), frozenset(), lanes, None, MOST_MISSES + 1)
        return best or Walked(left=len(steps))

    def walk(
        self,
        steps: Sequence[Step],
        start: int,
        so_far: Walked,
        broken: frozenset[int],
        lanes: dict[str, Lane],
        inside: Lane | None,
        limit: int,
    ) -> Walked | None:
        """The rest of the steps from a partial way; None where it would miss as many as `limit` or more."""
        found = replace(so_far, misses=list(so_far.misses), at=dict(so_far.at))
        for number in range(start, len(steps)):
            step = steps[number]
            positions = step_positions(step)
            if any(self.hangs_on(position, broken) for position in positions):
                found.hanging += 1
                continue
            fork = self.place(positions, found.at)
            if fork is None and isinstance(step, Loop):
                fork = self.loop(step, found.at)
            if fork is not None:
                return self.nearest(steps, number, found, broken, lanes, inside, limit, step, fork)
            if isinstance(step, Question):
                seen = tuple(found.at[p] for p in positions)
                if self.answer(step, seen):
                    found.held += 1
                    found.nodes += step.kind == "op"
                    continue
                found.misses.append(self.miss(step, tuple(v for v in seen if isinstance(v, int)), found.at, inside))
                if step.kind in BREAKS:
                    broken |= {positions[0]}
                if step.kind == "uses" and isinstance(seen[0], int) and not self.table.uses[seen[0]]:
                    broken |= {self.space.position("user", positions[0], None, "n")}
            elif isinstance(step, Lanes):
                broken = self.lanes(step, found, broken, lanes)
            if len(found.misses) >= limit:
                if limit > MOST_MISSES:
                    found.left = len(steps) - number - 1
                    return found
                return None
        return found

    def nearest(
        self,
        steps: Sequence[Step],
        number: int,
        found: Walked,
        broken: frozenset[int],
        lanes: dict[str, Lane],
        inside: Lane | None,
        limit: int,
        step: Step,
        fork: list[dict[int, object]],
    ) -> Walked | None:
        """The way that misses least."""
        after = number + 1 if isinstance(step, Loop) else number
        if not fork:  # nothing to try
            missed = replace(found, misses=[*found.misses, self.nothing(step, found)])
            gone = broken | set(self.defined(step) if isinstance(step, Loop) else step_positions(step))
            return self.walk(steps, number + 1, missed, gone, lanes, inside, limit)
        best: Walked | None = None
        for way in fork:
            self.ways += 1
            if best is not None and (self.ways > MOST_WAYS or len(best.misses) == len(found.misses)):
                break
            one = self.walk(
                steps,
                after,
                replace(found, at={**found.at, **way}),
                broken,
                lanes,
                inside,
                limit,
            )
            if one is not None and (best is None or one.distance < best.distance):
                best = one
                if not one.left:
                    limit = min(limit, len(one.misses))
        return best

    def nothing(self, step: Step, found: Walked) -> Miss:
        """What is missed where there is no way to try."""
        position = step_positions(step)[0]
        held = found.at.get(position, 0)
        seen = (held,) if isinstance(held, int) else ()
        return Miss(Question("uses", (position,), 1), seen)

    def defined(self, loop: Loop) -> tuple[int, ...]:
        """The positions that a loop defines, on which the rest hangs."""
        if loop.kind == "operand":
            return tuple(self.space.position("operand", loop.position, k, "v") for k in (0, 1))
        return (self.space.position(loop.kind, loop.position, loop.argument, "n"),)

    def miss(self, question: Question, seen: tuple[int, ...], at: dict[int, object], inside: Lane | None) -> Miss:
        """A miss; of a node behind a chain, what cut the chain short if that is the reason."""
        place = self.space.positions[question.positions[0]]
        if question.kind != "op" or place.kind != "producer":
            return Miss(question, seen, inside)
        value = at[place.parent]
        assert isinstance(value, int)
        behind = self.space.positions[place.parent]
        if behind.kind != "chain_end" or self.space.positions[behind.parent].kind != "chain_up":
            return Miss(question, seen, inside, value if not seen[0] else 0)
        ops = self.space.positions[behind.parent].argument
        if self.table.op[seen[0]] in ops:
            if self.table.output_count[value]:
                return Miss(Question("inner", (place.parent,)), (value,), inside)
            if len(self.table.uses[value]) != 1:
                return Miss(Question("uses", (place.parent,), 1), (value,), inside)
        return Miss(question, seen, inside, value if not seen[0] else 0, tuple(ops))

    def answer(self, question: Question, seen: Sequence[object]) -> bool:
        """Whether it holds; a constant that cannot be computed holds for nothing."""
        try:
            return bool(self.probes.answers[question](*seen))
        except ModelError:
            return False

    # -- where things are --------------------------------------------------------------------------

    def hangs_on(self, position: int, broken: frozenset[int]) -> bool:
        while position >= 0:
            if position in broken:
                return True
            position = self.space.positions[position].parent
        return False

    def place(self, positions: Sequence[int], at: dict[int, object]) -> list[dict[int, object]] | None:
        """Find where these positions are. Where one of them is a value's one consumer, and it has several, the ways."""
        for wanted in positions:
            path = []
            while wanted not in at:
                path.append(wanted)
                wanted = self.space.positions[wanted].parent
            for position in reversed(path):
                parent = at[self.space.positions[position].parent]
                if self.space.positions[position].kind == "user" and isinstance(parent, int):
                    users = list(dict.fromkeys(self.table.uses[parent]))[:MOST_USERS]
                    if len(users) > 1:
                        return [{position: user} for user in users]
                at[position] = self.probes.at[position](parent)
        return None

    def loop(self, loop: Loop, at: dict[int, object]) -> list[dict[int, object]]:
        held = at[loop.position]
        assert isinstance(held, int)
        if loop.kind == "operand":
            first = (*self.table.inputs[held], 0, 0)[:2]  # too many or too few: a question of its own says so
            return [dict(zip(self.defined(loop), order, strict=True)) for order in walk.both(first)]
        (user,) = self.defined(loop)
        return [{user: node} for node in list(dict.fromkeys(self.table.uses[held]))[:MOST_USERS]]

    # -- repeated parts ----------------------------------------------------------------------------

    def lanes(self, step: Lanes, found: Walked, broken: frozenset[int], lanes: dict[str, Lane]) -> frozenset[int]:
        holder = self.space.position("lanes", step.position, step.lane, "m")
        node = found.at[step.position]
        assert isinstance(node, int)
        outer: tuple[Any, ...] = tuple(found.at[p] for p in step.outer)
        values = self.table.inputs[node][step.slot :]
        ways: Iterator[object] = walk.lanes(
            self.table,
            values,
            self.probes.lanes[step.lane],
            outer,
            step.agree,
            step.attributes,
        )
        way = next(ways, None)
        if way is not None:
            found.at[holder] = way
            found.held += 1
            return broken
        lane = lanes[step.lane]
        for value in values:
            at = {**dict(zip(step.outer, outer, strict=True)), lane.root: value}
            one = self.walk(lane.steps, 0, Walked(at=at), frozenset(), {}, lane, MOST_MISSES + 1)
            if one is not None and one.misses:
                found.misses.append(one.misses[0])
                break
        else:
            found.misses.append(Miss(Question("lanes", (step.position,)), (node,)))
        return broken | {holder}
