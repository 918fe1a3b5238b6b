"""The main graph of a model as a comparison reads it: what varies with the inputs, and how a value is quantized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

MOVERS = frozenset(
    {"Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators that move elements and compute nothing, so what they give is as good as what they are given."""
CLAMPS = frozenset(("Relu", "Clip"))
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
Quantizer = tuple[float, int, int, int]
"""Scale, zero point, and the least and the largest code."""


class Graph:
    """folder: where the external data of the model lies, None where it has none."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None = None) -> None:
        self.proto, self.folder = model, folder
        graph = model.graph
        self.nodes = list(graph.node)
        self.initializers = {t.name: t for t in graph.initializer}
        self.initializers |= {t.values.name: t.values for t in graph.sparse_initializer}
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.outputs = {each.name for each in graph.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in read_by(node):
                self.readers.setdefault(name, []).append(node)
        self.varying = {i.name for i in graph.input if i.name not in self.initializers}
        """The values that depend on the inputs."""
        for node in self.nodes:
            if any(name in self.varying for name in read_by(node)):
                self.varying.update(name for name in node.output if name)

    def only_moves(self, name: str) -> bool:
        """Whether a value has elements that another one, which varies too, had before."""
        node = self.producer[name]
        return node.op_type in MOVERS and node.input[0] in self.varying

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a dense initializer or a Constant with a tensor."""
        tensor, node = self.initializers.get(name), self.producer.get(name)
        if node is not None and node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
        if tensor is None:
            return None
        return numpy_helper.to_array(tensor, str(self.folder or ""))

    def quantizer(self, name: str) -> Quantizer | None:
        """How a value is quantized, or how its codes are to be read: by one Q or DQ with constant scalars beside it.

        A float has the quantizer that reads it, through any Relu and Clip, or that of the DQ it comes from.
        """
        producer = self.producer.get(name)
        if producer is not None and producer.op_type in (QUANTIZE, DEQUANTIZE):
            return self.parameters(producer)
        for node in self.readers.get(name, ()):
            if node.op_type in (QUANTIZE, DEQUANTIZE) and node.input[0] == name:
                return self.parameters(node)
        for node in self.readers.get(name, ()):
            if node.op_type in CLAMPS and (found := self.quantizer(node.output[0])) is not None:
                return found
        return None

    def parameters(self, node: onnx.NodeProto) -> Quantizer | None:
        scale = self.constant(node.input[1])
        if len(node.input) > 2 and node.input[2]:
            zero = self.constant(node.input[2])
        else:  # uint8, but where a Q says something else
            kind = next((a.i for a in node.attribute if a.name == "output_dtype" and node.op_type == QUANTIZE), 0)
            zero = np.zeros(1, onnx.helper.tensor_dtype_to_np_dtype(kind or onnx.TensorProto.UINT8))
        if scale is None or zero is None or scale.size != 1 or zero.size != 1 or zero.dtype.kind not in "iu":
            return None  # per axis, found at run time, or float8
        step, info = float(scale.reshape(-1)[0]), np.iinfo(zero.dtype)
        return (step, int(zero.reshape(-1)[0]), int(info.min), int(info.max)) if step > 0 else None

    def kept_range(self, name: str) -> tuple[float, float] | None:
        """The least and the largest number that is left of a value, where all that reads it is Q with constants."""
        readers = self.readers.get(name)
        if not readers or name in self.outputs or any(node.op_type != QUANTIZE for node in readers):
            return None
        found = self.quantizer(name)
        return None if found is None else ((found[2] - found[1]) * found[0], (found[3] - found[1]) * found[0])

    def table_size(self, name: str) -> int | None:
        """How many rows the constant table has that an input is looked up in."""
        for node in self.readers.get(name, ()):
            if node.op_type == "Gather" and node.input[1] == name and node.input[0] in self.initializers:
                axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                return int(self.initializers[node.input[0]].dims[axis])
        return None


def read_by(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, in its bodies too; those that a body makes itself are among them."""
    yield from filter(None, node.input)
    for body in bodies(node):
        for inner in body.node:
            yield from read_by(inner)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
