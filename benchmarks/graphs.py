"""Models of any size for the benchmarks of the engine: nothing in them is real but their shape."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

CYCLE = (
    "Relu", "Add", "Sigmoid", "Mul", "Tanh", "Sub", "Exp", "Max", "Neg", "Min",
    "Abs", "Floor", "Div", "Ceil", "Sqrt", "Erf", "Softplus", "Sign", "Round", "Softsign",
)  # fmt: skip
BINARY = frozenset({"Add", "Mul", "Sub", "Div", "Max", "Min"})


INPUTS = ("x", *(f"x{number}" for number in range(1, 100)))


def model_of(
    nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto], outputs: list[str], opset: int = 17
) -> onnx.ModelProto:
    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    inputs = [value(name) for name in INPUTS]
    graph = helper.make_graph(nodes, "g", inputs, [value(name) for name in outputs], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def there_and_back(model: onnx.ModelProto) -> onnx.ModelProto:
    """Through onnx_ir, unchanged: the time that reading and writing takes there."""
    return ir.serde.serialize_model(ir.serde.deserialize_model(model))


def node(op: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return onnx.NodeProto(op_type=op, input=inputs, output=[output], name=f"n_{output}")


def plain(count: int) -> onnx.ModelProto:
    """`count` nodes of 20 op types, each behind the one before; binary ones also read a graph input."""
    return chain(CYCLE[number % len(CYCLE)] for number in range(count))


def pairs(count: int, every: int = 10) -> onnx.ModelProto:
    """`count` nodes, of which each `every`-th is the second of two Neg in a row."""
    return chain("Neg" if number % every < 2 else CYCLE[number % 7] for number in range(count))


def chain(ops: Iterable[str]) -> onnx.ModelProto:
    nodes, last = [], "x"
    for number, op in enumerate(ops):
        free = [INPUTS[number % len(INPUTS)]] if op in BINARY else []
        nodes.append(node(op, [last, *free], last := f"v{number}"))
    return model_of(nodes, [], [last])


def hub(count: int, consumers: int = 2000) -> onnx.ModelProto:
    """Two Neg for each of `count / 3` places, on values that have `consumers` consumers each."""
    nodes, ends, value = [], [], "x"
    for number in range(count // 3):
        if number % consumers == 0:
            value = f"hub{number}"
            nodes.append(node("Relu", ["x"], value))
        nodes += [
            node("Neg", [value], f"a{number}"),
            node("Neg", [f"a{number}"], f"b{number}"),
            node("Tanh", [f"b{number}"], f"c{number}"),
        ]
        ends.append(f"c{number}")
    return model_of(nodes, [], ends[-1:])


def units(count: int) -> onnx.ModelProto:
    """`count` Conv units, each DQ -> Conv with float weight [4, 4, 1, 1] and bias -> Relu -> Q, one after the other."""
    random = np.random.default_rng(0)
    weights = random.normal(size=(count, 4, 4, 1, 1)).astype(np.float32)
    biases = random.normal(size=(count, 4)).astype(np.float32)
    tensors = [
        numpy_helper.from_array(np.array(0.05, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.uint8), "zero"),
    ]
    nodes = [node("QuantizeLinear", ["x", "scale", "zero"], "q")]
    last = "q"
    for number in range(count):
        tensors.append(numpy_helper.from_array(weights[number], f"w{number}"))
        tensors.append(numpy_helper.from_array(biases[number], f"b{number}"))
        nodes += [
            node("DequantizeLinear", [last, "scale", "zero"], f"d{number}"),
            node("Conv", [f"d{number}", f"w{number}", f"b{number}"], f"c{number}"),
            node("Relu", [f"c{number}"], f"r{number}"),
            node("QuantizeLinear", [f"r{number}", "scale", "zero"], f"q{number}"),
        ]
        last = f"q{number}"
    nodes.append(node("DequantizeLinear", [last, "scale", "zero"], "y"))
    return model_of(nodes, tensors, ["y"])
