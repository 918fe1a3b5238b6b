"""What each backend runs as an integer kernel, as data.

`generic` is the ONNX standard alone: every unit of the form is completed. A named backend adds facts; a unit that
misses one would stay float there and only lose accuracy, so it is declined with that fact's reason. Each fact carries
its source. The rules read this table; nothing else knows a backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rules.qdq_unit.unit import Unit

EIGHT_BITS = ("int8", "uint8")


@dataclass(frozen=True)
class Fact:
    """Something that a backend needs of a unit."""

    holds: Callable[[Unit], bool]
    reason: Callable[[Unit], str]
    source: str


@dataclass(frozen=True)
class Backend:
    """A backend: what it needs of a unit, beyond the form that the ONNX standard describes."""

    name: str
    facts: tuple[Fact, ...]

    def why_not(self, unit: Unit) -> str | None:
        """The first fact that the unit misses, as a sentence; None if it runs as an integer kernel."""
        return next((fact.reason(unit) for fact in self.facts if not fact.holds(unit)), None)


QDQ_SELECTORS = "onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc"
S8_TO_U8 = "onnxruntime/core/optimizer/qdq_transformer/qdq_s8_to_u8.cc"

GENERIC = Backend("generic", ())

ONNXRUNTIME = Backend(
    "onnxruntime",
    (
        Fact(
            lambda u: u.op != "ConvTranspose",
            lambda u: "onnxruntime has no integer kernel for ConvTranspose",
            QDQ_SELECTORS,
        ),
        Fact(
            lambda u: u.x_type in EIGHT_BITS,
            lambda u: f"onnxruntime fuses 8-bit activations only, x is {u.x_type}",
            QDQ_SELECTORS,
        ),
        Fact(
            lambda u: u.y_type in EIGHT_BITS or u.output_stays_float,
            lambda u: f"onnxruntime fuses 8-bit activations only, y is {u.y_type}",
            QDQ_SELECTORS,
        ),
        Fact(
            lambda u: u.op != "Gemm" or u.x_has_zero_point,
            lambda u: "onnxruntime fuses a Gemm only where x has an explicit zero point",
            QDQ_SELECTORS,
        ),
        Fact(
            lambda u: u.x_scale_is_constant and u.y_scale_is_constant,
            lambda u: "onnxruntime needs constant scales of x and y",
            QDQ_SELECTORS,
        ),
        Fact(
            lambda u: all(u.redundant) or u.output_stays_float,
            lambda u: (
                "onnxruntime drops a Relu or Clip before a QuantizeLinear only where the quantized range makes it redundant; "
                f"here it is not: {', '.join(n for n, r in zip(u.activations, u.redundant, strict=True) if not r)}"
            ),
            "onnxruntime/core/optimizer/qdq_transformer/relu_quantizelinear.cc and clip_quantizelinear.cc",
        ),
        Fact(
            lambda u: u.bias_is_constant,
            lambda u: "onnxruntime fuses a run-time bias only behind a DequantizeLinear",
            QDQ_SELECTORS,
        ),
        Fact(
            lambda u: u.x_type != "int8" or u.x_is_paired or (u.runs_as_gemm and u.stays_int8),
            lambda u: (
                "onnxruntime on x86 fuses an int8 input only where it comes from a QuantizeLinear and neither that nor its "
                "DequantizeLinear has several consumers; uint8 would fuse"
            ),
            S8_TO_U8,
        ),
        Fact(
            lambda u: u.y_type != "int8" or u.y_is_paired or u.output_stays_float or (u.runs_as_gemm and u.stays_int8),
            lambda u: (
                "onnxruntime on x86 fuses an int8 output only where it goes to one DequantizeLinear with one consumer; "
                "uint8 would fuse"
            ),
            S8_TO_U8,
        ),
    ),
)

BACKENDS = {backend.name: backend for backend in (GENERIC, ONNXRUNTIME)}
