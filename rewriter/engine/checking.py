"""Checking an edit before anything is touched: what would break the model is refused.

Names of ops, inputs, attributes and element types are held against the schemas at the model's opset, what is replaced
against what replaces it, and every value against the scope from which it is read. What the rule's author did wrong is a
RuleError; what cannot be done in this model is a Decline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rewriter import schemas
from rewriter.engine.held import dtype_of
from rewriter.engine.inline import body_of
from rewriter.engine.order import Placement, place_edit
from rewriter.engine.types import type_of
from rewriter.errors import Decline

if TYPE_CHECKING:
    from rewriter.engine.edit import Edit, Operand, PlannedNode


def check(edit: Edit) -> Placement:
    """Refuse what would break the model: RuleError for a wrong edit, Decline for one that cannot be placed."""
    table = edit.table
    imports = edit.scope.opsets
    check_scopes(edit)
    check_used(edit)
    for planned in edit.nodes:
        domain, op_type = schemas.split_key(planned.op)
        version = imports.get(domain, 1)
        info = schemas.op_info(planned.op, version)
        if info is None:
            if domain in ("", "ai.onnx.ml"):
                raise Decline(f"the target's {op_type} does not exist at opset {version} of this model")
            continue
        check_inputs(edit, info, [bool(v) for v in planned.inputs], op_type, version)
        missing = info.required_attributes - set(planned.attributes)
        if missing:
            raise edit.error(f"the new {op_type} lacks its attribute {', '.join(sorted(missing))}")
        if len(planned.outputs) > info.max_outputs:
            raise edit.error(f"the new {op_type} has at most {info.max_outputs} outputs, not {len(planned.outputs)}")
        for name, attribute in planned.attributes.items():
            if name not in info.attribute_types:
                raise Decline(f"the target's {op_type} has no attribute {name!r} at opset {version} of this model")
            check_attribute(edit, info, name, attribute)
        check_types(edit, info, planned)
    rewired: dict[int, list[Operand]] = {}
    for node, slot, value in edit.inputs:
        if table.scope_of[node] != edit.scope.id:
            raise Decline(f"node {table.label(node)!r} lies in another scope; nodes are changed in one scope only")
        inputs = rewired.setdefault(node, list(table.inputs[node]))
        inputs.extend([0] * (slot + 1 - len(inputs)))
        inputs[slot] = value
    for node, inputs in rewired.items():
        version = table.version(node)
        info = schemas.op_info(table.op[node], version)
        if info is not None:
            while inputs and not inputs[-1]:
                inputs.pop()
            check_inputs(edit, info, [bool(v) for v in inputs], table.op[node], version)
    for node, name, value in edit.attributes:
        info = schemas.op_info(table.op[node], table.version(node))
        if info is not None and value is not None and name not in info.attribute_types:
            raise Decline(f"{table.op[node]} has no attribute {name!r} at opset {table.version(node)} of this model")
        if info is not None and value is not None:
            check_attribute(edit, info, name, value)
    for old, new in edit.replacements:
        check_replacement(edit, old, new)
    return place_edit(edit)


def check_used(edit: Edit) -> None:
    """What an author's edit makes is used, each value is replaced once, and what is inlined is there."""
    replaced = [old for old, _ in edit.replacements]
    for old in replaced:
        if not edit.table.producer[old]:
            problem = f"{edit.table.name[old]!r} is produced by no node, so it cannot be replaced"
            raise edit.error(problem) if edit.rule.definition.target is None else Decline(problem)
        if replaced.count(old) > 1:
            raise edit.error(f"{edit.table.name[old]!r} is replaced twice")
    for node, attribute in edit.inlined:
        body_of(edit.table, node, attribute)
    if edit.rule.definition.target is not None:
        return
    read = {id(v) for planned in edit.nodes for v in planned.inputs} | {id(v) for _, _, v in edit.inputs}
    read |= {id(v) for _, v in edit.replacements}
    for planned in edit.nodes:
        if not any(id(made) in read for made in planned.outputs):
            raise edit.error(f"nothing uses the new {schemas.split_key(planned.op)[1]}")


