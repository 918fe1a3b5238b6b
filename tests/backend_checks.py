"""The facts of `backend_checker`, one function each: it says how a unit breaks that fact, or nothing.

A fact that holds of several backends is stated once; those that take parameters (`weight_type("int8")`) give
the function. Scales are compared in float64, as real numbers.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tests.backend_units import Array, Linear, Unit

Doubles = npt.NDArray[np.float64]
Check = Callable[[Unit], Iterator[str]]
RELATIVE = 2.0**-22  # two float32 products of equal factors differ by less


# What the ONNX standard asks of every file.


def standard(unit: Unit) -> Iterator[str]:
    weight, bias = _weight(unit), unit.bias
    for what, each in (("weight", weight), ("bias", bias)):
        if not isinstance(each, Linear):
            continue
        if each.scale is None:
            yield f"the {what}'s scale is not constant"
        elif not _positive(each.scale):
            yield f"the {what}'s scales are not all positive and finite"
        if _per_axis(each) and each.domain == "" and unit.opset < 13:
            yield f"the {what} is per axis below opset 13"
        if each.block_size and each.domain == "" and unit.opset < 21:
            yield f"the {what} has a block_size below opset 21"
        if each.dtype in ("int4", "uint4", "int16", "uint16") and each.domain == "" and unit.opset < 21:
            yield f"the {what} is {each.dtype} below opset 21"
        if _half(each) and each.domain == "" and unit.opset < 19:
            yield f"the {what}'s scale is float16 below opset 19"
        if each.dtype == "int32" and each.explicit:
            yield f"the {what}'s DequantizeLinear of int32 has a zero point"
        if _per_axis(each) and not each.block_size and not _axis_fits(each):
            yield f"the {what}'s {_scales(each).size} scales do not fit axis {each.axis} of its shape"


def per_tensor_activations(unit: Unit) -> Iterator[str]:
    for what, each in (("input", unit.x), ("output", unit.y)):
        if each.scale is None or each.scale.size != 1:
            yield f"the {what}'s scale is not one constant"


EVERYWHERE: tuple[Check, ...] = (standard, per_tensor_activations)


# Activations.


def activations(*types: str) -> Check:
    def check(unit: Unit) -> Iterator[str]:
        for what, each in (("input", unit.x), ("output", unit.y)):
            if each.dtype not in types:
                yield f"the {what} is {each.dtype}, not {' or '.join(types)}"

    return check


def zero_activation_zero_points(unit: Unit) -> Iterator[str]:
    for what, each in (("input", unit.x), ("output", unit.y)):
        if each.explicit and (each.zero_point is None or _any(each.zero_point)):
            yield f"the {what}'s zero point is not 0"


def positive_activation_scales(unit: Unit) -> Iterator[str]:
    for what, each in (("input", unit.x), ("output", unit.y)):
        if each.scale is None or not _positive(each.scale):
            yield f"the {what}'s scale is not positive"


def power_of_two_scales(unit: Unit) -> Iterator[str]:
    for what, each in (("input", unit.x), ("output", unit.y), ("weight", unit.weight), ("bias", unit.bias)):
        if isinstance(each, Linear) and each.scale is not None and not _powers_of_two(each.scale):
            yield f"the {what}'s scale is not a power of two"


# Weights.


def weight_type(*types: str) -> Check:
    def check(unit: Unit) -> Iterator[str]:
        if _weight(unit).dtype not in types:
            yield f"the weight is {_weight(unit).dtype}, not {' or '.join(types)}"

    return check


def channels(axes: Mapping[str, tuple[int, ...]]) -> Check:
    """Per channel along one of these axes, or per tensor; ops that are not named only per tensor.

    An axis must be one of output channels, except where the table leaves it open (ConvTranspose of tensorrt).
    """

    def check(unit: Unit) -> Iterator[str]:
        weight = _weight(unit)
        if weight.block_size:
            yield "the weight is quantized in blocks"
        if not _per_axis(weight):
            return
        allowed = axes.get(unit.op, ())
        if not allowed:
            yield "the weight is per channel, not per tensor"
        elif weight.axis not in allowed:
            yield f"the weight's axis is {weight.axis}, not {' or '.join(map(str, allowed))}"
        elif weight.axis != unit.output_axis and len(allowed) == 1:
            yield f"the weight's axis is {weight.axis}, but its output channels are {unit.output_axis}"

    return check


def output_channels(*ops: str) -> Check:
    """Per channel along the operator's own axis of output channels, or per tensor; other ops per tensor."""

    def check(unit: Unit) -> Iterator[str]:
        yield from channels(dict.fromkeys(ops, (unit.output_axis,)))(unit)

    return check


