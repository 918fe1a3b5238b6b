"""Types: element type and shape of a value, from the nearest source that knows.

A constant's tensor, else what the model declares, else what the schema says of a node that an edit made, else shape
inference over the whole input model, which runs at most once and only when a rule asks for a type nobody declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from rewriter import schemas
from rewriter.engine import constants
from rewriter.engine.scope import NewNode, ValueType

if TYPE_CHECKING:
    from rewriter.engine.table import Table

UNKNOWN = ValueType(None, None)

Known = tuple[ValueType, ir.TensorProtocol | None]  # of an input: its type, and the tensor where it is a constant


def type_of(table: Table, value: int, search: bool = True) -> ValueType:
    """Element type and shape of a value; either may be None. Without `search`, only what needs no inference."""
    found = type_as_read(table, value, search)
    changed = table.changed_types.get(value)
    return found if changed is None else ValueType(changed, found.shape)


def type_as_read(table: Table, value: int, search: bool) -> ValueType:
    """The same, before any edit said that an element type is another one."""
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
        return from_schema(table, node, search).get(value, found or UNKNOWN)
    if node and constants.is_constant(table, value):
        tensor = constants.tensor(table, value)
        return ValueType(tensor.dtype, tuple(tensor.shape.numpy()))
    if not search:
        return found or UNKNOWN
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


def from_schema(table: Table, node: int, search: bool = True) -> dict[int, ValueType]:
    """What the schema's inference says of a node's outputs, given the types of its inputs."""
    inputs: list[Known | None] = []
    for v in table.inputs[node]:
        inputs.append((type_of(table, v, search), stored(table, v)) if v else None)
    outputs = table.outputs[node]
    found = infer(table, table.op[node], table.version(node), inputs, len(outputs), table.attributes(node))
    return {v: known for v, known in zip(outputs, found, strict=True) if v and known is not UNKNOWN}


def stored(table: Table, value: int) -> ir.TensorProtocol | None:
    """The initializer that a value is, for inference that depends on elements (a Reshape's shape)."""
    held = table.initializer.get(value)
    return None if held is None or value in table.overridable else table.access.tensor(held)


def infer(
    table: Table, op: str, version: int, inputs: Sequence[Known | None], outputs: int, attributes: Mapping[str, Any]
) -> list[ValueType]:
    """The types of a node's outputs, by the schema: the node may be one of the table's, or only planned."""
    from rewriter.models.proto import value_type
    from rewriter.models.sink import attribute_proto

    domain, op_type = schemas.split_key(op)
    unknown = [UNKNOWN] * outputs
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return unknown
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    one = onnx.NodeProto(op_type=op_type, domain=domain)
    for k, known in enumerate(inputs):
        name = "" if known is None else f"i{k}"
        one.input.append(name)
        proto = None if known is None else type_proto(known[0])
        if proto is not None:
            types[name] = proto
        tensor = None if known is None else known[1]
        if tensor is not None and tensor.nbytes <= 1024:
            data[name] = ir.serde.serialize_tensor(tensor)
    one.output.extend([f"o{k}" for k in range(outputs)])
    try:
        for name, value in attributes.items():
            one.attribute.append(attribute_proto(op, version, name, value))
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            one,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(domain, version)],
            ir_version=table.ir_version,
        )
    except Exception:  # inference is help: what it cannot tell stays unknown
        return unknown
    return [(value_type(inferred[f"o{k}"]) if f"o{k}" in inferred else None) or UNKNOWN for k in range(outputs)]
