"""Models of QDQ units, generated: `build(unit, rng)` makes the ONNX model that a `Unit` describes.

Values are realistic: weights have a spread of scales over the channels, and each activation's scale is
calibrated by running the float operator, so that the outputs use the range of their type and a wrong scale
or bias shows in them. Every model passes the full checker and runs in ONNX Runtime, so a failure behind it
belongs to what was done to it.

Names tell what a value is: `u0_x`, `u0_w`, `u0_b` and `u0_y` are the operator's inputs and output in the
first unit, and `u0_q` what its Q gives; the model's own input and output are `x` and `y`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests import sessions
from tests.qdq_unit import Unit

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Rng = np.random.Generator


@dataclass
class Body:
    """Nodes and initializers of one graph under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}_{op}", domain=domain, **attributes))
        return output

    def constant(self, name: str, value: Array, source: str = "initializer") -> str:
        """A constant of this value, by way of `source`."""
        if source == "initializer":
            self.initializers.append(numpy_helper.from_array(value, name))
            return name
        if source == "constant":
            return self.node("Constant", [], name, value=numpy_helper.from_array(value))
        if source == "identity":
            return self.node("Identity", [self.constant(f"{name}_raw", value)], name)
        if source == "transpose":
            return self.node("Transpose", [self.constant(f"{name}_raw", np.ascontiguousarray(value.T))], name)
        if source == "reshape":
            raw = self.constant(f"{name}_raw", value.reshape(-1))
            return self.node("Reshape", [raw, self.constant(f"{name}_shape", np.array(value.shape, np.int64))], name)
        wide = np.float64 if value.dtype == np.float32 else np.int32 if value.dtype.itemsize == 1 else np.int64
        raw = self.constant(f"{name}_raw", value.astype(wide))
        return self.node("Cast", [raw], name, to=helper.np_dtype_to_tensor_dtype(value.dtype))


class FunctionBody(Body):
    """The body of a function, which has no initializers: its constants are nodes."""

    def constant(self, name: str, value: Array, source: str = "constant") -> str:
        return super().constant(name, value, source)


@dataclass(frozen=True)
class Quantized:
    """Scale and zero point of an activation: their values, and the names that hold them."""

    scale: Floats
    zero_point: Array
    names: tuple[str, ...]


def build(unit: Unit, rng: Rng) -> onnx.ModelProto:
    return _Builder(unit, rng).model()


