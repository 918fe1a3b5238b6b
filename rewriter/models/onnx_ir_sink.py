"""Writing the journal back to an onnx_ir.Model: a clone of it, or itself.

The steps have an order, because in onnx_ir a value is an output of its node and its uses are registered:
first every value of the table gets its object (outputs of new nodes, and outputs that take over
another value, carry what the old object said), then all inputs and graph outputs are pointed at those
objects, and only then what is gone is taken out and what is new is put in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnx import TensorProto

from rewriter import schemas
from rewriter.engine.held import tensor_of
from rewriter.engine.scope import AttributeReference, NewNode, Scope
from rewriter.engine.table import Table
from rewriter.errors import ModelError
from rewriter.models.sink import is_alive


def write_ir(table: Table, model: ir.Model, in_place: bool = False) -> ir.Model:
    """The model, which the table was read from, with the table's edits; a clone unless `in_place`."""
    return _IrSink(table, model if in_place else clone(model)).write()


@dataclass
class _Saying:
    """What a value's object says apart from its name and place."""

    type: ir.TypeProtocol | None
    shape: ir.Shape | None
    doc_string: str | None
    metadata_props: dict[str, str]
    meta: dict[str, Any]


def saying(value: ir.Value) -> _Saying:
    return _Saying(value.type, value.shape, value.doc_string, dict(value.metadata_props), dict(value.meta))


def say(value: ir.Value, name: str, what: _Saying) -> None:
    value.const_value = None  # else a rename would rename a tensor that the caller's model shares
    value.name = name
    value.type, value.shape, value.doc_string = what.type, what.shape, what.doc_string
    value.metadata_props.clear()
    value.metadata_props.update(what.metadata_props)
    value.meta.clear()
    value.meta.update(what.meta)


