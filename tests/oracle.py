"""What the weight and the bias of every unit in a model are, in a form in which two models can be compared.

`scheme="onnxruntime"` claims to give what ONNX Runtime's own optimizer gives, so both results are read into
the same description: per Conv, ConvTranspose, Gemm and MatMul, named by its output, the payload, type and
shape of everything that its second and third input are made of. Names of constants, the order of nodes and
Q/DQ domains do not count; everything else does, to the bit.

Constants are told from other values only where they are stored as such. So both models should first go
through ONNX Runtime's constant folding alone, which also inlines functions and names their values.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Stored:
    """A tensor that the model holds. Its bytes are compared, so that NaN equals NaN and 0 is not -0."""

    dtype: str
    shape: tuple[int, ...]
    payload: bytes

    @classmethod
    def of(cls, array: npt.NDArray[np.generic]) -> "Stored":
        return cls(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())

    @property
    def array(self) -> npt.NDArray[np.generic]:
        return np.frombuffer(self.payload, self.dtype).reshape(self.shape)

    def __repr__(self) -> str:
        values = np.array2string(self.array, threshold=8, edgeitems=4, precision=9).replace("\n", "")
        return f"{self.dtype}{list(self.shape)} {values}"


@dataclass(frozen=True)
class Dequantized:
    """A stored tensor behind a DequantizeLinear."""

    codes: Stored
    scale: "Operand"
    zero_point: "Operand"
    axis: int | None  # not negative; None for one scale, where it has no meaning
    block_size: int


@dataclass(frozen=True)
class Computed:
    """Anything else: the type of the op that gives the value, or "input"."""

    by: str


Operand = Stored | Dequantized | Computed | None  # None: absent


@dataclass(frozen=True)
class Described:
    op: str
    weight: Operand
    bias: Operand


def units(model: onnx.ModelProto, ops: Collection[str] = OPS) -> dict[str, Described]:
    """Every node of these types, in the main graph and all graphs in it, by the name of its output."""
    found: dict[str, Described] = {}
    for name, unit in _units(model.graph, {}, ops):
        assert name not in found, f"two units give {name!r}"
        found[name] = unit
    return found


def differences(ours: Mapping[str, Described], theirs: Mapping[str, Described]) -> list[str]:
    """One line for each unit that only one side has, and for each operand that is not the same."""
    lines = [f"{name}: only in ours" for name in ours if name not in theirs]
    for name, their in theirs.items():
        our = ours.get(name)
        if our is None:
            lines.append(f"{name}: only in theirs")
            continue
        for what, a, b in (
            ("op", our.op, their.op),
            ("weight", our.weight, their.weight),
            ("bias", our.bias, their.bias),
        ):
            if a != b:
                lines.append(f"{name}: {what}: ours {a}, theirs {b}")
    return lines


def left_float(unit: Described) -> list[str]:
    """Which of the unit's operands are stored in float."""
    operands = {"weight": unit.weight, "bias": unit.bias}
    return [what for what, operand in operands.items() if isinstance(operand, Stored) and "float" in operand.dtype]


Scope = Mapping[str, onnx.TensorProto | onnx.NodeProto]


def _units(graph: onnx.GraphProto, outer: Scope, ops: Collection[str]) -> Iterator[tuple[str, Described]]:
    scope = dict(outer)
    scope.update((tensor.name, tensor) for tensor in graph.initializer)
    scope.update((output, node) for node in graph.node for output in node.output)
    for node in graph.node:
        if node.op_type in ops:
            inputs = [*node.input, ""]
            yield (
                node.output[0],
                Described(node.op_type, _operand(inputs[1], scope), _operand(inputs[2], scope)),
            )
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                yield from _units(body, scope, ops)


def _operand(name: str, scope: Scope) -> Operand:
    source = scope.get(name)
    stored = _stored(source)
    if stored is not None or not name:
        return stored
    if not isinstance(source, onnx.NodeProto):
        return Computed("input")
    codes = _stored(scope.get(source.input[0])) if source.op_type == "DequantizeLinear" else None
    if codes is None:
        return Computed(source.op_type)
    scale, zero_point = (_operand(input, scope) for input in [*source.input, ""][1:3])
    attributes = {attribute.name: attribute.i for attribute in source.attribute}
    per_tensor = isinstance(scale, Stored) and scale.shape in ((), (1,))
    axis = None if per_tensor else attributes.get("axis", 1) % len(codes.shape)
    return Dequantized(codes, scale, zero_point, axis, attributes.get("block_size", 0))


def _stored(source: onnx.TensorProto | onnx.NodeProto | None) -> Stored | None:
    if isinstance(source, onnx.NodeProto):
        values = [attribute.t for attribute in source.attribute if attribute.name == "value"]
        source = values[0] if source.op_type == "Constant" and values else None
    return None if source is None else Stored.of(numpy_helper.to_array(source))
