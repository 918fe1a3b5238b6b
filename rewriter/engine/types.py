"""Types: element type and shape of a value, from the nearest source that knows.

A constant's tensor, else what the model declares, else what the schema says of a node that an edit made, else shape
inference over the whole input model, which runs at most once and only when a rule asks for a type nobody declared.
A function's input is what all calls of the function agree on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from rewriter import schemas
from rewriter.engine import constants
from rewriter.engine.held import dtype_of, shape_of
from rewriter.engine.scope import NewNode, ValueType

if TYPE_CHECKING:
    from rewriter.engine.table import Table

UNKNOWN = ValueType(None, None)

Known = tuple[ValueType, ir.TensorProtocol | None]  # of an input: its type, and the tensor where it is a constant


def type_of(table: Table, value: int, search: bool = True) -> ValueType:
    """Element type and shape of a value; either may be None. Without `search`, only what needs no inference.

    Where schemas must be asked, producers are asked first, one after the other and each once between two edits: chains
    of nodes whose types nobody declared may be long.
    """
    memo = table.types_known if search else table.types_stated
    known_type = memo.get(value)
    if known_type is None:
        known_type = memo[value] = find_type(table, value, search, memo)
    changed = table.changed_types.get(value)
    return known_type if changed is None else ValueType(changed, known_type.shape)


def find_type(table: Table, value: int, search: bool, memo: dict[int, ValueType]) -> ValueType:
    stack, started = [value], set[int]()
    while stack:
        one = stack[-1]
        if one in memo:
            stack.pop()
            continue
        found = stated_type(table, one)
        node = table.producer[one]
        if search and not is_complete(found) and table.scopes[table.value_scope[one]].kind == "graph":
            found = merged(found, table.access.inferred_types().get(table.name[one]))
        passed = [] if node or not search else arguments(table, one)
        if is_complete(found) or not (passed or (node and (search or type(table.handle[node]) is NewNode))):
            memo[one] = found
            continue
        before = [v for v in passed or table.inputs[node] if v and v not in memo]
        if before and one not in started:
            started.add(one)
            stack.extend(v for v in before if v not in started)
            continue
        if passed:
            memo[one] = merged(found, agreed([memo.get(v, UNKNOWN) for v in passed]))
            continue
        for output, known in from_schema(table, node, memo).items():
            memo.setdefault(output, merged(found if output == one else stated_type(table, output), known))
        memo.setdefault(one, found)
    return memo[value]


def is_complete(known: ValueType) -> bool:
    return known.dtype is not None and known.shape is not None and None not in known.shape


def merged(first: ValueType, second: ValueType | None) -> ValueType:
    """The first, completed by the second."""
    if second is None:
        return first
    shape = first.shape
    if shape is None or (second.shape is not None and len(shape) != len(second.shape)):
        shape = second.shape if shape is None else shape
    elif second.shape is not None:
        shape = tuple(b if a is None else a for a, b in zip(shape, second.shape, strict=True))
    return ValueType(first.dtype or second.dtype, shape)


def arguments(table: Table, value: int) -> list[int]:
    """What the calls of a function pass for this input of it (0: nothing); none for any other value."""
    if value not in table.parameter:
        return []
    key, slot = table.parameter[value]
    calls = [node for node in table.by_op.get(key, ()) if table.op[node] == key]
    return [table.inputs[node][slot] if slot < len(table.inputs[node]) else 0 for node in calls]


def agreed(types: Sequence[ValueType]) -> ValueType:
    """What holds for all of these. Symbols do not: each graph has its own."""
    dtype = types[0].dtype if len({one.dtype for one in types}) == 1 else None
    shapes = [one.shape for one in types if one.shape is not None]
    if len(shapes) < len(types) or len({len(shape) for shape in shapes}) > 1:
        return ValueType(dtype, None)
    columns = zip(*shapes, strict=True)
    return ValueType(dtype, tuple(c[0] if isinstance(c[0], int) and len(set(c)) == 1 else None for c in columns))


def stated_type(table: Table, value: int) -> ValueType:
    """What a stored tensor or a declaration says."""
    held = table.initializer.get(value)
    if held is not None:
        tensor = held if type(held) is np.ndarray else table.access.tensor(held)
        return ValueType(dtype_of(tensor), shape_of(tensor))
    found = table.access.declared_type(table.scopes[table.value_scope[value]], table.name[value]) or UNKNOWN
    node = table.producer[value]
    if (found.dtype is None or found.shape is None) and node:
        if table.op[node] == "Constant":
            tensor = constants.constant_node_tensor(table, node)
            return ValueType(tensor.dtype, tuple(tensor.shape.numpy()))
        if type(table.handle[node]) is not NewNode and constants.is_constant(table, value):
            tensor = constants.tensor(table, value)
            return ValueType(tensor.dtype, tuple(tensor.shape.numpy()))
    return found


def type_proto(known: ValueType) -> onnx.TypeProto | None:
    if known.dtype is None:
        return None
    shape = None if known.shape is None else list(known.shape)
    return onnx.helper.make_tensor_type_proto(known.dtype.value, shape)


def from_schema(table: Table, node: int, memo: Mapping[int, ValueType]) -> dict[int, ValueType]:
    """What the schema's inference says of a node's outputs, given the types of its inputs."""
    inputs: list[Known | None] = [(memo.get(v, UNKNOWN), stored(table, v)) if v else None for v in table.inputs[node]]
    outputs = table.outputs[node]
    found = infer(table, table.op[node], table.version(node), inputs, len(outputs), table.attributes(node))
    return {v: known for v, known in zip(outputs, found, strict=True) if v and known is not UNKNOWN}


def stored(table: Table, value: int) -> ir.TensorProtocol | None:
    """The tensor of an initializer or Constant node, for inference that depends on elements (a Reshape's shape)."""
    held = table.initializer.get(value)
    if held is not None:
        return None if value in table.overridable else table.access.tensor(held)
    node = table.producer[value]
    if table.op[node] == "Constant" and constants.is_constant(table, value):
        return constants.constant_node_tensor(table, node)
    return None


def infer(
    table: Table, op: str, version: int, inputs: Sequence[Known | None], outputs: int, attributes: Mapping[str, Any]
) -> list[ValueType]:
    """The types of a node's outputs, by the schema: the node may be one of the table's, or only planned."""
    from rewriter.models.proto import value_type
    from rewriter.models.sink import attribute_proto

    op, version = schemas.STANDARD.get(op, (op, version))
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
