"""ModelProto as a source: one pass over the protobuf message fills the table.

Nothing is converted and nothing is copied: a node's handle is its NodeProto, an initializer's its TensorProto. The
pass resolves names scope by scope, outer before inner, and so finds what is wrong with a graph (dangling or doubled
names, cycles) as a by-product, each a `ModelError` that names graph, node and tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from rewriter.engine.table import GAP, Scope, Shape, Table, ValueType, check_order
from rewriter.errors import ModelError
from rewriter.schemas import op_key

WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


class AttributeReference:
    """An attribute of a function's node that stands for the caller's attribute of that name."""

    def __init__(self, name: str) -> None:
        self.name = name


def attribute_value(proto: AttributeProto) -> Any:
    """An AttributeProto as a Python value; tensors as ir.TensorProtocol; other messages as they are."""
    if proto.ref_attr_name:
        return AttributeReference(proto.ref_attr_name)
    kind = proto.type
    if kind == AttributeProto.INT:
        return proto.i
    if kind == AttributeProto.FLOAT:
        return proto.f
    if kind == AttributeProto.STRING:
        return proto.s.decode("utf-8", "surrogateescape")
    if kind == AttributeProto.INTS:
        return list(proto.ints)
    if kind == AttributeProto.FLOATS:
        return list(proto.floats)
    if kind == AttributeProto.STRINGS:
        return [s.decode("utf-8", "surrogateescape") for s in proto.strings]
    if kind == AttributeProto.TENSOR:
        return ir.serde.TensorProtoTensor(proto.t)
    if kind == AttributeProto.GRAPH:
        return proto.g
    return onnx.helper.get_attribute_value(proto) if kind else None


def value_type(proto: onnx.TypeProto) -> ValueType | None:
    """The tensor type that a TypeProto states, None where it states none."""
    if not proto.HasField("tensor_type"):
        return None
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    shape: Shape | None = None
    if tensor.HasField("shape"):
        shape = tuple(
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None) if d.HasField("dim_param") else None
            for d in tensor.shape.dim
        )
    return ValueType(dtype, shape)


class ProtoAccess:
    """What the table reads behind its handles when its source is a ModelProto."""

    def __init__(self, model: ModelProto, base: Path | None) -> None:
        self.model = model
        self.base = base
        self._declared: dict[int, dict[str, ValueType]] = {}
        self._inferred: dict[str, ValueType] | None = None
        self._annotated: set[str] | None = None

    def attributes(self, handle: NodeProto) -> dict[str, Any]:
        return {a.name: attribute_value(a) for a in handle.attribute}

    def node_name(self, handle: NodeProto) -> str:
        return handle.name

    def tensor(self, handle: Any) -> ir.TensorProtocol:
        if not isinstance(handle, TensorProto):
            found: ir.TensorProtocol = handle
            return found
        if handle.data_location == TensorProto.EXTERNAL:
            from rewriter.models.external import external_tensor

            return external_tensor(handle, self.base)
        return ir.serde.TensorProtoTensor(handle)

    def declared_type(self, scope: Scope, name: str) -> ValueType | None:
        declared = self._declared.get(scope.id)
        if declared is None:
            declared = {}
            graph = scope.handle
            infos = list(graph.value_info)
            if scope.kind != "function":
                infos += [*graph.input, *graph.output]
            for info in infos:
                found = value_type(info.type)
                if found is not None:
                    declared[info.name] = found
            self._declared[scope.id] = declared
        return declared.get(name)

    def is_annotated(self, name: str) -> bool:
        """Whether a quantization annotation names this value."""
        if self._annotated is None:
            self._annotated = {
                text
                for graph in graphs_of(self.model)
                for note in graph.quantization_annotation
                for text in (note.tensor_name, *(p.value for p in note.quant_parameter_tensor_names))
            }
        return name in self._annotated

    def all_names(self) -> set[str]:
        names: set[str] = set()
        for graph in graphs_of(self.model):
            names.update(i.name for i in graph.input)
            names.update(i.name for i in graph.output)
            names.update(i.name for i in graph.value_info)
            names.update(i.name for i in graph.initializer)
            names.update(i.values.name for i in graph.sparse_initializer)
            nodes_names(graph.node, names)
        for function in self.model.functions:
            names.update(function.input)
            names.update(function.output)
            names.update(i.name for i in function.value_info)
            nodes_names(function.node, names)
        for training in self.model.training_info:
            for graph in (training.initialization, training.algorithm):
                names.update(i.name for i in graph.initializer)
                nodes_names(graph.node, names)
        return names

    def inferred_types(self) -> Mapping[str, ValueType]:
        if self._inferred is None:
            self._inferred = {}
            try:
                inferred = onnx.shape_inference.infer_shapes(self.model)
            except Exception:  # inference is help, not truth: a model it cannot read has unknown types
                return self._inferred
            for info in inferred.graph.value_info:
                found = value_type(info.type)
                if found is not None:
                    self._inferred[info.name] = found
        return self._inferred


def nodes_names(nodes: Any, names: set[str]) -> None:
    for node in nodes:
        names.add(node.name)
        names.update(node.input)
        names.update(node.output)


def graphs_of(model: ModelProto) -> list[GraphProto]:
    """The main graph and every body in it and in the functions."""
    found = [model.graph]
    holders: list[Any] = [model.graph, *model.functions]
    while holders:
        for node in holders.pop().node:
            for attribute in node.attribute:
                bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)
                found += bodies
                holders += bodies
    return found


def read_proto(model: ModelProto, base: Path | None = None) -> Table:
    """Read a ModelProto into a table. `base` is the folder of its external data. Raises ModelError."""
    if not isinstance(model, ModelProto):
        raise TypeError(f"expected an onnx.ModelProto, got {type(model).__name__}")
    if not model.HasField("graph"):
        raise ModelError("the model has no graph: the file is empty, or no ONNX model")
    table = Table(ProtoAccess(model, base), model.ir_version)
    reader = _Reader(table)
    opsets = opsets_of(model.opset_import)
    reader.read_graph(model.graph, Scope(0, "graph", model.graph.name or "graph", None, 0, "", model.graph, opsets))
    for function in model.functions:
        scope = Scope(0, "function", function.name, None, 0, "", function, opsets_of(function.opset_import))
        reader.read_function(function, scope)
    reader.read_bodies()
    table.rank = list(range(0, len(table.op) * GAP, GAP))
    table.next = [0] * len(table.op)
    table.previous = [0] * len(table.op)
    for scope in table.scopes:
        table.link(scope)
    for scope_id in sorted(reader.unsorted):
        check_order(table, table.scopes[scope_id])
    table.index_ops()
    return table


def opsets_of(imports: Any) -> dict[str, int]:
    return {("" if i.domain == "ai.onnx" else i.domain): i.version for i in imports}


class _Reader:
    def __init__(self, table: Table) -> None:
        self.table = table
        self.bodies: list[tuple[int, Scope, str, GraphProto]] = []
        self.unsorted: set[int] = set()

    def read_graph(self, graph: GraphProto, scope: Scope) -> None:
        table = self.table
        self.enter(scope)
        for info in graph.input:
            table.is_input.add(self.define(info.name, scope, "graph input"))
        may_override = table.ir_version >= 4
        for tensor in graph.initializer:
            name = tensor.name
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
            table.initializer[value] = tensor
        for sparse in graph.sparse_initializer:
            if sparse.values.name not in scope.values:
                self.define(sparse.values.name, scope, "sparse initializer")
        pending = self.read_nodes(graph.node, scope)
        self.finish(scope, pending, [info.name for info in graph.output])

    def read_function(self, function: onnx.FunctionProto, scope: Scope) -> None:
        self.enter(scope)
        for name in function.input:
            self.table.is_input.add(self.define(name, scope, "function input"))
        pending = self.read_nodes(function.node, scope)
        self.finish(scope, pending, list(function.output))

    def read_bodies(self) -> None:
        done = 0
        while done < len(self.bodies):
            owner, parent, attribute, graph = self.bodies[done]
            done += 1
            self.read_graph(graph, Scope(0, "body", graph.name, parent, owner, attribute, graph, parent.opsets))

    def enter(self, scope: Scope) -> None:
        scope.id = len(self.table.scopes)
        self.table.add_scope(scope)

    def define(self, name: str, scope: Scope, what: str) -> int:
        if name in scope.values:
            raise ModelError(f"graph {scope.name!r}: the name {name!r} of a {what} is defined twice")
        value = self.table.add_value(name, scope.id)
        scope.values[name] = value
        return value

    def read_nodes(self, nodes: Any, scope: Scope) -> dict[str, int]:
        """The hot loop: about 3 us a node. Returns the names used before they were defined."""
        table = self.table
        values, parent, scope_id = scope.values, scope.parent, scope.id
        ops, inputs, outputs, scope_of, handles = table.op, table.inputs, table.outputs, table.scope_of, table.handle
        producer, uses, members = table.producer, table.uses, scope.nodes
        pending: dict[str, int] = {}
        add_value = table.add_value
        for node in nodes:
            number = len(ops)
            domain, op_type = node.domain, node.op_type
            ops.append(op_key(domain, op_type) if domain else op_type)
            read: list[int] = []
            for name in node.input:
                value = values.get(name, 0)
                if not value and name:
                    value = self.lookup(name, parent) or self.promise(name, scope, pending)
                read.append(value)
                if value:
                    uses[value].append(number)
            while read and not read[-1]:
                read.pop()
            written: list[int] = []
            for name in node.output:
                if not name:
                    written.append(0)
                    continue
                if name in values:
                    value = pending.pop(name, 0)
                    if not value:
                        raise ModelError(
                            f"graph {scope.name!r}: node {node.name or op_type!r} writes {name!r}, which is defined already"
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
                for attribute in node.attribute:
                    if attribute.type == AttributeProto.GRAPH:
                        self.bodies.append((number, scope, attribute.name, attribute.g))
                    for position, graph in enumerate(attribute.graphs):
                        self.bodies.append((number, scope, f"{attribute.name}[{position}]", graph))
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

    def finish(self, scope: Scope, pending: dict[str, int], output_names: list[str]) -> None:
        table = self.table
        for name, value in pending.items():
            user = table.uses[value][0]
            raise ModelError(
                f"graph {scope.name!r}: node {table.label(user)!r} ({table.op[user]}) reads {name!r}, which nothing produces"
            )
        for name in output_names:
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