def any_conv_transpose_axis(unit: Unit) -> Iterator[str]:
    """tensorrt: that of ConvTranspose depends on the version."""
    yield from channels({unit.op: (0, 1) if unit.op == "ConvTranspose" else (unit.output_axis,)})(unit)


ALL_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
AXIS_0 = channels({"Conv": (0,), "ConvTranspose": (0,), "Gemm": (0,), "MatMul": (0,)})


def zero_weight_zero_points(unit: Unit) -> Iterator[str]:
    weight = _weight(unit)
    if weight.explicit and (weight.zero_point is None or _any(weight.zero_point)):
        yield "the weight's zero points are not all 0"


def explicit_weight_zero_points(unit: Unit) -> Iterator[str]:
    weight = _weight(unit)
    if not weight.explicit:
        yield "the weight has no zero point"
    elif weight.zero_point is not None and weight.zero_point.shape != _scales(weight).shape:
        yield "the weight's zero point has not the shape of its scale"


def narrow_codes(unit: Unit) -> Iterator[str]:
    codes = _weight(unit).codes
    if codes is not None and codes.dtype == np.int8 and bool((codes == -128).any()):
        yield "the weight holds the code -128"


def unsigned_with_unsigned(unit: Unit) -> Iterator[str]:
    """xnnpack: s8 with s8, u8 with u8; the zero points of the former are 0."""
    weight = _weight(unit)
    if weight.dtype != unit.x.dtype:
        yield f"the input is {unit.x.dtype} and the weight {weight.dtype}"
    if weight.dtype == "int8":
        yield from zero_weight_zero_points(unit)


# Biases.


def float_bias(unit: Unit) -> Iterator[str]:
    if isinstance(unit.bias, Linear):
        yield f"the bias is {unit.bias.dtype} behind a DequantizeLinear, not float"


def int32_bias(unit: Unit) -> Iterator[str]:
    """int32 at the scale that the kernel assumes."""
    bias = unit.bias
    if not unit.has_bias:
        return
    if not isinstance(bias, Linear):
        yield f"the bias is {'not constant' if bias is None else 'float'}, not int32"
        return
    if bias.dtype != "int32":
        yield f"the bias is {bias.dtype}, not int32"
    yield from product_scale(unit)


def int32_bias_or_any(unit: Unit) -> Iterator[str]:
    """As above, but one that the caller gives stays what it is."""
    if unit.bias is not None:
        yield from int32_bias(unit)


def float_or_int32_bias(unit: Unit) -> Iterator[str]:
    if isinstance(unit.bias, Linear) and unit.bias.dtype != "int32":
        yield f"the bias is {unit.bias.dtype}, neither float nor int32"


def int8_bias(unit: Unit) -> Iterator[str]:
    bias = unit.bias
    if not unit.has_bias:
        return
    if not isinstance(bias, Linear):
        yield f"the bias is {'not constant' if bias is None else 'float'}, not int8"
        return
    if bias.dtype != "int8":
        yield f"the bias is {bias.dtype}, not int8"
    if bias.explicit and (bias.zero_point is None or _any(bias.zero_point)):
        yield "the bias' zero point is not 0"
    if _per_axis(bias):
        yield "the bias is per channel, not per tensor"


