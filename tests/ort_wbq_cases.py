"""The graphs of ONNX Runtime's own unit tests for WeightBiasQuantization, from their description.

They are the least to be met: what its authors found worth a test, with the shapes, strides and groups that
they chose. Each is built for either Q/DQ domain and any opset, and says what is to come of it: which
operands of which node become integers, and how many integer kernels a session with full optimization then
has, and whether Q and DQ are gone from it. ConvTranspose has no integer kernel on the CPU, so
`backend="onnxruntime"` leaves those as they are, which `fuses` tells.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tests.qdq_models import Body
from tests.qdq_unit import NEWEST

DOMAINS = ("", "com.microsoft")
OPSETS = (13, 18, 19, 21, NEWEST)

Array = npt.NDArray[np.generic]
Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[str, int, Rng], onnx.ModelProto]
    quantized: Sequence[str] = ()  # operands of the node that are float before and integers after
    kernels: Mapping[str, int] = field(default_factory=dict)  # op type to count, at full optimization

    @property
    def fuses(self) -> bool:
        return bool(self.kernels)


def _case(build: Callable[["Graph"], None]) -> Callable[[str, int, Rng], onnx.ModelProto]:
    def built(domain: str, opset: int, rng: Rng) -> onnx.ModelProto:
        graph = Graph(domain, opset, rng)
        build(graph)
        return graph.model()

    return built


class Graph:
    """A graph under construction. Its activations are uint8 of scale 1/50, around 128 unless told."""

    def __init__(self, domain: str, opset: int, rng: Rng) -> None:
        self.domain, self.opset, self.rng, self.body = domain, opset, rng, Body()
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def quantized_input(self, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape))
        return self.dq("x", *self.activation("x"))

    def float_input(self, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape))
        names = self.activation("x")
        return self.dq(self.q("x", names, "x_q"), *names)

    def activation(self, name: str, zero_point: int = 128) -> tuple[str, str]:
        scale = self.body.constant(f"{name}_scale", np.array(1 / 50, np.float32))
        return scale, self.body.constant(f"{name}_zp", np.array(zero_point, np.uint8))

    def weight(self, *shape: int) -> str:
        return self.body.constant("w", self.rng.normal(scale=0.2, size=shape).astype(np.float32))

    def quantized_weight(self, *shape: int, axis: int | None = None) -> str:
        scales = () if axis is None else (shape[axis],)
        payload = self.body.constant("wq", self.rng.integers(1, 256, shape, np.uint8))
        scale = self.body.constant("w_scale", self.rng.uniform(0.002, 0.01, scales).astype(np.float32))
        zero_point = self.body.constant("w_zp", np.full(scales, 128, np.uint8))
        return self.dq(payload, scale, zero_point, axis=axis)

    def bias(self, size: int) -> str:
        return self.body.constant("b", self.rng.normal(size=size).astype(np.float32))

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.body.node(op, inputs, f"{op.lower()}_out", **attributes)

    def q(self, x: str, names: Sequence[str], output: str) -> str:
        return self.body.node("QuantizeLinear", [x, *names], output, self.domain)

    def dq(self, q: str, scale: str, zero_point: str, axis: int | None = None) -> str:
        attributes = {} if axis is None else {"axis": axis}
        return self.body.node("DequantizeLinear", [q, scale, zero_point], f"{q}_dq", self.domain, **attributes)

    def output(self, y: str, rank: int, dtype: int = onnx.TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(y, dtype, [None] * rank))

    def quantized_output(self, y: str, rank: int) -> None:
        self.output(self.q(y, self.activation("y"), "y"), rank, onnx.TensorProto.UINT8)

    def float_output(self, y: str, rank: int, zero_point: int = 128) -> None:
        names = self.activation("y", zero_point)
        self.output(self.dq(self.q(y, names, "y"), *names), rank)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.body.nodes, "case", self.inputs, self.outputs, self.body.initializers)
        domains = [("", self.opset), *([(self.domain, 1)] if self.domain else [])]
        opsets = [helper.make_opsetid(domain, version) for domain, version in domains]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@_case
def conv_bias(g: Graph) -> None:
    x = g.quantized_input(1, 24, 128, 128)
    y = g.op("Conv", x, g.quantized_weight(24, 1, 3, 3, axis=0), g.bias(24), group=24, pads=[1, 1, 1, 1])
    g.quantized_output(y, 4)


@_case
def conv_weight_bias(g: Graph) -> None:
    x = g.quantized_input(1, 24, 67, 67)
    g.quantized_output(g.op("Conv", x, g.weight(24, 1, 5, 5), g.bias(24), group=24, strides=[2, 2]), 4)


@_case
def conv_with_relu(g: Graph) -> None:
    y = g.op("Relu", g.op("Conv", g.float_input(1, 1, 7, 7), g.weight(2, 1, 3, 3)))
    g.float_output(y, 4, zero_point=0)


@_case
def conv_as_output(g: Graph) -> None:
    g.output(g.op("Conv", g.float_input(1, 1, 7, 7), g.weight(2, 1, 3, 3)), 4)


@_case
def conv_reshaped(g: Graph) -> None:
    y = g.op("Conv", g.float_input(1, 1, 7, 7), g.weight(2, 1, 3, 3))
    g.output(g.op("Reshape", y, g.body.constant("shape", np.array([2, 25], np.int64))), 2)


@_case
def conv_transpose_weight(g: Graph) -> None:
    g.float_output(g.op("ConvTranspose", g.float_input(1, 3, 8, 8), g.weight(3, 3, 3, 3)), 4)


@_case
def conv_transpose_per_channel_weight(g: Graph) -> None:
    x = g.quantized_input(1, 3, 8, 8)
    g.quantized_output(g.op("ConvTranspose", x, g.quantized_weight(3, 3, 3, 3, axis=1), g.bias(3)), 4)


@_case
def gemm_bias(g: Graph) -> None:
    g.quantized_output(g.op("Gemm", g.quantized_input(10, 32), g.quantized_weight(32, 16), g.bias(16)), 2)


@_case
def gemm_weight(g: Graph) -> None:
    g.quantized_output(g.op("Gemm", g.quantized_input(10, 32), g.weight(32, 16)), 2)


@_case
def gemm_weight_bias(g: Graph) -> None:
    g.quantized_output(g.op("Gemm", g.quantized_input(10, 32), g.weight(16, 32), g.bias(16), transB=1), 2)


@_case
def gemm_negative_axis(g: Graph) -> None:
    g.quantized_output(g.op("Gemm", g.quantized_input(10, 16), g.quantized_weight(16, 16, axis=-1), g.bias(16)), 2)


_CONV = {"QLinearConv": 1, "QuantizeLinear": 0, "DequantizeLinear": 0}
_GEMM = {"QGemm": 1, "QuantizeLinear": 0, "DequantizeLinear": 0}

CASES = (
    Case("Conv_Bias", conv_bias, ["bias"], _CONV),
    Case("Conv_Weight_Bias", conv_weight_bias, ["weight", "bias"], _CONV),
    # Its float input and output keep a Q and a DQ.
    Case(
        "ConvWithReLU",
        conv_with_relu,
        ["weight"],
        {"QLinearConv": 1, "QuantizeLinear": 1, "DequantizeLinear": 1},
    ),
    Case("SkipIfOutputNotQuantized, graph output", conv_as_output),
    Case("SkipIfOutputNotQuantized, Reshape", conv_reshaped),
    Case("ConvTranspose_Weight", conv_transpose_weight, ["weight"]),
    Case("ConvTransposePerChannelWeight", conv_transpose_per_channel_weight, ["bias"]),
    Case("Gemm_Bias", gemm_bias, ["bias"], _GEMM),
    Case("Gemm_Weight", gemm_weight, ["weight"], _GEMM),
    Case("Gemm_Weight_Bias", gemm_weight_bias, ["weight", "bias"], _GEMM),
    Case("Gemm_HandleNegativeDqAxis", gemm_negative_axis, ["bias"], _GEMM),
)
