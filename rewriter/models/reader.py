"""Reading: the one pass that fills a table, whatever kind of model it is read from.

A `GraphView` shows graphs and functions of a kind of model as lists of names and handles; the reader resolves
the names scope by scope, outer before inner, and so finds what is wrong with a graph (dangling or doubled
names, cycles) as a by-product, each a `ModelError` that names graph, node and tensor. Kinds of model share
this pass, so that one model gives one table and one message, however it was passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rewriter.engine.scope import Scope
from rewriter.engine.sorting import check_order
from rewriter.engine.table import GAP, Table
from rewriter.errors import ModelError
from rewriter.schemas import op_key

WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


class GraphView(Protocol):
    """How a kind of model shows what is in a graph or function: values by name, an absent one as ""."""

    def inputs(self, graph: Any) -> Iterable[str]: ...

    def outputs(self, graph: Any) -> Iterable[str]: ...

    def initializers(self, graph: Any) -> Iterable[tuple[str, Any]]:
        """Name and handle of each initializer; a function has none."""
        ...

    def sparse_initializers(self, graph: Any) -> Iterable[str]: ...

    def nodes(self, graph: Any) -> Iterator[tuple[Any, str, str, Sequence[str], Sequence[str]]]:
        """Handle, op type, domain, inputs and outputs of each node."""
        ...

    def bodies(self, node: Any) -> Iterable[tuple[str, Any]]:
        """A node's graphs by attribute: `("body", graph)`, or `("bodies[0]", graph)` for one of a list."""
        ...


def fill_table(
    table: Table,
    view: GraphView,
    graph: tuple[Any, str, Mapping[str, int]],
    functions: Iterable[tuple[Any, str, Mapping[str, int]]],
) -> None:
    """Read the main graph and the functions, each given as handle, name and opset imports, and all bodies.

    A function's name is the op key of its calls.
    """
    reader = _Reader(table, view)
    handle, name, opsets = graph
    reader.read_graph(Scope(0, "graph", name or "graph", None, 0, "", handle, opsets))
    for handle, name, opsets in functions:
        reader.read_function(Scope(0, "function", name, None, 0, "", handle, opsets))
    reader.read_bodies()
    table.rank = list(range(0, len(table.op) * GAP, GAP))
    table.next = [0] * len(table.op)
    table.previous = [0] * len(table.op)
    for scope in table.scopes:
        table.link(scope)
    for scope_id in sorted(reader.unsorted):
        check_order(table, table.scopes[scope_id])
    table.index_ops()


