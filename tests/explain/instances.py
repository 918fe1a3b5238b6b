"""Instances: models made from a rule's own pattern, and the same with one condition spoilt.

An instance has the pattern's nodes and nothing else. Its values are drawn from a few kinds until every marker holds, so
it is made to be matched and not to be run. What is spoilt is one question, at the very place where it is asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from rewriter import schemas
from rewriter.compiler.questions import Question, Space
from rewriter.compiler.variants import Variant
from rewriter.engine.table import Table
from rewriter.pattern.graph import AttributeParameter, PNode, PValue
from rewriter.pattern.markers import Maybe

OPSET = 21
KINDS = [
    np.zeros(shape, kind)
    for kind in (np.float32, np.uint8, np.int8, np.int32, np.int64, np.float16)
    for shape in ((), (1,), (2, 3), (3,), (2, 3, 3, 3), (2, 3, 3))
]
KINDS += [np.full(shape, 1, kind) for shape in ((), (1,), (2,)) for kind in (np.float32, np.int64)]
KINDS += [np.array(perm, np.int64) for perm in ((0, 2, 1), (0, 1, 3, 2))]


@dataclass(frozen=True)
class Facts:
    """What a marker is asked of: as a view of the engine has it."""

    value: np.ndarray
    is_constant: bool
    producer_type: str | None = None
    is_overridable: bool = False
    is_graph_input: bool = False
    is_graph_output: bool = False
    name: str = "value"

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType.from_numpy(self.value.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def numpy(self) -> np.ndarray:
        return self.value


def choose(value: PValue) -> tuple[np.ndarray, bool] | None:
    """An array that all markers of a parameter hold of, and whether it is a constant."""
    for constant, array in itertools.product((True, False), KINDS):
        facts: Any = Facts(array, constant, is_graph_input=not constant)
        try:
            if all(marker.holds(facts) for marker in value.markers if not isinstance(marker, Maybe)):
                return array, constant
        except Exception:  # a condition of an author's own may want more than there is here
            continue
    return None


def instance(variant: Variant, opset: int = OPSET) -> onnx.ModelProto | None:
    """The pattern as a model of this opset; None where no value fits a marker, or a part of the pattern is repeated."""
    if variant.lanes:
        return None
    graph = onnx.GraphProto(name="instance")
    names: dict[int, str] = {}
    for name, value in variant.parameters.items():
        chosen = choose(value)
        if chosen is None:
            return None
        array, constant = chosen
        names[id(value)] = name
        if constant:
            graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))

    def named(value: PValue | None) -> str:
        if value is None:
            return ""
        if id(value) not in names:
            if value.literal is not None:
                names[id(value)] = f"literal{len(names)}"
                graph.initializer.append(numpy_helper.from_array(value.literal, names[id(value)]))
            elif value.node is not None and value.node.chain:
                names[id(value)] = named(value.node.inputs[0])
            else:
                names[id(value)] = f"value{len(names)}"
        return names[id(value)]

    for node in variant.nodes:
        if not node.chain:
            graph.node.append(made(node, [named(v) for v in node.inputs], [named(v) for v in node.outputs]))
    for value in variant.outputs:
        graph.output.append(helper.make_tensor_value_info(named(value), TensorProto.FLOAT, None))
    domains = {schemas.split_key(node.types[0])[0] for node in variant.nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def made(node: PNode, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    domain, op = schemas.split_key(node.types[0])
    proto = helper.make_node(op, inputs, outputs, name=f"node_{outputs[0]}", domain=domain)
    info = schemas.op_info(node.types[0], OPSET)
    for name, value in node.attributes.items():
        if isinstance(value, AttributeParameter):
            if value.default is None:
                proto.attribute.append(helper.make_attribute(name, {int: 1, float: 1.0, str: "a"}.get(value.type, [1])))
        elif isinstance(value, np.ndarray):
            proto.attribute.append(helper.make_attribute(name, numpy_helper.from_array(value)))
        else:
            kind = info.attribute_types.get(name) if info is not None else None
            proto.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    return proto


# -- spoiling ----------------------------------------------------------------------------------------


class Spoiler:
    """Spoils one question at a time in a model that a variant matches, given where everything is."""

    def __init__(self, model: onnx.ModelProto, table: Table, space: Space, at: Mapping[int, object]) -> None:
        self.model = model
        self.table = table
        self.space = space
        self.at = at

    def spoil(self, question: Question, variant: Variant) -> onnx.ModelProto | None:
        """The model with this question spoilt; None where that cannot be done by itself."""
        self.spoilt = onnx.ModelProto()
        self.spoilt.CopyFrom(self.model)
        self.graph = self.spoilt.graph
        self.variant = variant
        spoil = getattr(self, question.kind, None)
        try:
            return self.spoilt if spoil is not None and spoil(question) else None
        except LookupError:
            return None

    def node(self, position: int) -> onnx.NodeProto:
        label = self.table.label(self.held(position))
        found: list[onnx.NodeProto] = [node for node in self.graph.node if node.name == label]
        if not found:
            raise LookupError(label)  # an absent input has no producer
        return found[0]

    def held(self, position: int) -> int:
        held = self.at[position]
        assert isinstance(held, int)
        return held

    def name(self, position: int) -> str:
        return self.table.name[self.held(position)]

    def stored(self, name: str) -> onnx.TensorProto | None:
        return next((tensor for tensor in self.graph.initializer if tensor.name == name), None)

    def put(self, position: int, name: str) -> bool:
        """Let the node read another value where this position is one of its inputs."""
        place = self.space.positions[position]
        if place.kind not in ("input", "operand"):
            return False
        node = self.node(place.parent)
        slot = place.argument
        if place.kind == "operand":
            slot = list(node.input).index(self.name(position))
        node.input.extend([""] * (slot + 1 - len(node.input)))
        node.input[slot] = name
        return True

    def fresh(self, array: np.ndarray) -> str:
        self.graph.initializer.append(numpy_helper.from_array(array, "fresh"))
        return "fresh"

    # -- by kind -----------------------------------------------------------------------------------

    def op(self, question: Question) -> bool:
        node = self.node(question.positions[0])
        node.op_type, node.domain = "Strange", "elsewhere"
        self.spoilt.opset_import.append(helper.make_opsetid("elsewhere", 1))
        return True

    def attribute(self, question: Question) -> bool:
        node, wanted = self.node(question.positions[0]), question.argument
        held = next((a for a in node.attribute if a.name == wanted.name), None)
        if held is None:  # its default
            held = node.attribute.add()
            held.CopyFrom(helper.make_attribute(wanted.name, wanted.value))
        if held.type == onnx.AttributeProto.INT:
            held.i += 1
        elif held.type == onnx.AttributeProto.FLOAT:
            held.f += 1
        elif held.type == onnx.AttributeProto.STRING:
            held.s += b"x"
        else:
            held.ints.append(1)
        return True

    def same_attribute(self, question: Question) -> bool:
        node, name = self.node(question.positions[1]), question.argument[1]
        held = next((a for a in node.attribute if a.name == name), None)
        if held is None:
            node.attribute.append(helper.make_attribute(name, 7))
        else:
            held.i += 1
        return True

    def no_more(self, question: Question) -> bool:
        node = self.node(question.positions[0])
        fresh = self.fresh(np.zeros(2, np.float32))
        node.input.extend([""] * (question.argument - len(node.input)) + [fresh])
        return True

    def uses(self, question: Question) -> bool:
        self.graph.node.append(helper.make_node("Abs", [self.name(question.positions[0])], ["aside"], name="aside"))
        return True

    def inner(self, question: Question) -> bool:
        name = self.name(question.positions[0])
        self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return True

    def present(self, question: Question) -> bool:
        return self.put(question.positions[0], "")

    def absent(self, question: Question) -> bool:
        return self.put(question.positions[0], self.fresh(np.zeros((), np.float32)))

    def literal(self, question: Question) -> bool:
        tensor = self.stored(self.name(question.positions[0]))
        if tensor is None:
            return False
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
        return True

    def same(self, question: Question) -> bool:
        first, second = question.positions
        tensor = self.stored(self.name(first))
        if tensor is not None:
            return self.put(second, self.fresh((numpy_helper.to_array(tensor) + 1).astype(np.float32)))
        self.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, (2, 3)))
        return self.put(second, "other")

    def identical(self, question: Question) -> bool:
        if not all(self.space.positions[p].letter == "v" for p in question.positions):
            return False
        if len(set(self.table.uses[self.held(question.positions[0])])) < 2:
            return False  # nothing would read it any more
        self.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, (2, 3)))
        return any(self.put(position, "other") for position in reversed(question.positions))

    def dim(self, question: Question) -> bool:
        name, axis = self.name(question.positions[1]), question.argument[1]
        tensor = self.stored(name)
        if tensor is not None:
            shape = list(tensor.dims)
            shape[axis] += 1
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(shape, np.float32), name))
            return True
        info = next(one for one in self.graph.input if one.name == name)
        info.type.tensor_type.shape.dim[axis].dim_value += 1
        return True

    def slot(self, question: Question) -> bool:
        node = self.node(question.positions[0])
        if len(node.output) < 2:
            return False
        names = list(node.output)
        node.output[:] = [*names[1:], names[0]]
        return True

    def marker(self, question: Question) -> bool:
        """Another constant or input in its place, of which all markers but this one hold."""
        name = self.name(question.positions[0])
        value = self.variant.parameters.get(name)
        if value is None:
            return False
        others = [m for m in value.markers if m != question.argument and not isinstance(m, Maybe)]
        for constant, array in itertools.product((True, False), KINDS):
            facts: Any = Facts(array, constant, is_graph_input=not constant)
            try:
                fits = not question.argument.holds(facts) and all(marker.holds(facts) for marker in others)
            except Exception:
                continue
            if fits:
                kept = [one for one in self.graph.initializer if one.name != name]
                del self.graph.initializer[:]
                self.graph.initializer.extend(kept)
                inputs = [one for one in self.graph.input if one.name != name]
                del self.graph.input[:]
                self.graph.input.extend(inputs)
                if constant:
                    self.graph.initializer.append(numpy_helper.from_array(array, name))
                else:
                    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                    self.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
                return True
        return False
