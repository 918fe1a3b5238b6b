"""One QDQ unit with given values, and how far its output is from the float unit's, in steps of its Q.

The tests that show where others go wrong need exact values, which generated models do not have: so here a unit
is made of the arrays themselves. Its input is codes, its output is codes, and the output's scale uses the whole
range. Convolutions cover their whole input (or start from one pixel), so that every op is a matrix product and
the proved bound is one formula for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from rules.quantization import QuantizedTensor, bias_bound, element_bound, output_bound
from tests import sessions
from tests.backend_units import Linear, Operand, Unit, units

Array = npt.NDArray[np.generic]
Doubles = npt.NDArray[np.float64]
ROWS = 16


@dataclass(frozen=True)
class Coded:
    """A constant behind a DequantizeLinear."""

    codes: Array
    scale: Array
    zero_point: Array | None = None
    axis: int = 0


@dataclass(frozen=True)
class One:
    """x codes -> DQ -> `before` -> op(w, b) -> post -> Q -> y codes. A bias given as a shape is a graph input."""

    op: str
    w: Array | Coded
    b: Array | Coded | tuple[int, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    x_type: str = "uint8"
    y_type: str = "uint8"
    x_scale: float = 0.02
    x_zero: int | None = None  # None: the middle of the codes
    y_scale: float = 0.0  # 0: from the float output
    float_type: str = "float32"
    scale_type: str = ""  # of the activations' scales, where it is not the float type
    cast: str = ""  # weight and bias are stored in this type, behind a Cast
    domain: str = ""  # of Q and DQ
    opset: int = 17
    before: str = ""  # MaxPool, Reshape, Transpose or Slice between the DQ and the op, none of which changes anything
    rank: int = 2  # of a MatMul's x: the dimensions between the first and the last are 1
    post: Sequence[str] = ()
    w_is_input: bool = False
    in_branch: bool = False  # the unit is in an If, its weight outside
    twin: bool = False  # the op's output is a graph output too
    ir: int = 8

    def x(self, seed: int = 0) -> Array:
        """Codes of the input: the lower half of its type.

        x86 without VNNI adds two products u8 * s8 in 16 bits and saturates, which is a fault of its own.
        """
        w = self.w.codes if isinstance(self.w, Coded) else self.w
        depth = {"Conv": w.shape[1:], "ConvTranspose": (w.shape[0], 1, 1)}.get(
            self.op, (w.shape[1],) if self.attributes.get("transB") else (w.shape[0],)
        )
        info = np.iinfo(self.x_type)
        rng = np.random.default_rng(seed)
        shape = (ROWS, *[1] * (self.rank - 2), *depth)
        return rng.integers(info.min, info.min + (info.max - info.min) // 2, shape, self.x_type, endpoint=True)

    @property
    def zero(self) -> int:
        info = np.iinfo(self.x_type)
        return int(info.min + (info.max - info.min) // 4) if self.x_zero is None else self.x_zero


def model(one: One) -> onnx.ModelProto:
    """The model, with the output's scale that its float output asks for."""
    scale = one.y_scale
    if not scale:
        value = sessions.run(_model(one, None), feeds(one))[0].astype(np.float64)
        scale = max(float(value.max() - min(value.min(), 0.0)), 1e-30) / 255
    return _model(one, scale)


def feeds(one: One, **more: Array) -> dict[str, Array]:
    given: dict[str, Array] = {"x": one.x(), **more}
    if isinstance(one.b, tuple):
        given["b"] = np.random.default_rng(7).normal(size=one.b).astype(one.float_type)
    if one.in_branch:
        given["cond"] = np.array(True)
    return given


