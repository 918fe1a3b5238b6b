"""Order: where an edit's new nodes go, so that the graph stays sorted, and whether they would close a cycle.

New nodes stand right before the first node that will read what they make. That is in order as long as everything that
feeds the edit comes earlier. Where it does not (an edit with several outputs may feed an early user from a late
producer), the users between the two, and what depends on them, move behind the last feeder: a local repair, as in
Pearce and Kelly's dynamic topological order. If such a user leads to a feeder, the edit would close a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rewriter.engine.table import Scope, Table
from rewriter.errors import Decline

if TYPE_CHECKING:
    from rewriter.engine.edit import Edit


@dataclass
class Placement:
    """Before which node new nodes go (0: at the end), after moving `moved` right behind `behind`."""

    before: int
    behind: int = 0
    moved: list[int] = field(default_factory=list)

    def make_room(self, table: Table, scope: Scope) -> None:
        after = self.behind
        for node in self.moved:
            table.unlink(node)
            table.insert(node, table.next[after] if after else scope.first, scope)
            after = node


def place_edit(edit: Edit) -> Placement:
    """Find the place for an edit's new nodes. Raises Decline where there is none."""
    table, scope = edit.table, edit.scope
    rank = table.rank
    gone = set(edit.removals)
    feeders: set[int] = set()
    readers: set[int] = set()

    def feed(value: object) -> None:
        if isinstance(value, int) and value and table.producer[value]:
            node = table.owner_in(table.producer[value], scope)
            if node:
                feeders.add(node)

    for planned in edit.nodes:
        for value in planned.inputs:
            feed(value)
    anchors: set[int] = set()
    for node, _, value in edit.inputs:
        feed(value)
        readers.add(node)
        anchors.add(node)
    for old, new in edit.replacements:
        feed(new)
        for user in table.uses[old]:
            reader = table.owner_in(user, scope)
            if reader and user not in gone:
                readers.add(reader)
        if table.producer[old]:
            anchors.add(table.owner_in(table.producer[old], scope))
    readers.discard(0)
    anchors.discard(0)
    for node, _ in edit.inlined:
        anchors.add(node)
    first = min(anchors or {edit.root}, key=rank.__getitem__)
    last = max(feeders, key=rank.__getitem__, default=0)
    if not last or rank[last] < rank[first]:
        return Placement(first)
    late = min((n for n in readers if rank[n] <= rank[last]), key=rank.__getitem__, default=0)
    if not late:
        return Placement(table.next[last])
    limit = rank[last]
    moved: set[int] = set()
    stack = [n for n in readers if rank[n] <= limit]
    while stack:
        node = stack.pop()
        if node in moved or node in gone:
            continue
        if node in feeders:
            raise Decline(f"the rewrite would close a cycle through node {table.label(node)!r}")
        moved.add(node)
        for value in table.outputs[node]:
            for user in table.uses[value]:
                reader = table.owner_in(user, scope)
                if reader and rank[reader] <= limit:
                    stack.append(reader)
    order = sorted(moved, key=rank.__getitem__)
    return Placement(order[0], last, order)
