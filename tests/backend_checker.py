"""Says which of a backend's rules the quantized units of a model break: an independent judge of `rules`.

Written from the project's reference on backends alone ("What each backend needs of a full QDQ unit", below:
the table), and not from `rules/backends.py`, so that a fact misread there is not misread here too. Where the
table grants a form to some ops only, other ops are held to the form that every backend takes: one scale for
the tensor. Axes are those of the ONNX operator, as in the table.

`violations` judges units whose weight is quantized: one line for each rule broken, with the row of the table
it comes from. `units_left_float` names the units whose weight is a float constant.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from tests.backend_units import Array, Linear, Unit, units

Doubles = npt.NDArray[np.float64]
Check = Callable[[Unit], Iterator[str]]
RELATIVE = 2.0**-22  # two float32 products of equal factors differ by less


@dataclass(frozen=True)
class Row:
    """A row of the table: its words, and a check for each of its facts."""

    words: str
    checks: tuple[Check, ...]


def violations(model: onnx.ModelProto, backend: str) -> list[str]:
    """One line for each rule of this backend that a unit with a quantized weight breaks."""
    row = ROWS[backend]
    return [
        f"{unit.name} ({unit.op}): {broken} [{backend}: {row.words}]"
        for unit in units(model)
        if unit.quantized
        for check in (*EVERYWHERE, *row.checks)
        for broken in check(unit)
    ]


def units_left_float(model: onnx.ModelProto) -> list[Unit]:
    """Units whose weight is a constant and float."""
    return [unit for unit in units(model) if unit.weight is not None and not unit.quantized]


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
        if "4" in each.dtype and each.domain == "" and unit.opset < 21:
            yield f"the {what} is {each.dtype} below opset 21"
        if "int16" in each.dtype and each.domain == "" and unit.opset < 21:
            yield f"the {what} is {each.dtype} below opset 21"
        if each.scale is not None and each.scale.dtype == np.float16 and unit.opset < 19 and each.domain == "":
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


def same_activations(unit: Unit) -> Iterator[str]:
    if unit.x.dtype != unit.y.dtype:
        yield f"the input is {unit.x.dtype} and the output {unit.y.dtype}"


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
        yield from channels({op: (unit.output_axis,) for op in ops})(unit)

    return check


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
    if unit.y.scale is None or unit.y.scale.size != 1 or "int" not in unit.y.dtype:
        return
    info, scale = np.iinfo(unit.y.dtype), float(unit.y.scale.item())
    zero = 0 if unit.y.zero_point is None else int(unit.y.zero_point.item())
    low, high = (int(info.min) - zero) * scale, (int(info.max) - zero) * scale
    for post in unit.post:
        if not (post.low <= low + 1e-6 * scale and high <= post.high):
            yield f"{post.op} does more than the Q after it"


def no_conv_transpose(unit: Unit) -> Iterator[str]:
    if unit.op == "ConvTranspose":
        yield "ConvTranspose has no integer kernel"


def int8_on_x64(unit: Unit) -> Iterator[str]:
    """int8 becomes uint8 in pairs of Q and DQ that have one consumer each."""
    if unit.x.dtype != "int8":
        return
    if unit.x.output_uses != 1 or unit.x.codes_uses != 1 or unit.x.source != "QuantizeLinear":
        yield "int8 input that is not a Q and a DQ with one consumer each"
    if len(unit.following) != 1 or unit.following[0].output_uses != 1 or unit.q_is_output:
        yield "int8 output whose Q is not followed by one DQ with one consumer"


# Guards.


def htp_guards(unit: Unit) -> Iterator[str]:
    product, y = _product(unit), unit.y
    if product is None or y.scale is None or y.scale.size != 1:
        return
    y_scale = float(y.scale.item())
    if bool((product / y_scale <= 2.0**-24).any()):
        yield "x_scale * w_scale / y_scale is not above 2^-24"
    exported = np.finfo(np.float16 if _weight_scale_is_half(unit) else np.float32)
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
    if isinstance(bias, Linear) and bias.scale is not None and bias.scale.size == 1 and _powers_of_two(bias.scale):
        shift, low = wpos + ipos - _position(bias.scale), min(0, -(24 - (8 + cut)))
        if not low <= shift <= 15:
            yield f"shift_bias = {shift} is not in [{low}, 15]"


# The table.

ROWS: Mapping[str, Row] = {
    "generic": Row("DQ of int32 has no zero point; bias scale is x_scale*w_scale", (int32_bias_or_any,)),
    "onnxruntime": Row(
        "u8, or s8 | s8 per channel | Conv 0, Gemm transB?0:1, MatMul 1 | 0, explicit, shape of scale | "
        "int32 DQ, no zp | output Q of the same type; no ConvTranspose",
        (
            activations("uint8", "int8"),
            same_activations,
            weight_type("int8", "uint8"),
            output_channels("Conv", "Gemm", "MatMul"),
            explicit_weight_zero_points,
            int32_bias,
            unit_alpha_beta_with_bias,
            redundant_post,
            no_conv_transpose,
            int8_on_x64,
        ),
    ),
    "qnn": Row(
        "u8, u16 | s8 per channel for Conv/ConvTranspose, per tensor for MatMul | 0 / ConvTranspose 1 | 0 | "
        "int32, own copy per consumer | bias scale = x_scale*w_scale; Gemm alpha=beta=1, C [M] or [1,M]; guards",
        (
            activations("uint8", "uint16"),
            weight_type("int8"),
            channels({"Conv": (0,), "ConvTranspose": (1,)}),
            zero_weight_zero_points,
            int32_bias,
            own_bias,
            unit_alpha_beta,
            row_bias,
            htp_guards,
        ),
    ),
    "tensorrt": Row(
        "s8, zp 0 | s8 per channel | Conv 0; ConvTranspose depends on version | 0 | float | no uint8; all scales > 0",
        (
            activations("int8"),
            zero_activation_zero_points,
            positive_activation_scales,
            weight_type("int8"),
            lambda unit: channels(
                {op: (unit.output_axis,) for op in ALL_OPS} | {"ConvTranspose": (0, 1)}
            )(unit),
            zero_weight_zero_points,
            float_bias,
        ),
    ),
    "openvino": Row(
        "u8/s8 per tensor | s8 per channel (output channels only) | 0 / 1 | type of the weight | float or int32",
        (
            activations("uint8", "int8"),
            weight_type("int8"),
            output_channels(*ALL_OPS),
            float_or_int32_bias,
        ),
    ),
    "vitis-ai": Row(
        "power-of-two scales | s8 power-of-two, per tensor | - | 0 | int8, own power-of-two scale | shift_cut in "
        "[0,16]; shift_bias in [min(0,-(24-(8+shift_cut))), 15]",
        (
            activations("int8", "uint8"),
            power_of_two_scales,
            weight_type("int8"),
            channels({}),
            zero_weight_zero_points,
            int8_bias,
            own_bias,
            dpu_shifts,
        ),
    ),
    "nnapi": Row(
        "u8 | s8 per channel | 0 | all 0 | int32 | no per-channel MatMul",
        (
            activations("uint8"),
            weight_type("int8"),
            AXIS_0,
            zero_weight_zero_points,
            int32_bias,
        ),
    ),
    "xnnpack": Row(
        "s8 (u8 with u8 weights) | s8 per channel | 0 | all 0 | constant int32 | u8 activation with s8 weight is "
        "not accepted",
        (
            activations("int8", "uint8"),
            unsigned_with_unsigned,
            AXIS_0,
            int32_bias,
        ),
    ),
    "tflite": Row(
        "s8 | s8 [-127,127] per channel | 0 | 0 | int32 (int64 for 16-bit activations) | several reject a bias "
        "scale that is not the product",
        (
            activations("int8"),
            weight_type("int8"),
            AXIS_0,
            zero_weight_zero_points,
            narrow_codes,
            int32_bias,
        ),
    ),
}


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
    return linear.axis is not None and linear.axis < len(shape) and _scales(linear).shape == (shape[linear.axis],)


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


def _weight_scale_is_half(unit: Unit) -> bool:
    scale = _weight(unit).scale
    return scale is not None and scale.dtype == np.float16