def _model(one: One, y_scale: float | None) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}
    inputs = [helper.make_tensor_value_info("x", _elem(one.x_type), one.x().shape)]
    mixed = {"output_dtype": _elem(one.float_type)} if one.scale_type else {}
    scale_type = one.scale_type or one.float_type

    def node(op: str, args: Sequence[str], output: str, **attributes: Any) -> str:
        domain = one.domain if op in ("QuantizeLinear", "DequantizeLinear") else ""
        nodes.append(helper.make_node(op, args, [output], name=output, domain=domain, **attributes))
        return output

    def constant(name: str, value: Array) -> str:
        constants[name] = value
        return name

    def operand(name: str, value: Array | Coded) -> str:
        if not isinstance(value, Coded):
            if one.cast:
                stored = constant(f"{name}_stored", value.astype(one.cast))
                return node("Cast", [stored], name, to=_elem(one.float_type))
            return constant(name, value)
        args = [constant(f"{name}_q", value.codes), constant(f"{name}_scale", value.scale)]
        if value.zero_point is not None:
            args.append(constant(f"{name}_zero", value.zero_point))
        axis = {"axis": value.axis} if value.scale.ndim else {}
        mixed = {} if value.scale.dtype.name == one.float_type else {"output_dtype": _elem(one.float_type)}
        return node("DequantizeLinear", args, name, **axis, **mixed)

    def parameters(name: str, scale: float, zero: int, dtype: str) -> list[str]:
        return [
            constant(f"{name}_scale", np.array(scale, scale_type)),
            constant(f"{name}_zero", np.array(zero, dtype)),
        ]

    a = node("DequantizeLinear", ["x", *parameters("x", one.x_scale, one.zero, one.x_type)], "a", **mixed)
    shape = np.array(one.x().shape, np.int64)
    if one.before == "MaxPool":
        a = node("MaxPool", [a], "before", kernel_shape=[1, 1])
    elif one.before == "Reshape":
        a = node("Reshape", [a, constant("before_shape", shape)], "before")
    elif one.before == "Transpose":
        a = node("Transpose", [a], "before", perm=list(range(len(shape))))
    elif one.before == "Slice":
        a = node("Slice", [a, constant("before_start", 0 * shape), constant("before_end", shape)], "before")
    args = [a, operand("w", one.w)]
    if isinstance(one.b, tuple):
        inputs.append(helper.make_tensor_value_info("b", _elem(one.float_type), one.b))
        args.append("b")
    elif one.b is not None:
        args.append(operand("b", one.b))
    if one.op == "MatMulAdd":
        y = node("Add", [node("MatMul", args[:2], "product"), args[2]], "y_float")
    else:
        y = node(one.op, args, "y_float", **one.attributes)
    for i, op in enumerate(one.post):
        bounds = (
            [constant(k, np.array(v, np.float32)) for k, v in (("low", 0.1), ("high", 0.5))] if op == "Clip" else []
        )
        y = node(op, [y, *bounds], f"post{i}")
    elem = _elem(one.float_type)
    if y_scale is not None:
        info = np.iinfo(one.y_type)
        low = 0 if one.post else (info.min + info.max + 1) // 2
        y = node("QuantizeLinear", [y, *parameters("y", y_scale, low, one.y_type)], "y")
        elem = _elem(one.y_type)
    rank = [None] * one.x().ndim  # sizes unknown
    outputs = [helper.make_tensor_value_info(y, elem, rank)]
    if one.twin:
        outputs.append(helper.make_tensor_value_info("y_float", _elem(one.float_type), rank))
    if one.w_is_input and not isinstance(one.w, Coded):
        inputs.append(helper.make_tensor_value_info("w", _elem(one.w.dtype.name), one.w.shape))
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    if one.in_branch:
        zero = numpy_helper.from_array(np.zeros((), np.dtype(helper.tensor_dtype_to_np_dtype(elem))))
        other = helper.make_graph([helper.make_node("Constant", [], ["no"], value=zero)], "else", [], [])
        other.output.append(helper.make_tensor_value_info("no", elem, []))
        body = helper.make_graph(nodes, "then", [], outputs)
        inputs.append(helper.make_tensor_value_info("cond", onnx.TensorProto.BOOL, []))
        nodes = [helper.make_node("If", ["cond"], ["out"], then_branch=body, else_branch=other)]
        outputs = [helper.make_tensor_value_info("out", elem, rank)]
    graph = helper.make_graph(nodes, "one", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", one.opset), *([helper.make_opsetid(one.domain, 1)] if one.domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=one.ir)


def _elem(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def steps(before: Sequence[Array], after: Sequence[Array]) -> Doubles:
    """How many codes lie between two outputs, by input row and output."""
    return np.abs(before[0].astype(np.float64) - after[0].astype(np.float64)).reshape(ROWS, -1)


def allowed(one: One, before: onnx.ModelProto, after: onnx.ModelProto) -> Doubles:
    """The proved bound (`error_bounds.md` 9) in output steps, plus one: shape of `steps`.

    In float32 arithmetic, the reference's own sums and products are off by their rounding too.
    """
    (old,), (new,) = units(before), units(after)
    x = np.abs(one.x().astype(np.float64) - one.zero) * float(np.float32(one.x_scale))
    x = x.reshape(ROWS, -1)
    w = _value(old.weight) * old.alpha
    element = matrix(old, _element(w, old, new))
    bound = output_bound(element, 0.0, x) + _bias(old, new)
    sums = x @ np.abs(matrix(old, w)).T + np.abs(rows(old, _value(old.bias) * old.beta))
    rounding = sums * (x.shape[1] + 4) * 2.0**-24
    assert new.y.scale is not None
    return np.asarray((bound + rounding) / float(new.y.scale.item()) + 1)


def _value(operand: Operand) -> Doubles:
    """Zero for what is not there or not constant."""
    if not isinstance(operand, Linear):
        return np.zeros(()) if operand is None else operand.astype(np.float64)
    q = _quantized(operand)
    shape = [-1 if i == q.axis else 1 for i in range(q.codes.ndim)] if q.axis is not None else []
    codes = q.codes.astype(np.float64) - q.zero_point.astype(np.float64).reshape(shape)
    return np.asarray(codes * q.scale.astype(np.float64).reshape(shape))


def _quantized(linear: Linear) -> QuantizedTensor:
    assert linear.codes is not None
    assert linear.scale is not None
    scale = linear.scale.astype(np.float32)
    zero = np.zeros(scale.shape, linear.codes.dtype) if linear.zero_point is None else linear.zero_point
    single = scale.size == 1 and (linear.codes.ndim == 0 or scale.ndim == 0)
    if single:
        return QuantizedTensor(linear.codes, scale.reshape(()), zero.reshape(()), None)
    return QuantizedTensor(linear.codes, scale, zero, linear.axis)


def _element(w: Doubles, old: Unit, new: Unit) -> Doubles:
    if isinstance(old.weight, Linear) or not isinstance(new.weight, Linear):
        return np.zeros(w.shape)  # the weight stays what it was
    return element_bound(w, _quantized(new.weight))


def _bias(old: Unit, new: Unit) -> Doubles:
    if not isinstance(new.bias, Linear):
        return np.zeros(1)
    return rows(old, np.asarray(bias_bound(_quantized(new.bias))))


def matrix(unit: Unit, w: Doubles) -> Doubles:
    """[outputs, K]"""
    if unit.op == "Conv":
        return w.reshape(w.shape[0], -1)
    if unit.op == "ConvTranspose":
        return w.reshape(w.shape[0], -1).T
    return w if unit.trans_b else w.T


def rows(unit: Unit, b: Doubles) -> Doubles:
    """A bias as it is added to [rows, outputs]."""
    return np.repeat(b, 9) if unit.op == "ConvTranspose" and b.ndim else b
