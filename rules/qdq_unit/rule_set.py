"""`WeightBias`: the options and the rules, each rule one line of pattern to pattern and one of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewriter import Decline, Match, NoMatch, RuleSet, rule
from rules import quantization as qm
from rules.backends import BACKENDS, Backend
from rules.qdq_unit import patterns as p
from rules.qdq_unit import weight_only as alone
from rules.qdq_unit.complete import Factors, Returned, complete_bias, complete_unit, folded_scale
from rules.qdq_unit.onnxruntime import ort_bias_only, ort_weight_and_bias
from rules.qdq_unit.unit import describe

SCHEMES = ("symmetric", "onnxruntime")
OPSETS = (10, None)  # QuantizeLinear came with opset 10
NEW_DQ = {"x": ("w_dq", "b_dq")}
NO_FACTORS = Factors()
GEMM_BIAS: list[Any] = [p.gemm_float_bias, p.gemm_quantized_bias]


def own(rules: Any) -> bool:
    """Weight and bias, in numbers of our own."""
    wanted = rules.bias and rules.granularity != "block" and rules.target.bias != "float"
    return bool(rules.scheme != "onnxruntime" and wanted)


def weight_alone(rules: Any) -> bool:
    """The bias stays: it is not wanted, the backend takes it as float, or it has no scale (a weight in blocks)."""
    return bool(rules.scheme != "onnxruntime" and not own(rules))


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
            nodes that it takes; the options below are then its own.
        weight_type: int8, uint8, int4, uint4 or int16. The last three need opset 21.
        symmetric: whether the zero point is that of a range which is its own negative.
        granularity: one scale per "tensor", output "channel", or "block" of `block_size` weights along the axis that is
            summed over (opset 21; the bias then stays float).
        reduce_range: 7-bit weights, for integer kernels without VNNI, which saturate with 8.
        bias: whether biases are quantized too.
        scale_search: "auto" and "grid" take the grid that weights lie on already, else the range; "minmax" the range;
            "mse" the least squared error.
        rounding: "balanced" lets the errors of a channel cancel, within the two neighbours of each weight; "nearest".

    Raises ValueError for an unknown backend, scheme or option, and for what does not go together.
    """

    backend: str = "generic"
    scheme: str = "symmetric"
    weight_type: str = "int8"
    symmetric: bool = True
    granularity: str = "channel"
    block_size: int = 0
    reduce_range: bool = False
    bias: bool = True
    scale_search: str = "auto"
    rounding: str = "balanced"

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"unknown backend {self.backend!r}; there are {', '.join(BACKENDS)}")
        if self.scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {self.scheme!r}; there are {', '.join(SCHEMES)}")
        asked = self.weights
        if self.scheme == "onnxruntime" and not (self.bias and asked in (qm.Scheme(), qm.Scheme(rounding="nearest"))):
            raise ValueError("scheme 'onnxruntime' has numbers of its own: it goes with no other option of the weights")

    @property
    def weights(self) -> qm.Scheme:
        """The options of the weights. Raises ValueError for what is unknown or does not go together."""
        return qm.Scheme(
            weight_type=self.weight_type,
            symmetric=self.symmetric,
            granularity=self.granularity,
            block_size=self.block_size,
            reduce_range=self.reduce_range,
            search=self.scale_search,
            rounding=self.rounding,
        )

    @property
    def target(self) -> Backend:
        """The backend's facts."""
        return BACKENDS[self.backend]

    def require(self, m: Match, core: str) -> None:
        """Decline what the backend would not run as an integer kernel."""
        reason = self.target.why_not(describe(m, core))
        if reason is not None:
            raise Decline(reason)

    # -- float weight ------------------------------------------------------------------------------

    @rule(p.conv_float_weight, p.conv_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def conv(self, m: Match) -> Returned:
        """Conv and ConvTranspose: the weight, and a constant bias."""
        returned = complete_unit(m, "conv", scheme=self.weights, backend=self.target)
        self.require(m, "conv")
        return returned

    @rule(p.gemm_float_weight, p.gemm_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def gemm(self, m: Match) -> Returned:
        """Gemm: the weight with alpha, and a constant bias with beta, folded in."""
        returned = complete_unit(m, "gemm", Factors.of(m), scheme=self.weights, backend=self.target)
        self.require(m, "gemm")
        return returned | folded(m)

    @rule(p.matmul_float_weight, p.matmul_quantized, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def matmul(self, m: Match) -> Returned:
        """MatMul: the weight."""
        returned = complete_unit(m, "matmul", bias=False, scheme=self.weights, backend=self.target)
        self.require(m, "matmul")
        return returned

    @rule(p.matmul_add_float_weight, p.matmul_add_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def matmul_add(self, m: Match) -> Returned:
        """MatMul with a constant Add: the weight, and the constant as bias; the Add stays."""
        returned = complete_unit(m, "matmul", scheme=self.weights, backend=self.target)
        self.require(m, "matmul")
        return returned

    # -- float weight, run-time bias ---------------------------------------------------------------

    @rule(p.conv_runtime_bias, p.conv_quantized_weight, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def conv_weight(self, m: Match) -> Returned:
        """Conv and ConvTranspose whose bias is known only at run time: the weight alone."""
        returned = complete_unit(m, "conv", bias=False, scheme=self.weights, backend=self.target)
        self.require(m, "conv")
        return returned

    @rule(p.gemm_runtime_bias, p.gemm_quantized_weight, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def gemm_weight(self, m: Match) -> Returned:
        """Gemm whose bias is known only at run time: the weight alone, with alpha folded in."""
        returned = complete_unit(
            m, "gemm", Factors(float(m.attribute("alpha"))), bias=False, scheme=self.weights, backend=self.target
        )
        self.require(m, "gemm")
        return returned | {name: one for name, one in folded(m).items() if name == "alpha"}

    # -- the weight alone --------------------------------------------------------------------------

    @rule(alone.conv_any_bias, alone.conv_weight_quantized, inherit={"x": "w_dq"}, opset=OPSETS, enabled=weight_alone)
    def conv_alone(self, m: Match) -> Returned:
        """Conv and ConvTranspose with bias=False, or in blocks."""
        return self.alone(m, "conv")

    @rule(alone.gemm_any_bias, alone.gemm_weight_quantized, inherit={"x": "w_dq"}, opset=OPSETS, enabled=weight_alone)
    def gemm_alone(self, m: Match) -> Returned:
        """Gemm with bias=False, or in blocks; alpha folded in."""
        returned = self.alone(m, "gemm", Factors(float(m.attribute("alpha"))))
        return returned | {"alpha": 1.0 if float(m.attribute("alpha")) != 1 else None}

    @rule(
        alone.matmul_any_bias, alone.matmul_weight_quantized, inherit={"x": "w_dq"}, opset=OPSETS, enabled=weight_alone
    )
    def matmul_alone(self, m: Match) -> Returned:
        """MatMul with bias=False, or in blocks."""
        return self.alone(m, "matmul")

    def alone(self, m: Match, core: str, factors: Factors = NO_FACTORS) -> Returned:
        returned = complete_unit(m, core, factors, bias=False, scheme=self.weights, backend=self.target)
        self.require(m, core)
        return returned | {"block_size": self.block_size or None}

    # -- quantized weight --------------------------------------------------------------------------

    @rule(
        [p.conv_float_bias, p.conv_quantized_bias], p.conv_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=own
    )
    def conv_bias(self, m: Match) -> Returned:
        """Conv and ConvTranspose whose weight is quantized: the bias."""
        returned = complete_bias(m, "conv", backend=self.target)
        self.require(m, "conv")
        return returned

    @rule(GEMM_BIAS, p.gemm_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=own)
    def gemm_bias(self, m: Match) -> Returned:
        """Gemm whose weight is quantized: the bias."""
        if float(m.attribute("alpha")) != 1:
            raise NoMatch
        returned = complete_bias(m, "gemm", Factors.of(m), self.target)
        self.require(m, "gemm")
        return returned | folded(m)

    @rule(GEMM_BIAS, p.gemm_with_bias_and_alpha, inherit={"x": "b_dq", "w": "w_dq"}, opset=OPSETS, enabled=own)
    def gemm_bias_alpha(self, m: Match) -> Returned:
        """Gemm whose weight is quantized and whose alpha is not 1: the bias, with alpha folded into the weight's
        scale."""
        if float(m.attribute("alpha")) == 1:
            raise NoMatch
        returned = complete_bias(m, "gemm", Factors.of(m), self.target)
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
        returned = complete_bias(m, "matmul", backend=self.target)
        self.require(m, "matmul")
        return returned

    # -- ONNX Runtime's own numbers ----------------------------------------------------------------

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
