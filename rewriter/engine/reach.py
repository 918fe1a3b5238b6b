"""Reach: which anchors can see a touched place, derived from the compiled rules.

A position says how a node is reached from the anchor. Walked backwards, it says from which anchors a node can be
reached in that role. So after an edit only those anchors are asked again whose rules could look at what was touched:
no radius is guessed, and a hub value with thousands of consumers costs nothing unless a rule looks through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rewriter.compiler.questions import Question
from rewriter.engine.constants import FOLDABLE, is_constant

if TYPE_CHECKING:
    from rewriter.compiler.program import Program
    from rewriter.compiler.questions import Space
    from rewriter.engine.table import Table


class Reach:
    """The backward paths of a program's positions."""

    def __init__(self, program: Program, space: Space) -> None:
        self.places = space.positions
        self.by_op: dict[str, dict[int, None]] = {}
        self.types: dict[int, set[str]] = {0: set(program.anchors)}
        self.counted: dict[tuple[int, tuple[str, ...]], None] = {}  # nodes (role and types) that count an input's uses
        for leaf in program.leaves:
            lowered = leaf.lowered
            roles = {lowered.node_positions[id(n)]: n for n in lowered.variant.nodes if id(n) in lowered.node_positions}
            for node in lowered.variant.nodes:
                position = lowered.node_positions.get(id(node))
                if position is None:
                    continue
                self.types.setdefault(position, set()).update(node.types)
                for op in node.types:
                    self.by_op.setdefault(op, {})[position] = None
            for step, _ in lowered.steps:
                if isinstance(step, Question) and step.kind in ("uses", "inner"):
                    place = self.places[step.positions[0]]
                    if place.kind in ("input", "operand") and place.parent in roles:
                        self.counted[place.parent, roles[place.parent].types] = None
            for lane in lowered.lanes:
                for step in lane.steps:
                    if isinstance(step, Question) and step.kind == "op":
                        self.types.setdefault(step.positions[0], set()).update(step.argument)
                        for op in step.argument:
                            self.by_op.setdefault(op, {})[step.positions[0]] = None

    def anchors(
        self, table: Table, nodes: set[int], values: set[int], produced: set[int], were_constant: Iterable[int] = ()
    ) -> set[int]:
        """The anchors to ask again after an edit.

        `nodes` were changed or made, `values` gained or lost uses, `produced` got another producer (or lost it),
        `were_constant` may not be so any more.
        """
        touched = {n for n in nodes if table.op[n]}
        for value in values:
            if table.producer[value]:
                touched.add(table.producer[value])
        touched.update(self.fed_by_constants(table, nodes, produced, were_constant))
        found: set[int] = set()
        seen: set[tuple[int, int]] = set()
        for value in values:
            for position, ops in self.counted:
                for user in table.uses[value]:
                    if table.op[user] in ops:
                        found.update(self.back(table, position, user, seen))
        for node in touched:
            for position in self.by_op.get(table.op[node], ()):
                found.update(self.back(table, position, node, seen))
        return found

    def fed_by_constants(
        self, table: Table, nodes: set[int], produced: set[int], were_constant: Iterable[int]
    ) -> Iterator[int]:
        """What reads a constant that changed, or what is computed from one."""
        stack = [*were_constant, *(v for v in produced if v and is_constant(table, v))]
        for node in nodes:
            if table.op[node] in FOLDABLE or table.op[node] == "Constant":
                stack.extend(v for v in table.outputs[node] if v and is_constant(table, v))
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            for user in dict.fromkeys(table.uses[value]):
                yield user
                if table.op[user] in FOLDABLE and all(
                    not v or v in seen or is_constant(table, v) for v in table.inputs[user]
                ):
                    stack.extend(v for v in table.outputs[user] if v)

    def back(self, table: Table, position: int, item: int, seen: set[tuple[int, int]]) -> Iterator[int]:
        """From a node or value in a role, back to the anchors that reach it so; but not from roles seen before."""
        stack = [(position, item)]
        while stack:
            role = stack.pop()
            if role in seen:
                continue
            seen.add(role)
            position, item = role
            place = self.places[position]
            kind, parent = place.kind, place.parent
            types = self.types.get(parent)
            if kind == "anchor":
                yield item
            elif kind == "producer":
                stack.extend((parent, v) for v in table.outputs[item] if v)
            elif kind in ("input", "operand", "lane"):
                stack.extend((parent, u) for u in table.uses[item] if types is None or table.op[u] in types)
            elif kind == "output":
                producer = table.producer[item]
                if producer and (types is None or table.op[producer] in types):
                    stack.append((parent, producer))
            elif kind in ("user", "any_user"):
                stack.extend((parent, v) for v in table.inputs[item] if v)
            elif kind == "chain_up":  # item: a node of the chain
                stack.extend((parent, v) for v in self.down(table, table.outputs[item][:1], place.argument))
            elif kind == "chain_down":
                stack.extend((parent, v) for v in self.up(table, table.inputs[item][:1], place.argument))
            elif kind == "chain_end":
                chain = self.places[parent]
                walk = self.down if chain.kind == "chain_up" else self.up
                stack.extend((chain.parent, v) for v in walk(table, [item], chain.argument))
            elif kind == "lane_item":
                holder = self.places[parent]
                stack.extend((holder.parent, u) for u in self.beyond(table, item) if self.fits(table, u, holder.parent))

    def fits(self, table: Table, node: int, position: int) -> bool:
        types = self.types.get(position)
        return types is None or table.op[node] in types

    def beyond(self, table: Table, value: int) -> Iterator[int]:
        """Nodes up to a few steps below a value that a lane shares."""
        front = [value]
        for _ in range(8):
            users = {u for v in front for u in table.uses[v]}
            yield from users
            front = [v for u in users for v in table.outputs[u] if v]

    def down(self, table: Table, values: list[int], ops: tuple[str, ...]) -> Iterator[int]:
        """These values and those that a chain of such nodes makes of them."""

        def after(value: int) -> Iterator[int]:
            return (table.outputs[u][0] for u in table.uses[value] if table.op[u] in ops and table.outputs[u])

        return reached(values, after)

    def up(self, table: Table, values: list[int], ops: tuple[str, ...]) -> Iterator[int]:
        """These values and those of which a chain of such nodes makes them."""

        def before(value: int) -> Iterable[int]:
            producer = table.producer[value]
            return table.inputs[producer][:1] if table.op[producer] in ops else ()

        return reached(values, before)


def reached(values: Iterable[int], step: Callable[[int], Iterable[int]]) -> Iterator[int]:
    """Values, and all that steps from them lead to, each once."""
    front = [v for v in values if v]
    seen: set[int] = set()
    while front:
        value = front.pop()
        if value not in seen:
            seen.add(value)
            yield value
            front.extend(step(value))
