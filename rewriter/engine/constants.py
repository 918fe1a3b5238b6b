"""Constants: what is computable at build time, and its value.

Constant are initializers that the caller cannot override, outputs of Constant nodes, and small cones of pure ops over
those (`FOLDABLE`). Whether a value is constant is answered from the structure alone; its array is computed when
somebody asks for it. Tensors stay memory-mapped, and cones are evaluated by onnx's own reference operators, op by op in
the types of the model: a product of float32 is rounded to float32, as it is when the model runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from rewriter import schemas
from rewriter.errors import ModelError

if TYPE_CHECKING:
    from rewriter.engine.table import Table

FOLDABLE = frozenset(
    {
        "Identity",
        "Cast",
        "Transpose",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "ConstantOfShape",
        "Neg",
        "Abs",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Sqrt",
        "Concat",
        "Slice",
        "Gather",
        "Expand",
        "QuantizeLinear",
        "DequantizeLinear",
        *schemas.STANDARD,
    }
)
MAX_CONE = 64  # nodes between a constant and what it is computed from

RTOL, ATOL = 1e-5, 1e-8  # how near a float constant must be to a pattern's literal; half types get two of their steps


def is_constant(table: Table, value: int) -> bool:
    """Whether the value is computable at build time."""
    left = MAX_CONE
    stack = [value]
    seen: set[int] = set()
    while stack:
        one = stack.pop()
        if one in seen:
            continue
        seen.add(one)
        node = table.producer[one]
        if not node:
            if one not in table.initializer or one in table.overridable:
                return False
            continue
        op = table.op[node]
        if op == "Constant":
            if not any(is_plain(v) for v in table.attributes(node).values()):
                return False
            continue
        left -= 1
        if op not in FOLDABLE or left < 0:
            return False
        stack.extend(v for v in table.inputs[node] if v)
    return True


def is_plain(value: Any) -> bool:
    plain = isinstance(value, (int, float, str, list))  # asking a protocol is dear
    return plain or isinstance(value, ir.TensorProtocol)


def tensor(table: Table, value: int) -> ir.TensorProtocol:
    """The constant as a tensor, not yet read where it is stored whole. Raises ValueError where it is none."""
    if not is_constant(table, value):
        raise ValueError(f"{table.name[value]!r} is no constant")
    node = table.producer[value]
    if not node:
        return table.access.tensor(table.initializer[value])
    if table.op[node] == "Constant":
        return constant_node_tensor(table, node)
    if table.op[node] == "Identity":
        return tensor(table, table.inputs[node][0])
    return ir.tensor(evaluate(table, node)[table.outputs[node].index(value)])


def array(table: Table, value: int) -> np.ndarray:
    """The constant's elements. Raises ModelError where the stored tensor cannot be read."""
    found = tensor(table, value)
    try:
        return found.numpy()
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        raise ModelError(f"tensor {table.name[value]!r} cannot be read: {error}") from error


def constant_node_tensor(table: Table, node: int) -> ir.TensorProtocol:
    for name, value in table.attributes(node).items():
        if isinstance(value, ir.TensorProtocol):
            return value
        if name in ("value_int", "value_ints"):
            return ir.tensor(np.array(value, np.int64))
        if name in ("value_float", "value_floats"):
            return ir.tensor(np.array(value, np.float32))
        if name in ("value_string", "value_strings"):
            return ir.tensor([value] if isinstance(value, str) else value, dtype=ir.DataType.STRING)
    raise ModelError(f"Constant node {table.label(node)!r} holds no value")


def evaluate(table: Table, node: int) -> list[np.ndarray]:
    """The outputs of a foldable node. Raises ModelError where the reference operators refuse it."""
    from onnx.reference import ReferenceEvaluator

    op = table.op[node]
    inputs = [array(table, v) if v else None for v in table.inputs[node]]
    _, op_type = schemas.split_key(op)
    version = table.version(node, "")
    if op_type in ("QuantizeLinear", "DequantizeLinear"):
        version = max(table.version(node, ""), 21)  # the reference has them from 19 on; older forms mean the same
    proto = onnx.helper.make_node(
        op_type,
        [f"i{k}" if a is not None else "" for k, a in enumerate(inputs)],
        [f"o{k}" for k in range(len(table.outputs[node]))],
    )
    for name, value in table.attributes(node).items():
        if (
            op_type in ("QuantizeLinear", "DequantizeLinear")
            and inputs[1] is not None
            and inputs[1].size == 1
            and name == "axis"
        ):
            continue
        if isinstance(value, ir.TensorProtocol):
            proto.attribute.append(onnx.helper.make_attribute(name, ir.serde.serialize_tensor(value)))
        else:
            proto.attribute.append(schemas.make_attribute(op_type, version, name, value))
    if op_type in ("QuantizeLinear", "DequantizeLinear") and inputs[1] is not None and inputs[1].shape == (1,):
        inputs[1:] = [None if a is None else a.reshape(()) for a in inputs[1:]]
    try:
        runner = ReferenceEvaluator(proto, opsets={"": version})
        found: Any = runner.run(None, {f"i{k}": a for k, a in enumerate(inputs) if a is not None})
    except Exception as error:
        raise ModelError(f"node {table.label(node)!r} ({op}) cannot be computed at build time: {error}") from error
    return list(found)


def same(table: Table, a: int, b: int) -> bool:
    """Whether two values agree: the same value, or constants equal in type, shape and bytes."""
    if a == b:
        return True
    if not (a and b and is_constant(table, a) and is_constant(table, b)):
        return False
    x, y = tensor(table, a), tensor(table, b)
    if x.dtype != y.dtype or list(x.shape.numpy()) != list(y.shape.numpy()):
        return False
    return array(table, a).tobytes() == array(table, b).tobytes()


def is_literal(table: Table, value: int, wanted: np.ndarray) -> bool:
    """Whether a value is the constant that a pattern writes: exact for integers, within RTOL and ATOL for floats.

    A scalar literal is met by one element of shape [] or [1], a list by a 1-D tensor of its length. Types may differ
    (`2` is met by 2.0), as ONNX Script casts a literal to its neighbour's type.
    """
    if not value or not is_constant(table, value):
        return False
    stored = tensor(table, value)
    shape = tuple(stored.shape.numpy())
    if wanted.ndim == 0:
        if shape not in ((), (1,)):
            return False
    elif shape != wanted.shape:
        return False
    if stored.dtype == ir.DataType.STRING:
        return False
    have = array(table, value)
    if have.dtype.kind in "iub" and wanted.dtype.kind in "iub":
        return bool(np.array_equal(have.reshape(wanted.shape), wanted))
    rtol = RTOL
    if stored.dtype == ir.DataType.FLOAT16:
        rtol = 2.0**-10
    elif stored.dtype == ir.DataType.BFLOAT16:
        rtol = 2.0**-7
    return bool(
        np.allclose(have.reshape(wanted.shape).astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=ATOL)
    )
