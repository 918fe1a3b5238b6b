"""What must hold of the quantization arithmetic: functions that judge an implementation given to them.

They take the implementation as an argument, because the same functions serve twice: the property tests give
them the right one and hostile examples, and `test_properties_can_fail.py` gives them wrong ones to show that
each property is able to fail. The judge is exact arithmetic (fractions) or ONNX Runtime's own kernels, never
our own output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from rules.quantization import QuantizedTensor, bias_scale, dequantize
from rules.quantization.tensor import along
from tests.rules.quantization.exact import fractions

U = Fraction(1, 2**24)
TINY = Fraction(1, 2**126)
LIMIT = 2**31 - 1

Array = NDArray[Any]
Quantize = Callable[[Array, int | None], QuantizedTensor]


def scale_holds_the_largest(symmetric_scale: Callable[[Any], Array], absmax: float) -> None:
    """Item 2, 4, 5: the smallest float32, not below 2^-126, with 127 s >= absmax; 127 s does not overflow."""
    s = np.float32(symmetric_scale(absmax))
    below = Fraction(float(np.nextafter(s, np.float32(0))))
    assert Fraction(float(s)) >= TINY
    assert 127 * Fraction(float(s)) >= Fraction(absmax)
    assert below < TINY or 127 * below < Fraction(absmax)
    assert np.isfinite(s * np.float32(127))


def element_is_near(quantize: Quantize, w: Array, axis: int | None) -> None:
    """Item 1, 3, 6: |w - w'| <= s/2 + u (|w| + |q| s), codes within 127, zero comes back as zero."""
    q = quantize(w, axis)
    assert q.codes.dtype == np.int8
    assert np.abs(q.codes.astype(int)).max(initial=0) <= 127
    scales = fractions(np.broadcast_to(along(q.scale, w.ndim, axis), w.shape))
    for value, back, code, s in zip(fractions(w), fractions(dequantize(q)), q.codes.reshape(-1), scales, strict=True):
        assert abs(value - back) <= s / 2 + U * (abs(value) + abs(int(code)) * s)
        assert value != 0 or back == 0


def same_codes_as_quantize_linear(quantize: Quantize, w: Array, axis: int | None) -> None:
    """Item 11: the codes are those of ONNX Runtime's QuantizeLinear at the same scale and zero point."""
    same_codes_as_the_kernel(quantize(w, axis), w)


def same_codes_as_the_kernel(q: QuantizedTensor, w: Array, code_range: tuple[int, int] | None = None) -> None:
    """The same of given codes, of any type and granularity. code_range: what they are limited to."""
    kernel = _session("QuantizeLinear", _kind(q), q.axis, q.block_size)
    (codes,) = kernel.run(None, {"x": w, "scale": q.scale, "zero_point": q.zero_point.astype(np.int32)})
    np.testing.assert_array_equal(q.codes, codes if code_range is None else np.clip(codes, *code_range))


def same_values_as_dequantize_linear(dequantize: Callable[[QuantizedTensor], Array], q: QuantizedTensor) -> None:
    """The values are those of ONNX Runtime's DequantizeLinear, bit for bit."""
    kernel = _session("DequantizeLinear", _kind(q), q.axis, q.block_size)
    feeds = {"x": q.codes.astype(np.int32), "scale": q.scale, "zero_point": q.zero_point.astype(np.int32)}
    np.testing.assert_array_equal(dequantize(q), kernel.run(None, feeds)[0])


def codes_are_stable(
    requantize: Callable[[Array, QuantizedTensor], Array], q: QuantizedTensor, w: Array | None = None
) -> None:
    """Item 7: Q(DQ(q)) = q."""
    np.testing.assert_array_equal(requantize(dequantize(q), q), q.codes)


def bias_is_nearest(
    quantize_bias: Callable[..., QuantizedTensor], b: Array, x_scale: np.float32, w_scale: Array
) -> None:
    """Item 8: s_b = float32(s_x s_w); |b - q s_b| <= s_b / 2, ties to even; DQ adds at most 4u |q| s_b."""
    axis = None if w_scale.ndim == 0 else b.ndim - 1
    q = quantize_bias(b, x_scale, w_scale, axis=axis)
    np.testing.assert_array_equal(q.scale, np.asarray(w_scale * x_scale))
    assert q.codes.dtype == np.int32
    scales = fractions(np.broadcast_to(along(q.scale, b.ndim, axis), b.shape))
    codes = [int(c) for c in q.codes.reshape(-1)]
    for value, back, code, s in zip(fractions(b), fractions(dequantize(q)), codes, scales, strict=True):
        assert abs(value - code * s) <= s / 2
        assert code == round(value / s)
        assert abs(value - back) <= s / 2 + 4 * U * abs(code) * s


