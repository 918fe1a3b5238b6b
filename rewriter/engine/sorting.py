"""Sorting a scope whose nodes were not in topological order, which is where cycles are found."""

from __future__ import annotations

import heapq

from rewriter.engine.scope import Scope
from rewriter.engine.table import GAP, Table
from rewriter.errors import ModelError


def check_order(table: Table, scope: Scope) -> None:
    """Sort a scope whose nodes were not in topological order; a cycle is a ModelError naming its nodes."""
    pending: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    members = list(scope.nodes)
    inner: dict[int, list[int]] = {node: [] for node in members}
    for node in range(1, len(table.op)):  # nodes of bodies count for the node that owns them
        owner = table.owner_in(node, scope)
        if owner in inner:
            inner[owner].append(node)
    for node in members:
        before = {
            table.owner_in(table.producer[v], scope)
            for part in inner[node]
            for v in table.inputs[part]
            if table.producer[v]
        }
        for value_scope in table.scopes:  # values that a body returns straight from outside
            if value_scope.owner and table.owner_in(value_scope.owner, scope) == node:
                before |= {table.owner_in(table.producer[v], scope) for v in value_scope.outputs if table.producer[v]}
        before -= {node, 0}
        if any(v and table.producer[v] == node for v in table.inputs[node]):
            before.add(node)
        pending[node] = len(before)
        for other in before:
            users.setdefault(other, []).append(node)
    ready = [node for node in members if not pending[node]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for user in users.get(node, ()):
            pending[user] -= 1
            if not pending[user]:
                heapq.heappush(ready, user)
    if len(order) < len(members):
        stuck = [table.label(n) for n in members if pending[n]][:5]
        raise ModelError(f"the graph {scope.name!r} has a cycle through {', '.join(map(repr, stuck))}")
    for place, node in enumerate(order):
        table.rank[node] = (place + 1) * GAP
        table.next[node] = order[place + 1] if place + 1 < len(order) else 0
        table.previous[node] = order[place - 1] if place else 0
    if order:
        scope.first, scope.last = order[0], order[-1]
    if order != members:
        table.reordered.add(scope.id)