def own_bias(unit: Unit) -> Iterator[str]:
    if isinstance(unit.bias, Linear) and max(unit.bias.output_uses, unit.bias.codes_uses) > 1:
        yield "the bias has other consumers"


def product_scale(unit: Unit) -> Iterator[str]:
    """bias scale = x_scale * w_scale (times alpha / beta), for the channel that each element is added to."""
    bias, product = unit.bias, _product(unit)
    if not isinstance(bias, Linear) or bias.codes is None or bias.scale is None or product is None:
        return
    per_axis = _per_axis(bias)
    if per_axis and bias.axis != bias.codes.ndim - 1:
        yield f"the bias' axis is {bias.axis}, not its last"
        return
    if product.size > 1 and not per_axis and bias.codes.size > 1 and not _close(product, product[:1]):
        yield "the bias has one scale, but its channels differ in x_scale * w_scale"
        return
    scale = _scales(bias)
    if product.size > 1 and scale.size > product.size and scale.size % product.size == 0:
        product = np.tile(product, scale.size // product.size)  # the groups of a ConvTranspose share scales
    if product.size > 1 and scale.size > 1 and product.size != scale.size:
        yield f"the bias has {scale.size} scales, the product {product.size}"
    elif not _close(scale, product):
        worst = float(np.abs(scale / product - 1).max())
        yield f"the bias' scale is not x_scale * w_scale (by {worst:.3g})"


# Gemm, what follows, and whole units.


def unit_alpha_beta(unit: Unit) -> Iterator[str]:
    if (unit.alpha, unit.beta) != (1.0, 1.0):
        yield f"alpha = {unit.alpha:g} and beta = {unit.beta:g}"


def unit_alpha_beta_with_bias(unit: Unit) -> Iterator[str]:
    if unit.has_bias:
        yield from unit_alpha_beta(unit)


def row_bias(unit: Unit) -> Iterator[str]:
    """Gemm's C is [M] or [1, M]."""
    codes = unit.bias.codes if isinstance(unit.bias, Linear) else unit.bias
    if unit.op == "Gemm" and codes is not None and codes.shape not in ((codes.size,), (1, codes.size)):
        yield f"the bias has shape {list(codes.shape)}, not [M] or [1, M]"


def redundant_post(unit: Unit) -> Iterator[str]:
    """A Relu or Clip whose bounds become the first and the last code, so that saturation does its work."""
    y = unit.y
    if y.scale is None or y.scale.size != 1 or y.dtype not in ("uint8", "int8"):
        return
    info, zero = np.iinfo(y.dtype), 0 if y.zero_point is None else int(y.zero_point.item())
    for post in unit.post:
        low, high = (np.rint(bound / float(y.scale.item())) + zero for bound in (post.low, post.high))
        if not (low <= info.min and high >= info.max):
            yield f"{post.op} does more than the Q after it"


def explicit_gemm_zero_point(unit: Unit) -> Iterator[str]:
    """Of a Gemm, and of a MatMul and Add, which become one."""
    if (unit.op == "Gemm" or (unit.op == "MatMul" and unit.has_bias)) and not unit.x.explicit:
        yield "the input of a Gemm has no explicit zero point"


def no_conv_transpose(unit: Unit) -> Iterator[str]:
    if unit.op == "ConvTranspose":
        yield "ConvTranspose has no integer kernel"


def uint8_kernel(unit: Unit) -> Iterator[str]:
    """x and y are uint8, or become so: int8 does in a Q and a DQ that have one consumer each (x64)."""
    x, y = unit.x, unit.y
    if x.dtype == "int8" and not (x.source == "QuantizeLinear" and x.codes_uses == x.output_uses == 1):
        yield "the input is int8, but not from a Q and a DQ with one consumer each"
    after = unit.following
    pair = len(after) == 1 and after[0].codes_uses == 1 and after[0].output_uses <= 1  # 0: a graph output
    if y.dtype == "int8" and (unit.q_is_output or not pair):
        yield "the output is int8, but its Q is not followed by one DQ with one consumer"


# Guards.


def htp_guards(unit: Unit) -> Iterator[str]:
    product, y = _product(unit), unit.y
    if product is None or y.scale is None or y.scale.size != 1:
        return
    y_scale = float(y.scale.item())
    if bool((product / y_scale <= 2.0**-24).any()):
        yield "x_scale * w_scale / y_scale is not above 2^-24"
    exported = np.finfo(np.float16 if _half(_weight(unit)) else np.float32)
    if bool((product < float(exported.smallest_normal)).any()):
        yield "x_scale * w_scale is below the smallest normal number"
    if not isinstance(unit.bias, Linear) or unit.bias.codes is None:
        return
    codes = unit.bias.codes.astype(np.float64)
    if bool((np.abs(codes) > 2.0**31).any()):
        yield "|b_q| is above 2^31"
    zero = 0 if y.zero_point is None else int(y.zero_point.item())
    shift = np.rint(zero * y_scale / product)
    if shift.size > 1 and codes.size != shift.size and codes.size % shift.size == 0 and codes.ndim == 1:
        shift = np.tile(shift, codes.size // shift.size)
    if bool((np.abs(codes - shift) > 2.0**31).any()):
        yield "|b_q - round(y_zp * y_scale / (x_scale * w_scale))| is above 2^31"


def dpu_shifts(unit: Unit) -> Iterator[str]:
    weight, bias = _weight(unit), unit.bias
    scales = [unit.x.scale, weight.scale, unit.y.scale]
    if any(s is None or s.size != 1 or not _powers_of_two(s) for s in scales):
        return  # another check says so
    ipos, wpos, opos = (_position(s) for s in scales if s is not None)
    cut = wpos + ipos - opos
    if not 0 <= cut <= 16:
        yield f"shift_cut = {cut} is not in [0, 16]"
    b_scale = bias.scale if isinstance(bias, Linear) else None
    if b_scale is not None and b_scale.size == 1 and _powers_of_two(b_scale):
        shift, low = wpos + ipos - _position(b_scale), min(0, -(24 - (8 + cut)))
        if not low <= shift <= 15:
            yield f"shift_bias = {shift} is not in [{low}, 15]"


# Arithmetic.


def _weight(unit: Unit) -> Linear:
    assert isinstance(unit.weight, Linear)
    return unit.weight


def _scales(linear: Linear) -> Doubles:
    return np.ones(1) if linear.scale is None else linear.scale.astype(np.float64)


def _per_axis(linear: Linear) -> bool:
    return linear.scale is not None and linear.scale.size > 1


def _axis_fits(linear: Linear) -> bool:
    shape = () if linear.codes is None else linear.codes.shape
    axis = linear.axis
    return axis is not None and axis < len(shape) and _scales(linear).shape == (shape[axis],)


def _positive(scale: Array) -> bool:
    wide = scale.astype(np.float64)
    return bool((np.isfinite(wide) & (wide > 0)).all())


def _any(zero_point: Array) -> bool:
    return bool((zero_point.astype(np.int64) != 0).any())


def _powers_of_two(scale: Array) -> bool:
    return _positive(scale) and bool((np.frexp(scale.astype(np.float64))[0] == 0.5).all())


def _position(scale: Array) -> int:
    """p where the scale is 2^-p."""
    return -round(float(np.log2(scale.astype(np.float64).item())))


def _product(unit: Unit) -> Doubles | None:
    """x_scale * w_scale * alpha / beta for each channel, in one dimension."""
    x, weight = unit.x.scale, _weight(unit).scale
    if x is None or x.size != 1 or weight is None or _weight(unit).block_size:
        return None
    factor = unit.alpha / unit.beta if unit.has_bias else unit.alpha
    return np.asarray(weight.astype(np.float64).reshape(-1) * float(x.item()) * factor)


def _close(a: Doubles, b: Doubles) -> bool:
    return bool((np.abs(a - b) <= RELATIVE * np.abs(b)).all())


def _half(linear: Linear) -> bool:
    return linear.scale is not None and linear.scale.dtype == np.float16
