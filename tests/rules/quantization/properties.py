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

from rules.quantization import QuantizedTensor, bias_scale, dequantize, output_bound, output_bound_any_input
from rules.quantization.tensor import along

U = Fraction(1, 2**24)
TINY = Fraction(1, 2**126)
LIMIT = 2**31 - 1

Array = NDArray[Any]
Quantize = Callable[[Array, int | None], QuantizedTensor]


def exact(values: Array) -> list[Fraction]:
    return [Fraction(float(v)) for v in np.asarray(values).reshape(-1)]


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
    scales = exact(np.broadcast_to(along(q.scale, w.ndim, axis), w.shape))
    for value, back, code, s in zip(exact(w), exact(dequantize(q)), q.codes.reshape(-1), scales, strict=True):
        assert abs(value - back) <= s / 2 + U * (abs(value) + abs(int(code)) * s)
        assert value != 0 or back == 0


def same_codes_as_quantize_linear(quantize: Quantize, w: Array, axis: int | None) -> None:
    """Item 11: the codes are those of ONNX Runtime's QuantizeLinear at the same scale and zero point."""
    q = quantize(w, axis)
    kernel = _session("QuantizeLinear", TensorProto.FLOAT, TensorProto.INT8, axis)
    (codes,) = kernel.run(None, {"x": w, "scale": q.scale, "zero_point": q.zero_point})
    np.testing.assert_array_equal(q.codes, codes)


def same_values_as_dequantize_linear(dequantize: Callable[[QuantizedTensor], Array], q: QuantizedTensor) -> None:
    """The values are those of ONNX Runtime's DequantizeLinear, bit for bit."""
    kind = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32}
    kernel = _session("DequantizeLinear", kind[q.codes.dtype.name], TensorProto.FLOAT, q.axis)
    (values,) = kernel.run(None, {"x": q.codes, "scale": q.scale, "zero_point": q.zero_point})
    np.testing.assert_array_equal(dequantize(q), values)


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
    scales = exact(np.broadcast_to(along(q.scale, b.ndim, axis), b.shape))
    codes = [int(c) for c in q.codes.reshape(-1)]
    for value, back, code, s in zip(exact(b), exact(dequantize(q)), codes, scales, strict=True):
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


def output_is_near(
    quantize_unit: Callable[..., Any], w: Array, b: Array, x_q: Array, x_scale: np.float32, x_zero: int
) -> None:
    """Item 9: w [C, K], b [C], uint8 x_q [K]: |y - y'| <= the bound for that x <= the bound for any x."""
    unit = quantize_unit(w, b, x_scale, axis=0)
    x = (x_q.astype(np.int32) - x_zero).astype(np.float32) * x_scale
    s, s_b = unit.weight.scale.astype(np.float64)[:, None], unit.bias.scale.astype(np.float64)
    u = 2.0**-24
    element = s / 2 + u * (np.abs(w) + np.abs(unit.weight.codes.astype(float)) * s)
    bias = s_b / 2 + 4 * u * np.abs(unit.bias.codes.astype(float)) * s_b
    given = output_bound(element, bias, np.abs(x))
    free = output_bound_any_input(element, bias, x_scale=float(x_scale), x_zero_point=x_zero, x_min=0, x_max=255)
    back, b_back = dequantize(unit.weight), dequantize(unit.bias)
    for c in range(len(w)):
        y = sum((p * q for p, q in zip(exact(x), exact(w[c]), strict=True)), Fraction(float(b[c])))
        z = sum((p * q for p, q in zip(exact(x), exact(back[c]), strict=True)), Fraction(float(b_back[c])))
        assert abs(y - z) <= Fraction(float(given[c])) <= Fraction(float(free[c]))


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


@functools.cache
def _session(op: str, source: int, target: int, axis: int | None) -> onnxruntime.InferenceSession:
    """Runs one Q or DQ with everything an input."""
    quantized = target if op == "QuantizeLinear" else source
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    named = quantized != TensorProto.INT32
    inputs = ["x", "scale", "zero_point"] if named else ["x", "scale", ""]
    graph = helper.make_graph(
        [
            helper.make_node(op, inputs, ["y"], **attributes),
            helper.make_node("Identity", ["zero_point"], ["unused"]),
        ],
        "one",
        [
            helper.make_tensor_value_info("x", source, None),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("zero_point", quantized, None),
        ],
        [helper.make_tensor_value_info("y", target, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