class _Builder:
    def __init__(self, unit: Unit, rng: Rng) -> None:
        self.u, self.rng = unit, rng
        self.body = FunctionBody() if unit.place == "function" else Body()
        self.outer = Body() if unit.place != "main" else self.body  # the main graph
        self.constants = self.outer if unit.place == "then, constants outside" else self.body
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.equal = int(rng.integers(2, 5))  # every size where units share a constant, and so must agree
        self.shared: dict[str, tuple[str, Floats, Floats]] = {}

    def model(self) -> onnx.ModelProto:
        u = self.u
        inner_x = "body_x" if u.place in ("scan", "function") else "x"
        inner_y = "y" if u.place == "main" else "body_y"
        shape = self._x_shape()
        x = self.rng.uniform(-3, 3, shape) if u.quantized_input else self.rng.normal(size=shape)
        dtype = np.dtype(u.x_type if u.quantized_input else np.float32)
        qx = self._quantized("x", x.astype(np.float32), u.x_type)
        q = inner_x if u.quantized_input else self._q(inner_x, qx, "x_q")
        y: Floats = x.astype(np.float32)
        for k in range(u.chain):
            q, qx, y = self._unit(k, q, qx, y, inner_y)
        out_type = np.dtype(u.y_type or u.x_type) if u.output == "quantized" else np.dtype(np.float32)
        return self._placed(_info("x", dtype, shape), inner_x, _info(inner_y, out_type, y.shape))

    def _unit(self, k: int, q: str, qx: Quantized, x: Floats, last: str) -> tuple[str, Quantized, Floats]:
        """DQ -> op -> post -> Q, and what follows the last one."""
        u, is_last = self.u, k == self.u.chain - 1
        a = self._dq(q, qx.names, f"u{k}_x")
        y, before, after = self._operator(k, a, qx, x)
        if k == 0 and u.beside:
            self._beside(a if u.beside == "same dq" else self._dq(q, qx.names, f"u{u.chain}_x"), qx, x)
        if is_last and u.output in ("also graph output", "second consumer"):
            twin = f"u{k}_y" if u.output == "also graph output" else self.body.node("Identity", [f"u{k}_y"], "second")
            self.outputs.append(_info(twin, before.dtype, before.shape))
        if is_last and u.output == "no q":
            self.body.node("Identity", [y], last)
            return last, qx, after
        qy = self._quantized(f"u{k}_q", after if u.redundant else before, u.y_type or u.x_type)
        if is_last and u.output == "quantized":
            return self._q(y, qy, last), qy, after
        q = self._q(y, qy, f"u{k}_q")
        if is_last:
            self._dq(q, qy.names, last)
        return q, qy, after

    def _operator(self, k: int, a: str, qx: Quantized, x: Floats) -> tuple[str, Floats, Floats]:
        """op -> post: the name of what comes out, and its values before and behind `post`."""
        w_shape, b_shape = self._shapes(x.shape)
        w_name, w, w_scale = self._weight(k, w_shape)
        b_name, b = self._bias(k, b_shape, qx.scale, w_scale)
        y = _core(self.u, self.body, x.shape[1], a, w_name, b_name, f"u{k}_y")
        before = _float(self.u, x, w, b)
        y, after = self._post(k, y, before)
        return y, before, after

    def _beside(self, a: str, qx: Quantized, x: Floats) -> None:
        """One more unit, which reads what the first one of the chain reads."""
        u, k = self.u, self.u.chain
        y, before, after = self._operator(k, a, qx, x)
        qy = self._quantized(f"u{k}_q", after if u.redundant else before, u.y_type or u.x_type)
        self._dq(self._q(y, qy, f"u{k}_q"), qy.names, "beside")
        self.outputs.append(_info("beside", after.dtype, after.shape))

    def _x_shape(self) -> tuple[int, ...]:
        u = self.u
        if u.convolves:
            return (1, self._channels(), *([5 if u.spatial < 3 else 4] * u.spatial))
        sizes = (self._size(), self._size())
        return (*[2] * (u.rank - 2), *sizes)

    def _size(self) -> int:
        return self.equal if self.u.share else int(self.rng.integers(2, 6))

    def _channels(self) -> int:
        per_group = self.equal if self.u.share or self.u.depthwise else int(self.rng.integers(1, 4))
        return per_group * self.u.group

    def _shapes(self, x: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the weight and the bias, for an input of this shape."""
        u = self.u
        if u.convolves:
            c_in, c_out = x[1], x[1] if u.depthwise or u.share else self._channels()
            group, kernel = c_in if u.depthwise else u.group, (3,) * u.spatial
            conv = (c_out, c_in // group, *kernel)
            return (conv if u.op == "Conv" else (c_in, c_out // group, *kernel)), (c_out,)
        m, k = (x[-1], x[-2]) if u.trans_a else (x[-2], x[-1])
        n = self._size()
        shapes: dict[str, tuple[int, ...]] = {"1N": (1, n), "scalar": (), "M1": (m, 1), "MN": (m, n)}
        matrix = (n, k) if u.trans_b else (k, n)
        return ((1, *matrix) if u.batched else matrix), shapes.get(u.bias, (n,))

    def _weight(self, k: int, shape: tuple[int, ...]) -> tuple[str, Floats, Floats]:
        """The weight's name, its values, and its scale (1 where it is float)."""
        u = self.u
        if u.share == "weight" and k > 0:
            return self.shared["w"]
        spread = np.exp(self.rng.normal(size=_along(shape, u.axis)))
        w = (self.rng.normal(scale=0.3, size=shape) * spread).astype(np.float32)
        scale: Floats = np.ones((), np.float32)
        if u.weight_form == "float":
            name = self.constants.constant(f"u{k}_w", w, **self._source())
        else:
            info = np.iinfo(u.weight_type)
            axes = tuple(i for i in range(w.ndim) if i != u.axis % w.ndim or not u.per_channel)
            wide = (np.abs(w).max(axis=axes, keepdims=True) / np.float32(127)).astype(np.float32)
            middle = (int(info.min) + int(info.max) + 1) // 2 + u.weight_zero_point
            q = np.clip(np.rint(w / wide) + middle, info.min, info.max).astype(u.weight_type)
            w = ((q.astype(np.int32) - middle) * wide).astype(np.float32)
            scale = wide.reshape((-1,) if u.per_channel else u.scale_shape)
            zero_point = np.full(scale.shape, middle, u.weight_type)
            axis = u.axis - (w.ndim if u.weight_form.endswith("negative axis") else 0)
            payload = self.constants.constant(f"u{k}_wq", q, **self._source())
            names = (
                self.constants.constant(f"u{k}_w_scale", scale),
                self.constants.constant(f"u{k}_w_zp", zero_point),
            )
            name = self._dq(payload, names, f"u{k}_w", axis if u.per_channel else None)
        self.shared.setdefault("w", (name, w, scale))
        return name, w, scale

    def _bias(self, k: int, shape: tuple[int, ...], x_scale: Floats, w_scale: Floats) -> tuple[str, Floats | None]:
        u, name = self.u, f"u{k}_b"
        if u.bias == "none":
            return "", None
        if u.share == "bias" and k > 0:
            name, b, _ = self.shared["b"]
            return name, b
        b = np.asarray(self.rng.normal(size=shape), np.float32)
        if u.bias_form == "input":
            self.inputs.append(_info(name, b.dtype, b.shape))
        elif u.bias_form == "float":
            self.constants.constant(name, b, **self._source())
        else:
            wrong = np.float32(1.5 if u.bias_form != "int32" else 1)
            scale = (x_scale * w_scale * np.float32(u.alpha / u.beta) * wrong).astype(np.float32)
            scale = scale if u.per_channel else scale.reshape(u.scale_shape)
            q = np.rint(b.astype(np.float64) / (scale if u.per_channel else scale.reshape(())))
            q = np.clip(q, -(2**31), 2**31 - 1).astype(np.int32)
            payload = self.constants.constant(f"u{k}_bq", q, **self._source())
            names = (self.constants.constant(f"u{k}_b_scale", scale),)
            self._dq(payload, names, name, b.ndim - 1 if u.per_channel else None)
        self.shared.setdefault("b", (name, b, b))
        return name, b

    def _source(self) -> dict[str, str]:
        return {} if self.u.source == "initializer" else {"source": self.u.source}

    def _post(self, k: int, y: str, value: Floats) -> tuple[str, Floats]:
        lo, hi = np.float32(0.3 * min(value.min(), 0)), np.float32(0.8 * max(value.max(), 1e-3))
        for i, op in enumerate(self.u.post):
            name = f"u{k}_post{i}"
            if op == "Relu":
                y, value = self.body.node("Relu", [y], name), np.maximum(value, np.float32(0))
                continue
            value = np.clip(value, lo, hi)
            if self.u.opset < 11:
                y = self.body.node("Clip", [y], name, min=float(lo), max=float(hi))
            else:
                bounds = [self.constants.constant(f"{name}_{s}", np.array(v)) for s, v in (("min", lo), ("max", hi))]
                y = self.body.node("Clip", [y, *bounds], name)
        return y, value

    def _quantized(self, name: str, value: Floats, dtype: str) -> Quantized:
        info, shape = np.iinfo(dtype), self.u.scale_shape
        lo, hi = min(float(value.min()), 0.0), max(float(value.max()), 0.0)
        lo = 0.0 if self.u.implicit_zero else lo
        step = max((hi - lo) / (int(info.max) - int(info.min)), 1e-6)
        scale = np.full(shape, step, np.float32)
        zero_point = np.full(shape, np.clip(np.rint(info.min - lo / step), info.min, info.max), dtype)
        names: tuple[str, ...] = (self.constants.constant(f"{name}_scale", scale),)
        if not self.u.implicit_zero:
            names = (*names, self.constants.constant(f"{name}_zp", zero_point))
        return Quantized(scale, zero_point, names)

    def _q(self, x: str, q: Quantized, output: str) -> str:
        return self.body.node("QuantizeLinear", [x, *q.names], output, self.u.domain)

    def _dq(self, q: str, names: Sequence[str], output: str, axis: int | None = None) -> str:
        attributes = {} if axis is None else {"axis": axis}
        return self.body.node("DequantizeLinear", [q, *names], output, self.u.domain, **attributes)

    def _placed(self, x: onnx.ValueInfoProto, inner_x: str, y: onnx.ValueInfoProto) -> onnx.ModelProto:
        """The model, with the units at `unit.place`."""
        u, body, outer = self.u, self.body, self.outer
        inputs, outputs, functions = [x, *self.inputs], [y, *self.outputs], list[onnx.FunctionProto]()
        shape, elem = _shape(y), y.type.tensor_type.elem_type
        opsets = [helper.make_opsetid("", u.opset), *([helper.make_opsetid(u.domain, 1)] if u.domain else [])]
        if u.place.startswith("then"):
            zeros = numpy_helper.from_array(np.zeros(shape, helper.tensor_dtype_to_np_dtype(elem)))
            other = helper.make_graph(
                [helper.make_node("Constant", [], ["else_y"], value=zeros)],
                "else",
                [],
                [helper.make_tensor_value_info("else_y", elem, shape)],
            )
            outer.node("If", ["cond"], "y", then_branch=_graph(body, "then", [], [y]), else_branch=other)
            inputs.append(_info("cond", np.dtype(np.bool_), ()))
        elif u.place == "loop":
            carried = ("go", np.dtype(np.bool_)), ("state", np.dtype(np.int64))  # opset 10 asks for a state
            before, after = ([_info(name + end, dtype, ()) for name, dtype in carried] for end in ("", "_on"))
            for a, b in zip(before, after, strict=True):
                body.node("Identity", [a.name], b.name)
            step = _graph(body, "step", [_info("i", np.dtype(np.int64), ()), *before], [*after, y])
            trips = outer.constant("trips", np.array(2, np.int64))
            outer.node("Loop", [trips, "", trips], "last_state", body=step)
            outer.nodes[-1].output.append("y")
            shape = (2, *shape)
        elif u.place == "scan":
            inner = helper.make_tensor_value_info(inner_x, x.type.tensor_type.elem_type, _shape(x))
            outer.node("Scan", ["x"], "y", body=_graph(body, "step", [inner], [y]), num_scan_inputs=1)
            inputs[0] = helper.make_tensor_value_info("x", x.type.tensor_type.elem_type, (2, *_shape(x)))
            shape = (2, *shape)
        elif u.place == "function":
            functions = [helper.make_function("local", "Units", [inner_x], [y.name], body.nodes, opsets)]
            outer.node("Units", ["x"], "y", "local")
            opsets = [*opsets, helper.make_opsetid("local", 1)]
        if u.place != "main":
            outputs = [helper.make_tensor_value_info("y", elem, shape)]
        if u.ir < 4:
            inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in outer.initializers]
        return helper.make_model(
            _graph(outer, "main", inputs, outputs), opset_imports=opsets, functions=functions, ir_version=u.ir
        )


