"""Settling: new names and places become those of a run that had rewritten its matches in the order of the model.

Two things show in which order rewrites happened to be made: who of several that wished for one name got it without a
number, and how the Constant nodes stand at the head of a function. Both are sorted out once, at the end, by where the
model reads them first; so the result of a confluent rule set does not depend on that order at all.
"""

from __future__ import annotations

from dataclasses import replace

from rewriter.engine.scope import NewNode, Scope
from rewriter.engine.table import Table
from rewriter.report import Report


def settle(table: Table, report: Report) -> None:
    """Sort names and leading constants of what the run added; the report follows."""
    for scope in table.scopes:
        sort_constants(table, scope)
    group: dict[str, str] = {}
    rank: dict[str, int] = {}
    for wish, given in table.given_names.items():
        if len(given) > 1:
            group.update(dict.fromkeys(given, wish))
            rank.update((name, number) for number, name in enumerate(given))
    if not group:
        return
    values: dict[str, list[int]] = {}
    nodes: dict[str, list[int]] = {}
    made = {value for node in table.added for value in table.outputs[node] if value}
    for value in (*made, *table.new_initializers):
        if table.name[value] in group and not table.output_count[value]:
            values.setdefault(group[table.name[value]], []).append(value)
    for node in table.added:
        name = table.node_name(node)
        if name in group and isinstance(table.handle[node], NewNode):
            nodes.setdefault(group[name], []).append(node)
    for held in values.values():
        names = sorted((table.name[value] for value in held), key=rank.__getitem__)
        for value, name in zip(sorted(held, key=table.first_place), names, strict=True):
            table.name[value] = name
    renamed: dict[str, str] = {}
    for held in nodes.values():
        names = sorted(map(table.node_name, held), key=rank.__getitem__)
        for node, name in zip(sorted(held, key=table.place), names, strict=True):
            renamed[table.node_name(node)] = name
            table.handle[node].name = name
    if any(old != new for old, new in renamed.items()):
        rename(report, renamed)


def sort_constants(table: Table, scope: Scope) -> None:
    """The new Constant nodes at the head of a scope, in the order in which they are read."""
    head: list[int] = []
    for node in table.nodes(scope):
        if node not in table.added or table.op[node] != "Constant":
            break
        head.append(node)
    wanted = sorted(head, key=lambda node: table.first_place(table.outputs[node][0], of_reader=True))
    if wanted != head:
        behind = table.next[head[-1]]
        for node in head:
            table.unlink(node)
        for node in wanted:
            table.insert(node, behind, scope)


def rename(report: Report, names: dict[str, str]) -> None:
    def now(nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(node, node) for node in nodes)

    report.rewrites[:] = [
        replace(
            one,
            node=names.get(one.node, one.node),
            added=now(one.added),
            changed=now(one.changed),
            removed=now(one.removed),
        )
        for one in report.rewrites
    ]
