"""What each backend runs as an integer kernel, as data.

`generic` is the ONNX standard alone: every unit of the form is completed. A named backend adds facts about activations,
weights and biases; a unit that misses one would stay float there and only lose accuracy, so it is declined with that
fact's sentence. Facts come from the backends' documents and sources, named beside them. The rules read this table;
nothing else knows a backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rules.quantization import Scheme

if TYPE_CHECKING:
    from rules.qdq_unit.unit import Unit

CHANNEL, TENSOR, AXIS_0 = "channel", "tensor", "channel if that is axis 0"
EVERYWHERE: Mapping[str, str] = dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), CHANNEL)


@dataclass(frozen=True)
class Fact:
    """Something that a backend needs of a unit: what, the sentence if it is missed, and where that is written."""

    holds: Callable[[Unit], bool]
    reason: Callable[[Unit], str]
    source: str


@dataclass(frozen=True)
class Backend:
    """A backend.

    Args:
        name: how options name it.
        source: where its facts are written.
        activations: element types that x and y may have; None for any.
        granularity: per op, "channel" (a weight scale per output channel), "tensor", or per channel only where the
            channels lie along axis 0; an op that is missing has no integer kernel.
        weight_types: types of a quantized weight; None for any.
        zero_points: per op, the granularity at which a weight may have zero points other than the middle of its type;
            an op that is missing takes none.
        zero_points_pay: whether they are proposed for skewed weights too, and not only for those that lie on such a
            grid already: where it is proven that they fuse.
        bias: "int32" at the scale x_scale * w_scale, "float", or "int8" with a power-of-two scale of its own.
        shares_constants: whether two units may read one bias initializer.
        moves_int8: whether it loads models of opset 21 or later in which an int8 DequantizeLinear stands before a
            MaxPool, Reshape and the like.
        power_of_two: whether all scales must be powers of two.
        float_outputs: whether it also multiplies in integers where the output stays float.
        htp_guards: whether scales and bias must pass Qualcomm's guards (`quantization.htp_refuses`).
        facts: what else it needs.
    """

    name: str
    source: str
    activations: tuple[str, ...] | None = None
    granularity: Mapping[str, str] = field(default_factory=lambda: EVERYWHERE)
    weight_types: tuple[str, ...] | None = None
    zero_points: Mapping[str, str] = field(default_factory=dict)
    zero_points_pay: bool = False
    bias: str = "int32"
    shares_constants: bool = True
    moves_int8: bool = True
    power_of_two: bool = False
    float_outputs: bool = False
    htp_guards: bool = False
    facts: tuple[Fact, ...] = ()

    def granularity_of(self, op: str, axis: int | None) -> str:
        """How the weight of an op may be scaled, its output channels lying along `axis`."""
        found = self.granularity.get(op, CHANNEL)
        return found if found != AXIS_0 else CHANNEL if axis == 0 else TENSOR

    def asymmetric(self, op: str, scheme: Scheme) -> Scheme | None:
        """A symmetric scheme for the weight of an op with zero points in its place, as this backend takes them.

        For an op that it has no integer kernel for there is nothing to take.
        """
        granularity = self.zero_points.get(op, None if op in self.granularity else CHANNEL)
        if granularity is None or scheme.granularity == "block" or scheme.power_of_two:
            return None
        return replace(
            scheme,
            symmetric=False,
            granularity=TENSOR if TENSOR in (granularity, scheme.granularity) else CHANNEL,
            search="grid" if scheme.search == "auto" and not self.zero_points_pay else scheme.search,
        )

    def why_not(self, unit: Unit) -> str | None:
        """The first fact that the unit misses, as a sentence; None if it runs as an integer kernel."""
        if unit.op not in self.granularity:
            return f"{self.name} has no integer kernel for {unit.op}"
        if self.activations is not None:
            for what, kind in (("x", unit.x_type), ("y", unit.y_type)):
                if kind not in self.activations and not (
                    what == "y" and self.float_outputs and unit.output_stays_float
                ):
                    return f"{self.name} takes {' or '.join(self.activations)} activations, {what} is {kind}"
        return next((fact.reason(unit) for fact in self.facts if not fact.holds(unit)), None)


def float32_scales(name: str, source: str) -> Fact:
    """That a backend reads scales as float32 only."""
    return Fact(
        lambda u: all(kind == "float" for kind in u.scale_types),
        lambda u: f"{name} takes float32 scales only, they are {', '.join(map(str, u.scale_types))}",
        source,
    )


def is_power_of_two(value: float | None) -> bool:
    return value is not None and value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5


# -- onnxruntime -----------------------------------------------------------------------------------

SELECTORS = "onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc"
S8_TO_U8 = "onnxruntime/core/optimizer/qdq_transformer/qdq_s8_to_u8.cc, and measured with 1.32"
CANNOT_LOAD = (
    "onnxruntime on x86 cannot load models of opset 21 or later in which int8 Q/DQ move past a {what}, as here "
    "(it leaves output_dtype INT8 on what it makes uint8); uint8 would load (rules.uint8_activations)"
)

ONNXRUNTIME = Backend(
    "onnxruntime",
    SELECTORS,
    activations=("uint8", "int8"),
    weight_types=("int8", "uint8"),
    granularity={"Conv": CHANNEL, "Gemm": CHANNEL, "MatMul": CHANNEL},
    # Measured with 1.32 for int8 and uint8 weights and activations: all fuse, with the right numbers. But before it was
    # mended (microsoft/onnxruntime issue 28447, of May 2026), QLinearConv ran with equal zero points only.
    zero_points={"Conv": TENSOR, "Gemm": CHANNEL, "MatMul": CHANNEL},
    zero_points_pay=True,
    moves_int8=False,
    float_outputs=True,
    facts=(
        Fact(
            lambda u: u.float_type == "float",
            lambda u: f"onnxruntime has integer kernels for float32 units only, this one is {u.float_type}",
            f"{SELECTORS}, and measured with 1.32: others stay as they are, with Casts around",
        ),
        float32_scales(
            "onnxruntime", f"{SELECTORS}, and measured with 1.32: with others it fuses nothing, or fails to load"
        ),
        Fact(
            lambda u: not (u.x_type == "int8" and u.qdq_version >= 21 and u.is_reshaped),
            lambda u: CANNOT_LOAD.format(what="Reshape that it puts before the Gemm it makes of MatMul and Add"),
            S8_TO_U8,
        ),
        Fact(
            lambda u: not u.runs_as_gemm or u.x_has_zero_point,
            lambda u: "onnxruntime fuses a Gemm, and a MatMul and Add, only where x has an explicit zero point",
            SELECTORS,
        ),
        Fact(
            lambda u: not (u.runs_as_gemm and u.stays_int8 and u.w_type == "uint8"),
            lambda u: "onnxruntime fuses a Gemm of int8 inputs with int8 weights only, these are uint8",
            f"{SELECTORS}, GemmNodeGroupSelector, and measured with 1.32",
        ),
        Fact(
            lambda u: u.x_scale is not None and u.y_scale is not None,
            lambda u: "onnxruntime needs constant scales of x and y",
            SELECTORS,
        ),
        Fact(
            lambda u: all(u.redundant) or u.output_stays_float,
            lambda u: (
                "onnxruntime drops a Relu or Clip before a QuantizeLinear only where the quantized range covers it; "
                f"here it is not: {', '.join(n for n, r in zip(u.activations, u.redundant, strict=True) if not r)}"
            ),
            "onnxruntime/core/optimizer/qdq_transformer/relu_quantizelinear.cc and clip_quantizelinear.cc",
        ),
        Fact(
            lambda u: u.bias_is_constant,
            lambda u: "onnxruntime fuses a run-time bias only behind a DequantizeLinear",
            SELECTORS,
        ),
        Fact(
            lambda u: u.x_type != "int8" or u.x_is_paired or u.is_reshaped or (u.runs_as_gemm and u.stays_int8),
            lambda u: (
                "onnxruntime on x86 fuses an int8 input only where it comes from a QuantizeLinear and neither that "
                "nor its DequantizeLinear has several consumers; uint8 would fuse (rules.uint8_activations)"
            ),
            S8_TO_U8,
        ),
        Fact(
            lambda u: (
                u.y_type != "int8"
                or (u.y_is_paired or u.output_stays_float or u.is_reshaped)
                or (u.runs_as_gemm and u.stays_int8)
            ),
            lambda u: (
                "onnxruntime on x86 fuses an int8 output only where it goes to one DequantizeLinear with one consumer; "
                "uint8 would fuse (rules.uint8_activations)"
            ),
            S8_TO_U8,
        ),
    ),
)

# -- the others ------------------------------------------------------------------------------------

SAME_TYPE = Fact(
    lambda u: u.x_type == u.y_type,
    lambda u: f"x and y must have one type, they are {u.x_type} and {u.y_type}",
    "the backend's operator tables",
)
CONSTANT_BIAS = Fact(
    lambda u: u.bias_is_constant, lambda u: "the bias must be a constant", "the backend's operator tables"
)

GENERIC = Backend("generic", "the ONNX standard: DequantizeLinear and QuantizeLinear", zero_points=EVERYWHERE)

QNN_SOURCE = "Qualcomm AI Engine Direct, operator definitions of the HTP backend; onnxruntime-qnn"
QNN = Backend(
    "qnn",
    QNN_SOURCE,
    weight_types=("int8",),
    activations=("uint8", "uint16"),
    granularity={"Conv": CHANNEL, "ConvTranspose": CHANNEL, "Gemm": TENSOR, "MatMul": TENSOR},
    shares_constants=False,
    htp_guards=True,
    facts=(
        float32_scales("qnn", "onnxruntime-qnn, qnn_model_wrapper.cc: UnpackScales"),
        SAME_TYPE,
        CONSTANT_BIAS,
        Fact(
            lambda u: u.op != "Gemm" or u.bias_shape is None or bias_is_row(u.bias_shape),
            lambda u: f"qnn takes a Gemm's bias of shape [M] or [1, M], it is {list(u.bias_shape or ())}",
            QNN_SOURCE,
        ),
    ),
)


def bias_is_row(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)


TENSORRT = Backend(
    "tensorrt",
    "NVIDIA TensorRT developer guide, working with quantized types",
    weight_types=("int8",),
    activations=("int8",),
    granularity={"Conv": CHANNEL, "ConvTranspose": TENSOR, "Gemm": CHANNEL, "MatMul": CHANNEL},
    bias="float",
    facts=(
        Fact(
            lambda u: not u.bias_is_quantized,
            lambda u: "tensorrt takes float biases only, this one is quantized",
            "NVIDIA TensorRT developer guide, explicit quantization",
        ),
        Fact(
            lambda u: u.x_zero_point == 0 and u.y_zero_point == 0,
            lambda u: f"tensorrt takes zero points of 0 only, they are {u.x_zero_point} and {u.y_zero_point}",
            "NVIDIA TensorRT developer guide, explicit quantization",
        ),
    ),
)

OPENVINO = Backend(
    "openvino",
    "OpenVINO, low precision transformations",
    weight_types=("int8",),
    activations=("uint8", "int8"),
)

VITIS_SOURCE = "AMD Vitis AI / Quark, XINT8 configuration"
VITIS_AI = Backend(
    "vitis-ai",
    VITIS_SOURCE,
    weight_types=("int8",),
    activations=("int8", "uint8"),
    granularity=dict.fromkeys(EVERYWHERE, TENSOR),
    bias="int8",
    shares_constants=False,
    power_of_two=True,
    facts=(
        Fact(
            lambda u: is_power_of_two(u.x_scale) and is_power_of_two(u.y_scale),
            lambda u: f"vitis-ai takes power-of-two scales only, those of x and y are {u.x_scale} and {u.y_scale}",
            VITIS_SOURCE,
        ),
        CONSTANT_BIAS,
    ),
)

NNAPI = Backend(
    "nnapi",
    "Android NNAPI, operand and operation definitions",
    weight_types=("int8",),
    activations=("uint8",),
    granularity={"Conv": CHANNEL, "ConvTranspose": TENSOR, "Gemm": TENSOR, "MatMul": TENSOR},
    facts=(
        float32_scales("nnapi", "onnxruntime/core/providers/nnapi: GetQuantizationScaleAndZeroPoint"),
        CONSTANT_BIAS,
    ),
)

XNNPACK = Backend(
    "xnnpack",
    "XNNPACK, subgraph operator checks",
    weight_types=("int8",),
    activations=("int8",),
    granularity={"Conv": CHANNEL, "ConvTranspose": TENSOR, "Gemm": AXIS_0, "MatMul": TENSOR},
    facts=(float32_scales("xnnpack", "onnxruntime/core/providers/xnnpack: ParseQuantParamForOp"), CONSTANT_BIAS),
)

TFLITE = Backend(
    "tflite",
    "LiteRT 8-bit quantization specification",
    weight_types=("int8",),
    activations=("int8",),
    granularity={"Conv": CHANNEL, "ConvTranspose": TENSOR, "Gemm": AXIS_0, "MatMul": TENSOR},
    facts=(CONSTANT_BIAS,),
)

BACKENDS = {one.name: one for one in (GENERIC, ONNXRUNTIME, QNN, TENSORRT, OPENVINO, VITIS_AI, NNAPI, XNNPACK, TFLITE)}
