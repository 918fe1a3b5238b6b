"""Types: element type and shape of a value, from the nearest source that knows.

A constant's tensor, else what the model declares, else what the schema says of a node that an edit made, else shape
inference over the whole input model, which runs at most once and only when a rule asks for a type nobody declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from rewriter import schemas
from rewriter.engine import constants
from rewriter.engine.table import NewNode, ValueType

if TYPE_CHECKING:
    from rewriter.engine.table import Table

UNKNOWN = ValueType(None, None)


def type_of(table: Table, value: int) -> ValueType:
    """Element type and shape of a value; either may be None."""
    held = table.initializer.get(value)
    if held is not None:
        tensor = table.access.tensor(held)
        return ValueType(tensor.dtype, tuple(tensor.shape.numpy()))
    scope = table.scopes[table.value_scope[value]]
    found = table.access.declared_type(scope, table.name[value])
    if found is not None and found.dtype is not None and found.shape is not None:
        return found
    node = table.producer[value]
    if node and table.op[node] == "Constant":
        tensor = constants.constant_node_tensor(table, node)
        return ValueType(tensor.dtype, tuple(tensor.shape.numpy()))
    if node and type(table.handle[node]) is NewNode:
        return from_schema(table, node).get(value, found or UNKNOWN)
    if node and constants.is_constant(table, value):
        tensor = constants.tensor(table, value)
        return ValueType(tensor.dtype, tuple(tensor.shape.numpy()))
    if scope.kind == "graph":
        inferred = table.access.inferred_types().get(table.name[value])
        if inferred is not None:
            return inferred
    if node and found is None:
        return from_schema(table, node).get(value, UNKNOWN)
    return found or UNKNOWN


def type_proto(known: ValueType) -> onnx.TypeProto | None:
    if known.dtype is None:
        return None
    shape = None if known.shape is None else list(known.shape)
    return onnx.helper.make_tensor_type_proto(known.dtype.value, shape)


def from_schema(table: Table, node: int) -> dict[int, ValueType]:
    """What the schema's inference says of a node's outputs, given the types of its inputs."""
    from rewriter.models.sink import attribute_proto

    domain, op_type = schemas.split_key(table.op[node])
    version = table.version(node)
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    names = table.name
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for v in table.inputs[node]:
        if v:
            proto = type_proto(type_of(table, v))
            if proto is not None:
                types[names[v]] = proto
            held = table.initializer.get(v)
            if held is not None and v not in table.overridable:
                tensor = table.access.tensor(held)
                if tensor.nbytes <= 1024:
                    data[names[v]] = ir.serde.serialize_tensor(tensor)
    one = onnx.NodeProto(op_type=op_type, domain=domain)
    one.input.extend([names[v] for v in table.inputs[node]])
    one.output.extend([names[v] for v in table.outputs[node]])
    try:
        for name, value in table.attributes(node).items():
            one.attribute.append(attribute_proto(table.op[node], version, name, value))
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, one, types, data, opset_imports=[onnx.helper.make_opsetid(domain, version)], ir_version=table.ir_version
        )
    except Exception:  # inference is help: what it cannot tell stays unknown
        return {}
    from rewriter.models.proto import value_type

    found: dict[int, ValueType] = {}
    for v in table.outputs[node]:
        if v and names[v] in inferred:
            known = value_type(inferred[names[v]])
            if known is not None:
                found[v] = known
    return found
