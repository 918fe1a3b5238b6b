"""Writing the journal back: the edits, and nothing else, on a copy of the ModelProto.

Everything that the edits do not name (unknown fields, annotations, training info, sparse initializers, order)
is carried by protobuf's own copy, so it cannot change. Order is restored by sorting the repeated field in
place, which moves pointers and copies no node.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from rewriter import schemas
from rewriter.engine.held import Held, dtype_of, shape_of
from rewriter.engine.scope import AttributeReference, NewNode, Scope
from rewriter.engine.table import Table

APART = 1 << 20  # bytes from which on an array may be kept apart

Apart = list[tuple[TensorProto, np.ndarray]]


def write_proto(table: Table, model: ModelProto, in_place: bool = False, apart: Apart | None = None) -> ModelProto:
    """The model, which the table was read from, with the table's edits; a copy unless `in_place`.

    apart: where given, large new arrays are not copied into the model but added here, beside their messages, which the
    caller makes refer to where it writes them.
    """
    if not table.is_changed:
        return model
    out = model
    if not in_place:
        out = ModelProto()
        out.CopyFrom(model)
    _Sink(table, out, apart).write()
    return out


def is_alive(table: Table, scope: Scope) -> bool:
    """Whether the scope is still part of the model: no node that owns it, near or far, was removed."""
    while scope.owner:
        if scope.owner in table.removed:
            return False
        scope = table.scope(scope.owner)
    return True


class _Sink:
    def __init__(self, table: Table, out: ModelProto, apart: Apart | None = None) -> None:
        self.apart = apart
        self.table = table
        self.out = out
        self.protos: dict[int, NodeProto] = {}

    def write(self) -> None:
        table = self.table
        dirty = set(table.reordered)
        for node in (*table.added, *table.changed, *table.changed_attributes, *table.removed):
            dirty.add(table.scope_of[node])
        for value in (*table.new_initializers, *table.dead_initializers):
            dirty.add(table.value_scope[value])
        needed = set(dirty)
        for scope_id in dirty:  # the way down to a dirty body leads through its owners
            scope = table.scopes[scope_id]
            while scope.parent is not None:
                scope = scope.parent
                needed.add(scope.id)
        functions = iter(self.out.functions)
        for scope in table.scopes:
            graph: Any
            if scope.kind == "function":
                graph = next(functions)
            elif scope.kind == "graph":
                graph = self.out.graph
            elif scope.id not in needed or not is_alive(table, scope):
                continue
            else:
                graph = self.body(scope)
            if scope.id in needed:
                self.write_scope(scope, graph, scope.id in dirty)

    def body(self, scope: Scope) -> Any:
        for attribute in self.protos[scope.owner].attribute:
            if attribute.name == scope.attribute and attribute.type == AttributeProto.GRAPH:
                return attribute.g
            if scope.attribute.startswith(attribute.name + "[") and attribute.graphs:
                return attribute.graphs[int(scope.attribute[len(attribute.name) + 1 : -1])]
        raise AssertionError(f"the body {scope.attribute!r} of node {scope.owner} is gone")

    def write_scope(self, scope: Scope, graph: Any, dirty: bool) -> None:
        table = self.table
        for node, proto in zip(scope.nodes, graph.node, strict=True):
            self.protos[node] = proto
        if not dirty:
            return
        self.write_initializers(scope, graph)
        present = list(scope.nodes)
        known = set(present)
        order = list(table.nodes(scope))
        for node in order:
            if node in known:
                if node in table.changed:
                    self.rewire(node, self.protos[node])
                if node in table.changed_attributes:
                    self.set_attributes(node, self.protos[node], table.changed_attributes[node])
            else:
                present.append(node)
                self.protos[node] = self.add_node(graph, node, scope)
        if scope.id in table.reordered or len(order) != len(present):
            place = {node: position for position, node in enumerate(order)}
            keys = iter([place.get(node, len(order)) for node in present])
            graph.node.sort(key=lambda _: next(keys))
            del graph.node[len(order) :]
            for node, proto in zip(order, graph.node, strict=True):  # sorting moves the messages behind the wrappers
                self.protos[node] = proto
        self.drop_value_info(scope, graph)
        self.write_types(scope, graph)

    def rewire(self, node: int, proto: NodeProto) -> None:
        names = self.table.name
        inputs, outputs = self.table.inputs[node], self.table.outputs[node]
        del proto.input[:]
        proto.input.extend([names[v] for v in inputs])
        del proto.output[:]
        proto.output.extend([names[v] for v in outputs])

    def set_attributes(self, node: int, proto: NodeProto, values: dict[str, Any]) -> None:
        """Write attributes where they stand, new ones after the others; None takes one away."""
        for name, value in values.items():
            place = next((k for k, a in enumerate(proto.attribute) if a.name == name), None)
            if value is None:
                if place is not None:
                    del proto.attribute[place]
                continue
            made = self.attribute(node, name, value)
            if place is None:
                proto.attribute.append(made)
            else:
                old = proto.attribute[place]
                if old.HasField("doc_string"):
                    made.doc_string = old.doc_string
                old.CopyFrom(made)

    def attribute(self, node: int, name: str, value: Any) -> AttributeProto:
        if isinstance(value, AttributeReference):
            return AttributeProto(name=name, type=value.kind, ref_attr_name=value.name)  # type: ignore[arg-type]
        return attribute_proto(self.table.op[node], self.table.version(node), name, value)

    def add_node(self, graph: Any, node: int, scope: Scope) -> NodeProto:
        table = self.table
        proto: NodeProto = graph.node.add()
        handle = table.handle[node]
        if isinstance(handle, NodeProto):  # moved here from a body
            proto.CopyFrom(handle)
            self.rewire(node, proto)
            self.set_attributes(node, proto, table.changed_attributes.get(node, {}))
            return proto
        assert isinstance(handle, NewNode)
        domain, op_type = schemas.split_key(table.op[node])
        proto.name = handle.name
        proto.op_type = op_type
        if domain:
            proto.domain = domain
            self.import_domain(domain, scope)
        names = table.name
        proto.input.extend([names[v] for v in table.inputs[node]])
        proto.output.extend([names[v] for v in table.outputs[node]])
        for name, value in handle.attributes.items():
            proto.attribute.append(self.attribute(node, name, value))
        for key, text in handle.metadata.items():
            proto.metadata_props.add(key=key, value=text)
        return proto

    def import_domain(self, domain: str, scope: Scope) -> None:
        holder: Any
        holders: list[Any] = [self.out]
        while scope.parent is not None:
            scope = scope.parent
        if scope.kind == "function":
            named = [f for f in self.out.functions if schemas.op_key(f.domain, f.name) == scope.name]
            holders.append(next(f for f in named if list(f.input) == list(scope.handle.input)))
        for holder in holders:
            if all(entry.domain != domain for entry in holder.opset_import):
                holder.opset_import.add(domain=domain, version=scope.opsets.get(domain, 1))

    def write_initializers(self, scope: Scope, graph: Any) -> None:
        table = self.table
        old_ir = table.ir_version < 4
        dead = {table.name[v] for v in table.dead_initializers if table.value_scope[v] == scope.id}
        if dead:
            remove_named(graph.initializer, dead)
            if old_ir:
                remove_named(graph.input, dead)
        for value, held in table.made_initializers():
            if table.value_scope[value] == scope.id:
                proto = graph.initializer.add()
                if self.apart is not None and isinstance(held, np.ndarray) and held.nbytes >= APART:
                    describe(proto, held)
                    self.apart.append((proto, held))
                else:
                    write_tensor(proto, held)
                proto.name = table.name[value]
                if old_ir:
                    graph.input.append(tensor_info(proto.name, held))

    def drop_value_info(self, scope: Scope, graph: Any) -> None:
        """Forget the declared types of values that the edits took away."""
        table = self.table
        if len(graph.value_info) == 0:
            return
        gone = {
            table.name[v]
            for v in table.dropped_values
            if table.value_scope[v] == scope.id and not table.producer[v] and v not in table.initializer
        }
        if gone:
            remove_named(graph.value_info, gone)

    def write_types(self, scope: Scope, graph: Any) -> None:
        """Let the declared types follow where an edit made a value one of another element type."""
        table = self.table
        changed = {table.name[v]: t for v, t in table.changed_types.items() if table.value_scope[v] == scope.id}
        for info in graph.value_info if changed else ():
            if info.name in changed:
                info.type.tensor_type.elem_type = changed[info.name].value


def remove_named(field: Any, names: set[str]) -> None:
    """Take the entries of these names out of a repeated field, keeping the order of the others."""
    keep = [entry.name not in names for entry in field]
    keys = iter([0 if kept else 1 for kept in keep])
    field.sort(key=lambda _: next(keys))
    del field[sum(keep) :]


def write_tensor(proto: TensorProto, held: Held) -> None:
    if not isinstance(held, np.ndarray):
        ir.serde.serialize_tensor_into(proto, held)
        return
    describe(proto, held)
    proto.raw_data = held.astype(held.dtype.newbyteorder("<"), copy=False).tobytes()


def describe(proto: TensorProto, array: np.ndarray) -> None:
    proto.data_type = dtype_of(array).value
    proto.dims.extend(array.shape)


def tensor_info(name: str, held: Held) -> ValueInfoProto:
    info = ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = dtype_of(held).value
    for dim in shape_of(held):
        info.type.tensor_type.shape.dim.add(dim_value=dim)
    if not shape_of(held):
        info.type.tensor_type.shape.SetInParent()
    return info


def attribute_proto(key: str, version: int, name: str, value: Any) -> AttributeProto:
    """An attribute as protobuf: engine values by the schema, messages of a source as they are."""
    if isinstance(value, (int, float, str, list)):
        return schemas.make_attribute(key, version, name, value)
    if isinstance(value, AttributeReference):
        raise ValueError(f"attribute {name!r} refers to an attribute of the function and cannot be written")
    if isinstance(value, ir.Graph):
        value = ir.serde.serialize_graph(value)
    if isinstance(value, GraphProto):
        return AttributeProto(name=name, type=AttributeProto.GRAPH, g=value)
    if isinstance(value, ir.TensorProtocol):
        proto = AttributeProto(name=name, type=AttributeProto.TENSOR)
        ir.serde.serialize_tensor_into(proto.t, value)
        return proto
    return schemas.make_attribute(key, version, name, value)