def _core(u: Unit, body: Body, channels: int, x: str, w: str, b: str, y: str) -> str:
    """The operator itself, with its bias, on so many channels."""
    inputs = [x, w, *([b] if b else [])]
    if u.convolves:
        group = channels if u.depthwise else u.group
        return body.node(u.op, inputs, y, kernel_shape=[3] * u.spatial, pads=[1] * (2 * u.spatial), group=group)
    if u.op == "Gemm":
        return body.node("Gemm", inputs, y, transA=int(u.trans_a), transB=int(u.trans_b), alpha=u.alpha, beta=u.beta)
    if u.op == "MatMul":
        return body.node("MatMul", [x, w], y)
    return body.node("Add", [body.node("MatMul", [x, w], f"{y}_product"), b], y)


def _float(u: Unit, x: Floats, w: Floats, b: Floats | None) -> Floats:
    """What the operator gives in float."""
    body, values = Body(), {"x": x, "w": w, **({} if b is None else {"b": b})}
    _core(u, body, x.shape[1], "x", "w", "" if b is None else "b", "y")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = _graph(body, "float", [_info(k, v.dtype, v.shape) for k, v in values.items()], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return np.asarray(sessions.run(model, values)[0], np.float32)


def _graph(
    body: Body, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    return helper.make_graph(body.nodes, name, inputs, outputs, body.initializers)


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def _shape(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(d.dim_value for d in info.type.tensor_type.shape.dim)


def _along(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """A shape that broadcasts over all axes but this one."""
    return tuple(n if i == axis else 1 for i, n in enumerate(shape))