def bias_fits(raise_for_bias: Callable[..., Array], w_scale: np.float32, b: float, x_scale: np.float32) -> None:
    """Item 8: the raised scale makes the code fit at a normal bias scale; it is not raised without need."""
    raised = np.float32(raise_for_bias(w_scale, b, x_scale))
    s_b = Fraction(float(np.float32(raised * x_scale)))
    assert s_b >= TINY
    assert abs(round(Fraction(b) / s_b)) <= LIMIT
    before = Fraction(float(np.float32(w_scale * x_scale)))
    if before >= TINY and abs(round(Fraction(b) / before)) <= LIMIT:
        assert raised == w_scale
    need = max(abs(Fraction(b)) / LIMIT, TINY) / Fraction(float(x_scale))
    assert w_scale <= raised
    assert Fraction(float(raised)) <= max(Fraction(float(w_scale)), need * (1 + 8 * U))


def zero_channel_serves_its_bias(quantize_unit: Callable[..., Any], b: float, x_scale: np.float32) -> None:
    """Item 5: a channel of zeros has codes 0, and its bias comes back within 2^-21, at a normal scale.

    Or within half of the smallest bias step that normal scales make, for a bias near the smallest normal.
    """
    w = np.array([[0, 0, 0], [1, -2, 0.5]], np.float32)
    unit = quantize_unit(w, np.array([b, 1], np.float32), x_scale, axis=0)
    assert not unit.weight.codes[0].any()
    assert Fraction(float(unit.bias.scale[0])) >= TINY
    value, back = Fraction(float(np.float32(b))), Fraction(float(dequantize(unit.bias)[0]))
    assert abs(value - back) <= max(abs(value) / 2**21, TINY / 2 * max(Fraction(1), Fraction(float(x_scale))))


def depth_is_the_largest(depth: Callable[[int, int], int], x_span: int, w_span: int) -> None:
    """Item 10: K products of the largest magnitude stay in int32, and K + 1 do not."""
    k = depth(x_span, w_span)
    assert k * x_span * w_span <= LIMIT < (k + 1) * x_span * w_span


def follows_its_input(quantize: Quantize, w: Array, exponent: int, order: list[int]) -> None:
    """Item 15, w [C, K], axis 0: -w negates the codes, 2^k w keeps them, permuted channels permute them."""
    q = quantize(w, 0)
    np.testing.assert_array_equal(quantize(-w, 0).codes, -q.codes)
    np.testing.assert_array_equal(quantize(-w, 0).scale, q.scale)
    scaled = quantize(np.ldexp(w, exponent), 0)
    np.testing.assert_array_equal(scaled.codes, q.codes)
    permuted = quantize(w[order], 0)
    np.testing.assert_array_equal(permuted.codes, q.codes[order])
    np.testing.assert_array_equal(permuted.scale, q.scale[order])


def right_bias_scale(bias_is_right: Callable[..., bool], x_scale: np.float32, w_scale: Array) -> None:
    """The product is right, and 2^-20 beside it is not."""
    product = bias_scale(x_scale, w_scale)
    assert bias_is_right(product, x_scale, w_scale)
    assert not bias_is_right(product * np.float32(1 + 2.0**-20), x_scale, w_scale)
    assert not bias_is_right(product * np.float32(1 - 2.0**-20), x_scale, w_scale)


def _kind(q: QuantizedTensor) -> int:
    return int(TensorProto.DataType.Value((q.four_bit or q.codes.dtype.name).upper()))


@functools.cache
def _session(op: str, kind: int, axis: int | None, block_size: int) -> onnxruntime.InferenceSession:
    """Runs one Q or DQ with everything an input; codes and zero point come and go as int32."""
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    attributes |= {"block_size": block_size} if block_size else {}
    is_q = op == "QuantizeLinear"
    named = kind != TensorProto.INT32
    nodes = [helper.make_node("Cast", ["zero_point"], ["zero"], to=kind)]
    if is_q:
        nodes.append(helper.make_node(op, ["x", "scale", "zero"], ["codes"], **attributes))
        nodes.append(helper.make_node("Cast", ["codes"], ["y"], to=TensorProto.INT32))
    else:
        nodes.append(helper.make_node("Cast", ["x"], ["codes"], to=kind))
        nodes.append(helper.make_node(op, ["codes", "scale", "zero" if named else ""], ["y"], **attributes))
    source, target = (TensorProto.FLOAT, TensorProto.INT32) if is_q else (TensorProto.INT32, TensorProto.FLOAT)
    types = {"x": source, "scale": TensorProto.FLOAT, "zero_point": TensorProto.INT32}
    graph = helper.make_graph(
        nodes, "one",
        [helper.make_tensor_value_info(name, of, None) for name, of in types.items()],
        [helper.make_tensor_value_info("y", target, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
