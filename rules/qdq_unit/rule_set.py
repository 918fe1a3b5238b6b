"""`WeightBias`: the options and the rules, each rule one line of pattern to pattern and one of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewriter import Decline, Match, NoMatch, RuleSet, rule
from rules.backends import BACKENDS
from rules.qdq_unit import patterns as p
from rules.qdq_unit.complete import Factors, Returned, complete_bias, complete_unit, folded_scale
from rules.qdq_unit.onnxruntime import ort_bias_only, ort_weight_and_bias
from rules.qdq_unit.unit import describe

SCHEMES = ("symmetric", "onnxruntime")
OPSETS = (10, None)  # QuantizeLinear came with opset 10
NEW_DQ = {"x": ("w_dq", "b_dq")}
GEMM_BIAS: list[Any] = [p.gemm_float_bias, p.gemm_quantized_bias]


def own(rules: Any) -> bool:
    return bool(rules.scheme != "onnxruntime")


def ort(rules: Any) -> bool:
    return bool(rules.scheme == "onnxruntime")


@dataclass(frozen=True)
class WeightBias(RuleSet):
    """DQ -> Conv/ConvTranspose/Gemm/MatMul(float W, float B) -> Q becomes a full QDQ unit.

    Args:
        backend: "generic" completes every unit of that form; a named backend (`rules.backends`) also declines, with
            the reason, what would not become an integer kernel there.
        scheme: "symmetric" is int8 per channel with an int32 bias at float32(x_scale * w_scale);
            "onnxruntime" gives the very numbers that ONNX Runtime's WeightBiasQuantization produces, for exactly the
            nodes that it takes.

    Raises ValueError for an unknown backend or scheme.
    """

    backend: str = "generic"
    scheme: str = "symmetric"

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"unknown backend {self.backend!r}; there are {', '.join(BACKENDS)}")
        if self.scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {self.scheme!r}; there are {', '.join(SCHEMES)}")

    def require(self, m: Match, core: str) -> None:
        """Decline what the backend would not run as an integer kernel."""
        reason = BACKENDS[self.backend].why_not(describe(m, core))
        if reason is not None:
            raise Decline(reason)

    # -- float weight ---------------------------------------------------------------------------------------------------

    @rule(p.conv_float_weight, p.conv_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def conv(self, m: Match) -> Returned:
        """Conv and ConvTranspose: the weight, and a constant bias."""
        returned = complete_unit(m, "conv")
        self.require(m, "conv")
        return returned

    @rule(p.gemm_float_weight, p.gemm_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def gemm(self, m: Match) -> Returned:
        """Gemm: the weight with alpha, and a constant bias with beta, folded in."""
        returned = complete_unit(m, "gemm", Factors.of(m))
        self.require(m, "gemm")
        return returned | folded(m)

    @rule(p.matmul_float_weight, p.matmul_quantized, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def matmul(self, m: Match) -> Returned:
        """MatMul: the weight."""
        returned = complete_unit(m, "matmul", bias=False)
        self.require(m, "matmul")
        return returned

    @rule(p.matmul_add_float_weight, p.matmul_add_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def matmul_add(self, m: Match) -> Returned:
        """MatMul with a constant Add: the weight, and the constant as bias; the Add stays."""
        returned = complete_unit(m, "matmul")
        self.require(m, "matmul")
        return returned

    # -- float weight, run-time bias ------------------------------------------------------------------------------------

    @rule(p.conv_runtime_bias, p.conv_quantized_weight, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def conv_weight(self, m: Match) -> Returned:
        """Conv and ConvTranspose whose bias is known only at run time: the weight alone."""
        returned = complete_unit(m, "conv", bias=False)
        self.require(m, "conv")
        return returned

    @rule(p.gemm_runtime_bias, p.gemm_quantized_weight, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def gemm_weight(self, m: Match) -> Returned:
        """Gemm whose bias is known only at run time: the weight alone, with alpha folded in."""
        returned = complete_unit(m, "gemm", Factors(float(m.attribute("alpha"))), bias=False)
        self.require(m, "gemm")
        return returned | {name: one for name, one in folded(m).items() if name == "alpha"}

    # -- quantized weight -----------------------------------------------------------------------------------------------

    @rule([p.conv_float_bias, p.conv_quantized_bias], p.conv_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=own)
    def conv_bias(self, m: Match) -> Returned:
        """Conv and ConvTranspose whose weight is quantized: the bias."""
        returned = complete_bias(m, "conv")
        self.require(m, "conv")
        return returned

    @rule(GEMM_BIAS, p.gemm_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=own)
    def gemm_bias(self, m: Match) -> Returned:
        """Gemm whose weight is quantized: the bias."""
        if float(m.attribute("alpha")) != 1:
            raise NoMatch
        returned = complete_bias(m, "gemm", Factors.of(m))
        self.require(m, "gemm")
        return returned | folded(m)

    @rule(GEMM_BIAS, p.gemm_with_bias_and_alpha, inherit={"x": "b_dq", "w": "w_dq"}, opset=OPSETS, enabled=own)
    def gemm_bias_alpha(self, m: Match) -> Returned:
        """Gemm whose weight is quantized and whose alpha is not 1: the bias, with alpha folded into the weight's scale."""
        if float(m.attribute("alpha")) == 1:
            raise NoMatch
        returned = complete_bias(m, "gemm", Factors.of(m))
        self.require(m, "gemm")
        return returned | folded(m) | {"w_new_scale": folded_scale(m)}

    @rule(
        [p.matmul_add_float_bias, p.matmul_add_quantized_bias],
        p.matmul_add_with_bias,
        inherit={"x": "b_dq"},
        opset=OPSETS,
        enabled=own,
    )
    def matmul_add_bias(self, m: Match) -> Returned:
        """MatMul whose weight is quantized, with a constant Add: the constant as bias."""
        returned = complete_bias(m, "matmul")
        self.require(m, "matmul")
        return returned

    # -- ONNX Runtime's own numbers -------------------------------------------------------------------------------------

    @rule(p.ort_float_weight, p.ort_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=ort)
    def ort_weight(self, m: Match) -> Returned:
        """What WeightBiasQuantization does to a float weight and its bias."""
        return ort_weight_and_bias(m)

    @rule(p.ort_quantized_weight, p.ort_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=ort)
    def ort_bias(self, m: Match) -> Returned:
        """What WeightBiasQuantization does to the float bias of a quantized weight."""
        return ort_bias_only(m)


def folded(m: Match) -> Returned:
    """The factors of a Gemm, once they are folded in: 1 where they were something else."""
    return {name: 1.0 for name in ("alpha", "beta") if float(m.attribute(name)) != 1.0}