def check_scopes(edit: Edit) -> None:
    """What is replaced lies in the edit's own scope, and what is read can be seen from there."""
    table = edit.table
    if len(table.scopes) == 1:
        return
    for old, _ in edit.replacements:
        if table.value_scope[old] != edit.scope.id:
            raise Decline(f"{table.name[old]!r} lies in another scope; nodes are changed in one scope only")
    read = [v for planned in edit.nodes for v in planned.inputs]
    read += [v for _, _, v in edit.inputs] + [v for _, v in edit.replacements]
    for value in read:
        if isinstance(value, int) and value and not table.scopes[table.value_scope[value]].encloses(edit.scope):
            raise Decline(f"{table.name[value]!r} lies in an inner scope, where the rewrite cannot read it")


def check_types(edit: Edit, info: schemas.OpInfo, planned: PlannedNode) -> None:
    """New constants have the element types that the schema wants beside what is there."""
    fresh = {id(new): dtype_of(held) for new, held in edit.constants}
    if not info.input_types or not any(not isinstance(v, int) and id(v) in fresh for v in planned.inputs):
        return
    seen: dict[str, tuple[int, ir.DataType]] = {}
    for slot, value in enumerate(planned.inputs):
        kind = info.input_types[min(slot, len(info.input_types) - 1)]
        dtype = fresh.get(id(value)) if not isinstance(value, int) else stated_type(edit, value)
        if dtype is None or (info.variadic and not info.homogeneous and slot >= len(info.input_types) - 1):
            continue
        other, first = seen.setdefault(kind, (slot, dtype))
        if first != dtype:
            raise edit.error(
                f"inputs {other} and {slot} of {info.key} must have one element type, "
                f"they are {first.name.lower()} and {dtype.name.lower()}"
            )


def stated_type(edit: Edit, value: int) -> ir.DataType | None:
    """The element type that a value will have, as far as that is known without inference and the edit leaves it."""
    rewired = {node for node, _, _ in edit.inputs}
    if any(old == value for old, _ in edit.replacements) or edit.table.producer[value] in rewired:
        return None
    said = [dtype for changed, dtype in edit.types if changed == value]
    if said or not value:
        return said[-1] if said else None
    return type_of(edit.table, value).dtype


def check_attribute(edit: Edit, info: schemas.OpInfo, name: str, value: Any) -> None:
    """Its type must be the schema's; messages of a source (graphs, tensors) are as they were read."""
    if isinstance(value, (bool, int, float, str, list, tuple, np.ndarray, np.generic)):
        try:
            schemas.attribute_value(value, info.attribute_types[name])
        except ValueError as error:
            raise edit.error(f"attribute {name!r} of {info.key}: {error}") from None


def check_inputs(edit: Edit, info: schemas.OpInfo, present: list[bool], op_type: str, version: int) -> None:
    if len(present) > info.max_inputs and not info.variadic:
        raise Decline(f"{op_type} takes at most {info.max_inputs} inputs at opset {version} of this model")
    for slot, required in enumerate(info.required):
        if required and not (slot < len(present) and present[slot]):
            raise edit.error(f"{op_type} would lose its required input {slot} ({info.input_names[slot]!r})")


def check_replacement(edit: Edit, old: int, new: Operand) -> None:
    if not new:
        raise edit.error(f"the returned value {edit.table.name[old]!r} may not be absent")
    if isinstance(new, int):
        was, becomes = type_of(edit.table, old), type_of(edit.table, new)
    else:  # without constants of its own, an edit is judged by what is declared: nothing is inferred for it
        search = bool(edit.constants)
        was = type_of(edit.table, old, search)
        becomes = edit.planned_type(new, search) if was.dtype is not None else was
    name = edit.table.name[old]
    if was.dtype is not None and becomes.dtype is not None and was.dtype != becomes.dtype:
        raise Decline(f"{name!r} is {was.dtype.name.lower()}, what would replace it {becomes.dtype.name.lower()}")
    if was.shape is None or becomes.shape is None:
        return
    pairs = list(zip(was.shape, becomes.shape, strict=False))
    if len(was.shape) != len(becomes.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs
    ):
        raise Decline(f"{name!r} is of shape {list(was.shape)}, what would replace it of {list(becomes.shape)}")