class _IrSink:
    def __init__(self, table: Table, out: ir.Model) -> None:
        self.table = table
        self.out = out
        self.graphs: dict[int, ir.Graph] = {}  # by scope
        self.nodes: dict[int, ir.Node] = {}
        self.values: dict[int, ir.Value] = {}
        functions = iter(self.out.functions.values())
        for scope in table.scopes:
            if scope.kind == "graph":
                graph = self.out.graph
            elif scope.kind == "function":
                graph = next(functions).graph
            else:
                graph = body(self.nodes[scope.owner], scope.attribute)
            self.pair(scope, graph)

    def pair(self, scope: Scope, graph: ir.Graph) -> None:
        """Nodes by position, values by name."""
        self.graphs[scope.id] = graph
        ids = scope.values
        for value in (*graph.inputs, *graph.initializers.values()):
            self.values[ids[value.name or ""]] = value
        for number, node in zip(scope.nodes, graph, strict=True):
            self.nodes[number] = node
            for value in node.outputs:
                if value.name:
                    self.values[ids[value.name]] = value

    def write(self) -> ir.Model:
        table = self.table
        alive = [scope for scope in table.scopes if is_alive(table, scope)]
        for scope in table.scopes:
            if not is_alive(table, scope):  # its values may become outputs of the graph that they were moved to
                self.graphs[scope.id].outputs.clear()
        present = {scope.id: list(table.nodes(scope)) for scope in alive}
        members = [node for nodes in present.values() for node in nodes]
        for node in members:
            handle = table.handle[node]
            if isinstance(handle, NewNode):
                self.nodes[node] = self.make_node(node, handle)
        as_read = {node for scope in table.scopes for node in scope.nodes}
        self.place_outputs([node for node in members if node in table.changed or node not in as_read])
        for value, held in table.made_initializers():
            if is_alive(table, table.scopes[table.value_scope[value]]):
                self.add_initializer(value, tensor_of(held))
        for node in members:
            self.rewire(node)
        for scope in alive:
            outputs = self.graphs[scope.id].outputs
            for position, value in enumerate(scope.outputs):
                if outputs[position] is not self.values[value]:
                    outputs[position] = self.values[value]
        self.detach_removed(set(members))
        for value in table.dead_initializers:
            self.drop_initializer(value)
        for scope in alive:
            self.arrange(self.graphs[scope.id], [self.nodes[n] for n in present[scope.id]])
        for node in members:
            for name, wanted in table.changed_attributes.get(node, {}).items():
                self.set_attribute(node, name, wanted)
        for value, dtype in table.changed_types.items():
            if value in self.values:
                self.values[value].type = ir.TensorType(dtype)
        return self.out

    # -- nodes and values --------------------------------------------------------------------------

    def make_node(self, node: int, handle: NewNode) -> ir.Node:
        table = self.table
        domain, op_type = schemas.split_key(table.op[node])
        if domain:
            self.import_domain(domain, table.scope(node))
        attributes = [self.attribute(node, name, value) for name, value in handle.attributes.items()]
        made = ir.Node(domain, op_type, (), attributes, num_outputs=len(table.outputs[node]), name=handle.name or None)
        made.metadata_props.update(handle.metadata)
        return made

    def place_outputs(self, nodes: list[int]) -> None:
        """Let each output be what the table says; one that takes over a value says what that one said."""
        table = self.table
        nothing = _Saying(None, None, None, {}, {})
        said = {v: saying(self.values[v]) for n in nodes for v in table.outputs[n] if v in self.values}
        for node in nodes:
            made = self.nodes[node]
            wanted = table.outputs[node]
            made.resize_outputs(max(len(wanted), len(made.outputs)))
            for value, output in zip(wanted, made.outputs, strict=False):
                if value and self.values.get(value) is output and output.name == table.name[value]:
                    continue
                say(output, table.name[value], said.get(value, nothing))
                if value:
                    self.values[value] = output

    def add_initializer(self, value: int, tensor: ir.TensorProtocol) -> None:
        table = self.table
        name = table.name[value]
        tensor = named(tensor, name)
        made = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(list(tensor.shape.numpy())),
            const_value=tensor,
        )
        graph = self.graphs[table.value_scope[value]]
        if table.ir_version < 4:  # every initializer is a graph input there
            graph.inputs.append(made)
        graph.register_initializer(made)
        self.values[value] = made

    def drop_initializer(self, value: int) -> None:
        graph = self.graphs[self.table.value_scope[value]]
        gone = self.values[value]
        graph.initializers.pop(gone.name or "", None)
        if self.table.ir_version < 4 and gone in list(graph.inputs):
            graph.inputs.remove(gone)

    def rewire(self, node: int) -> None:
        """Point the node's inputs at the objects of the values that the table has there."""
        made, wanted = self.nodes[node], self.table.inputs[node]
        for slot, value in enumerate(made.inputs[len(wanted) :], len(wanted)):
            if value is not None:
                made.replace_input_with(slot, None)
        if len(wanted) > len(made.inputs) or node in self.table.changed:
            made.resize_inputs(len(wanted))
        for slot, number in enumerate(wanted):
            value = self.values[number] if number else None
            if made.inputs[slot] is not value:
                made.replace_input_with(slot, value)

    def detach_removed(self, members: set[int]) -> None:
        """Let go of what nodes use that are not part of the result; then take them out of their graphs."""
        for number, node in self.nodes.items():
            if number not in members:
                for slot in range(len(node.inputs)):
                    node.replace_input_with(slot, None)
                if node.graph is not None:
                    node.graph.remove(node)

    def arrange(self, graph: ir.Graph, order: list[ir.Node]) -> None:
        """Make the nodes of the graph these, in this order, moving no node that need not move."""
        staying = [node for node in order if node.graph is graph]
        if len(staying) == len(order) == len(graph) and all(a is b for a, b in zip(graph, order, strict=True)):
            return
        for node in order:
            if node.graph is not None and node.graph is not graph:
                node.graph.remove(node)
        kept = {id(node) for node in staying}
        graph.remove([node for node in graph if id(node) not in kept])
        if any(a is not b for a, b in zip(graph, staying, strict=True)):
            graph.remove(staying)
            graph.extend(order)
            return
        before: ir.Node | None = None
        for node in order:
            if id(node) not in kept:
                if before is not None:
                    graph.insert_after(before, node)
                elif len(graph):
                    graph.insert_before(graph[0], node)
                else:
                    graph.append(node)
            before = node

    # -- attributes and domains --------------------------------------------------------------------

    def set_attribute(self, node: int, name: str, value: Any) -> None:
        attributes = self.nodes[node].attributes
        if value is None:
            attributes.pop(name, None)
        else:
            made = self.attribute(node, name, value)
            made.doc_string = attributes[name].doc_string if name in attributes else None
            attributes[name] = made

    def attribute(self, node: int, name: str, value: Any) -> ir.Attr:
        """An engine's value as an attribute, by the schema; objects of the source as they are."""
        table = self.table
        if isinstance(value, AttributeReference):
            return ir.RefAttr(name, value.name, ir.AttributeType(value.kind))
        if isinstance(value, ir.Graph):
            return ir.AttrGraph(name, self.adopt(value, table.scope(node)))
        if isinstance(value, ir.TensorProtocol):
            return ir.AttrTensor(name, value)
        return ir.serde.deserialize_attribute(schemas.make_attribute(table.op[node], table.version(node), name, value))

    def adopt(self, graph: ir.Graph, scope: Scope) -> ir.Graph:
        """A copy of a body of the caller's model, which captures the values of this model instead."""
        copy = graph.clone(allow_outer_scope_values=True)
        inside = {id(v) for g in (copy, *copy.subgraphs()) for v in (*g.inputs, *g.initializers.values())}
        for node in copy.all_nodes():
            inside.update(map(id, node.outputs))
        for node in copy.all_nodes():
            for slot, value in enumerate(node.inputs):
                if value is not None and id(value) not in inside:
                    node.replace_input_with(slot, self.values[visible(scope, value.name or "")])
        return copy

    def import_domain(self, domain: str, scope: Scope) -> None:
        root = scope
        while root.parent is not None:
            root = root.parent
        version = root.opsets.get(domain, 1)
        for graph in (self.out.graph, self.graphs[root.id]):
            graph.opset_imports.setdefault(domain, version)


