"""Order: where an edit's new nodes go, so that the graph stays sorted, and whether they would close a
cycle.

Each new node stands behind the last node that it needs: right before the edit's first node where that is
enough, else right behind what it waits for (what is new may lie on both sides of a node that is kept).
Mostly all that it needs comes before the edit's first node, and nothing else has to be looked at: what reads
it comes later, as the edit is about those. Where something does not (an edit with several outputs may
feed an early reader from a late producer), the stretch between the two is sorted anew, stably: a local
repair, as in Pearce and Kelly's dynamic topological order. If that cannot be done, the edit would close a
cycle.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rewriter.engine.scope import Scope
from rewriter.engine.table import Table
from rewriter.errors import Decline

if TYPE_CHECKING:
    from rewriter.engine.edit import Edit, Operand


@dataclass
class Placement:
    """Before which node each new one goes (0: at the end), once `moved` stand in this order before `end`."""

    before: list[int]
    moved: list[int] = field(default_factory=list)
    end: int = 0

    def make_room(self, table: Table, scope: Scope) -> None:
        for node in self.moved:
            table.unlink(node)
        for node in self.moved:
            table.insert(node, self.end, scope)


def place_edit(edit: Edit) -> Placement:
    """Find a place for each new node of an edit. Raises Decline where there is none."""
    first = first_of(edit)
    if needs_nothing_later(edit, first):
        return Placement([first] * len(edit.nodes))
    return _Placing(edit, first).place()


def first_of(edit: Edit) -> int:
    """The first node of the table that the edit is about."""
    table, scope = edit.table, edit.scope
    nodes = [node for node, _, _ in edit.inputs]
    nodes += [node for node, _ in edit.inlined]
    nodes += [table.owner_in(table.producer[old], scope) for old, _ in edit.replacements if table.producer[old]]
    return min(filter(None, nodes), key=table.rank.__getitem__, default=edit.root)


def needs_nothing_later(edit: Edit, first: int) -> bool:
    """Whether all that the edit reads is there before this node, or made by a new node before the one that reads it."""
    table, scope, made = edit.table, edit.scope, set[int]()
    limit = table.rank[first]

    def is_there(value: Operand) -> bool:
        if type(value) is int:
            producer = table.producer[value]
            return not producer or table.rank[table.owner_in(producer, scope)] < limit
        return value.node is None or id(value.node) in made  # type: ignore[union-attr]

    for planned in edit.nodes:
        for value in planned.inputs:
            if value and not is_there(value):
                return False
        made.add(id(planned))
    for _, _, value in edit.inputs:
        if value and not is_there(value):
            return False
    return all(is_there(new) for _, new in edit.replacements)


class _Placing:
    """Nodes are ids of the table, and -1, -2, ... for what is new."""

    def __init__(self, edit: Edit, first: int) -> None:
        self.edit = edit
        self.first = first
        self.table = edit.table
        self.rank = edit.table.rank
        self.new = {id(planned): -1 - k for k, planned in enumerate(edit.nodes)}
        self.replaced = {old for old, _ in edit.replacements}
        self.rewired = {(node, slot) for node, slot, _ in edit.inputs}
        self.gone = self.surely_gone()
        self.edges = list(self.new_edges())

    def place(self) -> Placement:
        edit, rank, first = self.edit, self.rank, self.first
        behind = [0] * len(edit.nodes)  # the last node of the table that each new one waits for
        for a, b in self.edges:
            if b < 0:
                waits = a if a > 0 else behind[-1 - a]
                behind[-1 - b] = max(behind[-1 - b], waits, key=lambda n: rank[n] if n else -1)
        late = [
            (b, last)
            for a, b in self.edges
            if b > 0 and (last := a if a > 0 else behind[-1 - a]) and rank[last] >= rank[b]
        ]
        if late:
            start = min((b for b, _ in late), key=rank.__getitem__)
            end = max((*(last for _, last in late), *(n for n in behind if n)), key=rank.__getitem__)
            return self.sort(start, end)
        return Placement([first if not last or rank[last] < rank[first] else self.table.next[last] for last in behind])

    # -- what reads what ---------------------------------------------------------------------------

    def maker(self, value: Operand) -> int:
        """The node that makes a value, as seen in the edit's scope; 0 for inputs and constants."""
        if isinstance(value, int):
            producer = self.table.producer[value]
            return self.table.owner_in(producer, self.edit.scope) if producer else 0
        return 0 if value.node is None else self.new[id(value.node)]

    def new_edges(self) -> Iterator[tuple[int, int]]:
        """(maker, reader) for everything that the edit wires."""
        for planned in self.edit.nodes:
            for value in planned.inputs:
                if maker := self.maker(value):
                    yield maker, self.new[id(planned)]
        for node, _, value in self.edit.inputs:
            if maker := self.maker(value):
                yield maker, node
        for old, new in self.edit.replacements:
            if maker := self.maker(new):
                for reader in self.readers(old):
                    if reader != maker:
                        yield maker, reader

    def readers(self, value: int) -> Iterator[int]:
        """The nodes that will go on reading a value, as seen in the edit's scope."""
        table = self.table
        for user in dict.fromkeys(table.uses[value]):
            if user in self.gone or not self.still_reads(user, value):
                continue
            if reader := table.owner_in(user, self.edit.scope):
                yield reader

    def still_reads(self, node: int, value: int) -> bool:
        return any(v == value and (node, slot) not in self.rewired for slot, v in enumerate(self.table.inputs[node]))

    def surely_gone(self) -> set[int]:
        """The nodes among the removals that nothing will need."""
        table = self.table
        left = list(self.edit.removals)
        if not left:
            return set()
        read = {v for planned in self.edit.nodes for v in planned.inputs if type(v) is int}
        read.update(v for _, _, v in self.edit.inputs if type(v) is int)
        read.update(v for _, v in self.edit.replacements if type(v) is int)
        gone: set[int] = set()

        def is_needed(node: int) -> bool:
            for value in table.outputs[node]:
                if not value:
                    continue
                if value in read:
                    return True
                if value in self.replaced:
                    continue
                if table.output_count[value]:
                    return True
                for user in table.uses[value]:
                    if user not in gone and self.still_reads(user, value):
                        return True
            return False

        while True:
            kept = [node for node in left if is_needed(node) or gone.add(node)]  # type: ignore[func-returns-value]
            if len(kept) == len(left):
                return gone
            left = kept

    # -- the repair --------------------------------------------------------------------------------

    def sort(self, start: int, end: int) -> Placement:
        """Sort the nodes from `start` to `end`, and what is new among them."""
        table, scope = self.table, self.edit.scope
        members = [start]
        while members[-1] != end:
            members.append(table.next[members[-1]])
        after = table.next[end]
        inside = {*members, *self.new.values()}
        follow: dict[int, set[int]] = {node: set() for node in inside}
        for node in members:
            for value in table.outputs[node]:
                if value and value not in self.replaced:
                    follow[node].update(self.readers(value))
        for body in table.scopes:  # a body may return a value from outside as it is
            owner = table.owner_in(body.owner, scope) if body.owner else 0
            if owner in inside:
                for value in body.outputs:
                    if (maker := self.maker(value)) in inside:
                        follow[maker].add(owner)
        for a, b in self.edges:
            if a in inside:
                follow[a].add(b)
        waiting = dict.fromkeys(inside, 0)
        for node, readers in follow.items():
            readers &= inside
            readers.discard(node)
            for reader in readers:
                waiting[reader] += 1

        def key(node: int) -> tuple[int, int, int]:
            return (self.rank[node], 1, node) if node > 0 else (self.rank[start], 0, -node)

        ready = [key(node) for node in inside if not waiting[node]]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, is_old, number = heapq.heappop(ready)
            node = number if is_old else -number
            order.append(node)
            for reader in follow[node]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, key(reader))
        if len(order) < len(inside):
            stuck = min((n for n in members if waiting[n]), key=self.rank.__getitem__, default=start)
            raise Decline(f"the rewrite would close a cycle through node {table.label(stuck)!r}")
        before = [0] * len(self.new)
        behind = after
        for node in reversed(order):
            if node > 0:
                behind = node
            else:
                before[-1 - node] = behind
        return Placement(before, [n for n in order if n > 0], after)
