"""Says which of a backend's rules the quantized units of a model break: an independent judge of `rules`.

Written from the project's reference on backends alone ("What each backend needs of a full QDQ unit", below:
the table), and not from `rules/backends.py`, so that a fact misread there is not misread here too. Where the
table grants a form to some ops only, other ops are held to the form that every backend takes: one scale for
the tensor. Axes are those of the ONNX operator, as in the table.

`violations` judges units whose weight is quantized: one line for each rule broken, with the row of the table
it comes from. `units_left_float` names the units whose weight is a float constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from tests.backend_checks import (
    ALL_OPS,
    AXIS_0,
    EVERYWHERE,
    Check,
    activations,
    any_conv_transpose_axis,
    channels,
    dpu_shifts,
    explicit_gemm_zero_point,
    explicit_weight_zero_points,
    float_bias,
    float_or_int32_bias,
    htp_guards,
    int8_bias,
    int32_bias,
    int32_bias_or_any,
    narrow_codes,
    no_conv_transpose,
    output_channels,
    own_bias,
    positive_activation_scales,
    power_of_two_scales,
    redundant_post,
    row_bias,
    uint8_kernel,
    unit_alpha_beta,
    unit_alpha_beta_with_bias,
    unsigned_with_unsigned,
    weight_type,
    zero_activation_zero_points,
    zero_weight_zero_points,
)
from tests.backend_units import Unit, units


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


# The table.

ROWS: Mapping[str, Row] = {
    "generic": Row("DQ of int32 has no zero point; bias scale is x_scale*w_scale", (int32_bias_or_any,)),
    "onnxruntime": Row(
        "u8, or s8 | s8 per channel | Conv 0, Gemm transB?0:1, MatMul 1 | 0, explicit, shape of scale | "
        "int32 DQ, no zp | output Q of the same type; no ConvTranspose; Gemm: explicit zero points",
        (
            activations("uint8", "int8"),
            explicit_gemm_zero_point,
            uint8_kernel,
            weight_type("int8", "uint8"),
            output_channels("Conv", "Gemm", "MatMul"),
            explicit_weight_zero_points,
            int32_bias,
            unit_alpha_beta_with_bias,
            redundant_post,
            no_conv_transpose,
        ),
    ),
    "qnn": Row(
        "u8, u16 | s8 per channel for Conv/ConvTranspose, per tensor for MatMul | 0 / ConvTranspose 1 | 0 | "
        "int32, own copy per consumer | bias scale = x_scale*w_scale; Gemm alpha=beta=1, C [M] or [1,M]; "
        "guards",
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
            any_conv_transpose_axis,
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
        "power-of-two scales | s8 power-of-two, per tensor | - | 0 | int8, own power-of-two scale | shift_cut "
        "in [0,16]; shift_bias in [min(0,-(24-(8+shift_cut))), 15]",
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
        "s8 (u8 with u8 weights) | s8 per channel | 0 | all 0 | constant int32 | u8 activation with s8 weight "
        "is not accepted",
        (
            activations("int8", "uint8"),
            unsigned_with_unsigned,
            AXIS_0,
            int32_bias,
        ),
    ),
    "tflite": Row(
        "s8 | s8 [-127,127] per channel | 0 | 0 | int32 (int64 for 16-bit activations) | several reject a "
        "bias scale that is not the product",
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
