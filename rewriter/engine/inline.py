"""Inlining: a body moves into the scope of the node that owns it (a constant If becomes its branch).

It is the one edit that moves nodes between scopes, asked for by name (`m.edit.inline`). Nodes keep their handles, so
everything of theirs is carried along; names that exist already get fresh ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rewriter.engine.scope import NewNode, Scope
from rewriter.engine.table import Table
from rewriter.errors import Decline

if TYPE_CHECKING:
    from rewriter.engine.edit import Effect


def body_of(table: Table, node: int, attribute: str) -> Scope:
    for scope in table.scopes:
        if scope.owner == node and scope.attribute == attribute:
            return scope
    raise Decline(f"node {table.label(node)!r} has no body {attribute!r}")


def inline_body(table: Table, node: int, attribute: str, effect: Effect) -> None:
    """Put the nodes of a body before their owner, and its outputs in place of the owner's; the owner goes."""
    body = body_of(table, node, attribute)
    scope = table.scope(node)
    outer_names = {table.name[v] for v in range(1, len(table.name)) if table.value_scope[v] != body.id}
    inner = [v for v in range(1, len(table.name)) if table.value_scope[v] == body.id]
    for value in inner:
        if table.name[value] in outer_names:
            table.name[value] = table.fresh_name(table.name[value])
            for user in table.uses[value]:
                table.changed.add(user)
        table.value_scope[value] = scope.id
        if value in table.initializer:
            table.new_initializers[value] = table.access.tensor(table.initializer[value])
            table.initializer[value] = table.new_initializers[value]
    for member in list(table.nodes(body)):
        table.unlink(member)
        table.scope_of[member] = scope.id
        table.insert(member, node, scope)
        table.changed.add(member)
        table.touched_nodes.add(member)
        effect.added.append(member)
    for other in table.scopes:
        if other.parent is body:
            other.parent = scope
    outputs = list(table.outputs[node])
    sources = list(body.outputs)
    for value in sources:
        table.output_count[value] -= 1
    body.outputs = []
    for slot, (old, new) in enumerate(zip(outputs, sources, strict=False)):
        if not old:
            continue
        producer = table.producer[new]
        table.set_output(node, slot, 0)
        if producer and table.scope_of[producer] == scope.id and not table.output_count[new] and new in inner:
            table.set_output(producer, table.outputs[producer].index(new), old)
            for user in dict.fromkeys(list(table.uses[new])):
                for place, value in enumerate(list(table.inputs[user])):
                    if value == new:
                        table.set_input(user, place, old)
        else:
            handle = NewNode(table.fresh_node_name(table.name[old] + "_identity"), {})
            effect.added.append(table.add_node("Identity", [new], [old], handle, scope, node))
    effect.removed.append(table.label(node))
    table.remove_node(node)
