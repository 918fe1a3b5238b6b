"""Which values two models have in common, and the second model with each of its layers on the inputs of the first.

What a layer adds to the error shows only where the layer gets what the reference has: by itself an error from further
up grows and shrinks on its way, most of all where a QuantizeLinear rounds it. So every layer is *fed*: a copy of the
model takes the values in front of each layer as inputs, and one run of it gives what all layers do alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx

from rules.comparison.graph import CLAMPS, DEQUANTIZE, Graph, Quantizer, bodies, read_by

FLOATS = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(double)": 11}
CODES = frozenset(("tensor(uint8)", "tensor(int8)", "tensor(uint16)", "tensor(int16)"))
FED = ".reference"


@dataclass(frozen=True)
class Matched:
    """A value of both models. a, b: how each quantizes it. codes: if it holds codes. elem_type: None if not fed."""

    name: str
    node: str
    op: str
    a: Quantizer | None
    b: Quantizer | None
    codes: bool
    elem_type: int | None
    kept: tuple[float, float] | None = None
    """In B, where a Relu or Clip of A is left to the quantizer: the range that this leaves."""

    @property
    def step(self) -> float | None:
        quantizer = self.a or self.b
        return None if quantizer is None else quantizer[0]


def common(a: Graph, b: Graph) -> list[str]:
    """The values that nodes of both models make under one name and that vary with the inputs, in the order of A."""
    return [name for name in a.producer if name in b.producer and name in a.varying and name in b.varying]


def layers(a: Graph, b: Graph, types: Mapping[str, tuple[str, str]]) -> list[Matched]:
    """Those of the common values that hold floats, or codes of which it is known what they stand for.

    types: as ONNX Runtime calls them, in A and B. Left out is what says the same as another layer: what both models
    only moved, and codes whose floats are layers themselves.
    """
    found = []
    for name, (kind_a, kind_b) in types.items():
        one = a.producer[name]
        if a.only_moves(name) and b.only_moves(name):
            continue
        p, q = a.quantizer(name), b.quantizer(name)
        codes = kind_a in CODES and kind_b in CODES
        if codes and (p is None or q is None or any(reader_is_known(name, g, types) for g in (a, b))):
            continue
        if codes or (kind_a in FLOATS and kind_b in FLOATS):
            same = FLOATS.get(kind_a) if kind_a == kind_b else None
            absorbed = one.op_type in CLAMPS and b.producer[name].op_type not in CLAMPS
            kept = b.kept_range(name) if absorbed else None
            found.append(Matched(name, one.name, one.op_type, p, q, codes, same, kept))
    return found


def reader_is_known(name: str, graph: Graph, types: Mapping[str, object]) -> bool:
    return any(n.op_type == DEQUANTIZE and n.output[0] in types for n in graph.readers.get(name, ()))


def fed(graph: Graph, outputs: Iterable[str], cuts: Mapping[str, int]) -> onnx.ModelProto:
    """The part of a model that gives these outputs from the values in `cuts`, by name with their element types.

    Such a value is an input called `NAME.reference`; inputs of the model itself keep their names.
    """
    ends = list(outputs)
    needed: set[int] = set()
    read: set[str] = set()
    stack = [graph.producer[name] for name in ends]
    while stack:
        node = stack.pop()
        if id(node) in needed:
            continue
        needed.add(id(node))
        names = set(read_by(node))
        read |= names
        stack.extend(graph.producer[name] for name in names if name not in cuts and name in graph.producer)
    source = graph.proto
    model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import, functions=source.functions)
    part = model.graph
    part.name = "fed"
    for node in graph.nodes:
        if id(node) in needed:
            copy = part.node.add()
            copy.CopyFrom(node)
            rename(copy, cuts)
    part.initializer.extend(t for t in source.graph.initializer if t.name in read)
    part.sparse_initializer.extend(t for t in source.graph.sparse_initializer if t.values.name in read)
    part.input.extend(i for i in source.graph.input if i.name in read)
    for name, kind in cuts.items():
        if name in read:
            part.input.append(onnx.helper.make_tensor_value_info(name + FED, kind, None))
    part.output.extend(onnx.ValueInfoProto(name=name) for name in ends)
    return model


def rename(node: onnx.NodeProto, names: Collection[str]) -> None:
    """Let a node and its bodies read what is fed. ONNX lets no body make a name again, or give it out unchanged."""
    node.input[:] = [name + FED if name in names else name for name in node.input]
    for body in bodies(node):
        for inner in body.node:
            rename(inner, names)