def visible(scope: Scope | None, name: str) -> int:
    while scope is not None:
        if name in scope.values:
            return scope.values[name]
        scope = scope.parent
    raise ModelError(f"a body captures {name!r}, which is not visible where the body is moved to")


def body(node: ir.Node, attribute: str) -> ir.Graph:
    """The body that a scope's `attribute` names: `body`, or `bodies[0]`."""
    if attribute in node.attributes:
        return node.attributes[attribute].as_graph()
    name, _, position = attribute[:-1].rpartition("[")
    return node.attributes[name].as_graphs()[int(position)]


def named(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """The tensor for an initializer of this name; one that is known by another name is left as it is."""
    if tensor.name is None or tensor.name in ("", name):
        return tensor
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        proto = TensorProto()
        proto.CopyFrom(tensor.raw)
        proto.name = name
        return ir.serde.TensorProtoTensor(proto)
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=name,
            base_dir=tensor.base_dir,
        )
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(list(tensor.shape.numpy())), name=name)


def clone(model: ir.Model) -> ir.Model:
    """The model with all graphs, nodes and values copied, tensors shared, and nothing lost.

    `Model.clone` leaves out the model's `meta`, and does not take nodes that are out of order.
    """
    try:
        copy = model.clone()
    except RuntimeError:
        copy = clone_unsorted(model)
    copy.meta.update(model.meta)
    return copy


def clone_unsorted(model: ir.Model) -> ir.Model:
    """The same for graphs whose nodes are not in topological order."""

    def copy_graph(graph: ir.Graph) -> ir.Graph:
        try:
            copy = graph.clone(allow_outer_scope_values=True)
        except RuntimeError as error:
            raise ModelError(
                f"graph {graph.name!r}: onnx_ir cannot copy it unsorted; model.graph.sort() helps"
            ) from error
        twins: dict[int, ir.Value] = {}
        for old, new in zip((graph, *graph.subgraphs()), (copy, *copy.subgraphs()), strict=True):
            twins.update(zip(map(id, old.inputs), new.inputs, strict=True))
            for a, b in zip(old, new, strict=True):
                twins.update(zip(map(id, a.outputs), b.outputs, strict=True))
        for node in copy.all_nodes():  # what was read before it was made still points into the original
            for slot, value in enumerate(node.inputs):
                if id(value) in twins:
                    node.replace_input_with(slot, twins[id(value)])
        return copy

    copy = ir.Model(
        copy_graph(model.graph),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[
            ir.Function(
                f.domain,
                f.name,
                f.overload,
                graph=copy_graph(f.graph),
                attributes=list(f.attributes.values()),
            )
            for f in model.functions.values()
        ],
        metadata_props=dict(model.metadata_props),
    )
    if hasattr(model, "device_configurations"):  # onnx_ir 1.0 and later
        copy.device_configurations = model.device_configurations
    return copy