class _Reader:
    def __init__(self, table: Table, view: GraphView) -> None:
        self.table = table
        self.view = view
        self.bodies: list[tuple[int, Scope, str, Any]] = []
        self.unsorted: set[int] = set()

    def read_graph(self, scope: Scope) -> None:
        table, graph = self.table, scope.handle
        self.enter(scope)
        for name in self.view.inputs(graph):
            table.is_input.add(self.define(name, scope, "graph input"))
        may_override = table.ir_version >= 4
        for name, handle in self.view.initializers(graph):
            value = scope.values.get(name)
            if value is None:
                value = self.define(name, scope, "initializer")
            elif value in table.is_input and value not in table.initializer:
                if may_override:
                    table.overridable.add(value)
                else:
                    table.is_input.discard(value)
            else:
                raise ModelError(f"graph {scope.name!r}: two initializers are called {name!r}")
            table.initializer[value] = handle
        for name in self.view.sparse_initializers(graph):
            if name not in scope.values:
                self.define(name, scope, "sparse initializer")
        self.finish(scope, self.read_nodes(scope))

    def read_function(self, scope: Scope) -> None:
        self.enter(scope)
        for slot, name in enumerate(self.view.inputs(scope.handle)):
            value = self.define(name, scope, "function input")
            self.table.is_input.add(value)
            self.table.parameter[value] = (scope.name, slot)
        self.finish(scope, self.read_nodes(scope))

    def read_bodies(self) -> None:
        done = 0
        while done < len(self.bodies):
            owner, parent, attribute, graph = self.bodies[done]
            done += 1
            self.read_graph(Scope(0, "body", graph.name or "", parent, owner, attribute, graph, parent.opsets))

    def enter(self, scope: Scope) -> None:
        scope.id = len(self.table.scopes)
        self.table.add_scope(scope)

    def define(self, name: str, scope: Scope, what: str) -> int:
        if not name:
            raise ModelError(f"graph {scope.name!r}: a {what} has no name")
        if name in scope.values:
            raise ModelError(f"graph {scope.name!r}: the name {name!r} of a {what} is defined twice")
        value = self.table.add_value(name, scope.id)
        scope.values[name] = value
        return value

    def read_nodes(self, scope: Scope) -> dict[str, int]:
        """The hot loop: about 3 us a node. Returns the names used before they were defined."""
        table, bodies_of = self.table, self.view.bodies
        values, parent, scope_id = scope.values, scope.parent, scope.id
        ops, inputs, outputs, scope_of, handles = (
            table.op,
            table.inputs,
            table.outputs,
            table.scope_of,
            table.handle,
        )
        producer, uses, members = table.producer, table.uses, scope.nodes
        pending: dict[str, int] = {}
        add_value = table.add_value
        for node, op_type, domain, reads, writes in self.view.nodes(scope.handle):
            number = len(ops)
            if type(op_type) is not str or type(domain) is not str:  # protobuf gives bytes for what is no UTF-8
                raise ModelError(f"graph {scope.name!r}: the op type {op_type!r} of a node is no valid text")
            ops.append(op_key(domain, op_type) if domain else op_type)
            read: list[int] = []
            for name in reads:
                value = values.get(name, 0)
                if not value and name:
                    value = self.lookup(name, parent) or self.promise(name, scope, pending)
                read.append(value)
                if value:
                    uses[value].append(number)
            while read and not read[-1]:
                read.pop()
            written: list[int] = []
            for name in writes:
                if not name:
                    written.append(0)
                    continue
                if name in values:
                    value = pending.pop(name, 0)
                    if not value:
                        raise ModelError(
                            f"graph {scope.name!r}: node {node.name or op_type!r} writes {name!r}, "
                            "which is defined already"
                        )
                    self.unsorted.add(scope_id)
                else:
                    value = add_value(name, scope_id)
                    values[name] = value
                producer[value] = number
                written.append(value)
            inputs.append(read)
            outputs.append(written)
            scope_of.append(scope_id)
            handles.append(node)
            members.append(number)
            if op_type in WITH_BODIES or domain:
                self.bodies += [(number, scope, attribute, graph) for attribute, graph in bodies_of(node)]
        return pending

    def lookup(self, name: str, scope: Scope | None) -> int:
        while scope is not None:
            value = scope.values.get(name)
            if value:
                return value
            scope = scope.parent
        return 0

    def promise(self, name: str, scope: Scope, pending: dict[str, int]) -> int:
        value = self.define(name, scope, "value")
        pending[name] = value
        return value

    def finish(self, scope: Scope, pending: dict[str, int]) -> None:
        table = self.table
        for name, value in pending.items():
            user = table.uses[value][0]
            raise ModelError(
                f"graph {scope.name!r}: node {table.label(user)!r} ({table.op[user]}) reads {name!r}, "
                "which nothing produces"
            )
        for name in self.view.outputs(scope.handle):
            value = scope.values.get(name) or self.lookup(name, scope.parent)
            if not value:
                raise ModelError(f"graph {scope.name!r}: its output {name!r} is produced by nothing")
            table.output_count[value] += 1
            scope.outputs.append(value)
        if scope.parent is not None:
            self.check_captures(scope)

    def check_captures(self, scope: Scope) -> None:
        """A body that reads a value produced after its owner: the enclosing scope is not in order."""
        table = self.table
        for node in scope.nodes:
            for value in table.inputs[node]:
                source = table.producer[value]
                if source and table.scope_of[source] != scope.id:
                    outer = table.scope(source)
                    owner = table.owner_in(node, outer)
                    if owner and owner <= source:
                        self.unsorted.add(outer.id)
