"""`WeightBias`: the options and the rules, each rule one line of pattern to pattern and one of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rewriter import Decline, Match, Node, NoMatch, RuleSet, rule
from rules import quantization as qm
from rules.backends import BACKENDS, GENERIC, Backend
from rules.qdq_unit import complete_patterns as done
from rules.qdq_unit import patterns as p
from rules.qdq_unit import weight_only as alone
from rules.qdq_unit.already_quantized import folded_scale
from rules.qdq_unit.complete import Factors, Returned, complete_bias, complete_unit
from rules.qdq_unit.moved import behind_moves, warn_of_int8
from rules.qdq_unit.onnxruntime import ort_bias_only, ort_weight_and_bias
from rules.qdq_unit.selection import left_out, patterns
from rules.qdq_unit.unit import describe, require_output_scale

SCHEMES = ("symmetric", "onnxruntime")
OPSETS = (10, None)  # QuantizeLinear came with opset 10
NEW_DQ = {"x": ("w_dq", "b_dq")}
NON_FUSING = ("decline", "quantize")
NO_FACTORS = Factors()
GEMM_BIAS: list[Any] = [p.gemm_float_bias, p.gemm_quantized_bias]


def own(rules: Any) -> bool:
    """Weight and bias, in numbers of our own."""
    wanted = rules.bias and rules.granularity != "block" and rules.target.bias != "float"
    return bool(rules.scheme != "onnxruntime" and wanted)


def weight_alone(rules: Any) -> bool:
    """The bias stays: it is not wanted, the backend takes it as float, or it has no scale (a weight in blocks)."""
    return bool(rules.scheme != "onnxruntime" and not own(rules))


def warns(rules: Any) -> bool:
    """The backend has models that it cannot load."""
    return bool(rules.scheme != "onnxruntime" and not rules.target.moves_int8)


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
            nodes that it takes; the options of weights below are then its own.
        weight_type: int8, uint8, int4, uint4 or int16. The last three need opset 21.
        symmetric: True for zero point 0 (the middle code of unsigned types), False for one of each scale's own. None
            takes zero points where the backend has them and they pay: with "auto", for weights that lie on such a grid
            and, where it is proven that they fuse, for skewed ones. `generic` is symmetric otherwise.
        granularity: one scale per "tensor", output "channel", or "block" of `block_size` weights along the axis that is
            summed over (opset 21; the bias then stays float).
        reduce_range: 7-bit weights, for integer kernels without VNNI, which saturate with 8.
        bias: whether biases are quantized too.
        scale_search: "grid" takes the grid that weights lie on already, else the range; "auto" does too, and with
            balanced rounding also tries scales under which the errors of a channel cancel better, ONNX Runtime's among
            them; "minmax" the range; "mse" the least squared error among some two
            dozen scales.
        rounding: "balanced" lets the errors of a channel cancel, within the two neighbours of each weight; "nearest".
        include, exclude: names or op types of nodes, with wildcards: ("Conv", "/head/*"). Of a MatMul and its Add the
            MatMul is meant. All without include; exclude goes before it. What is left out is declined.
        non_fusing: "decline" leaves a unit float that would be no integer kernel on the backend; "quantize" quantizes
            it all the same, for the size of the file, in the form that the backend takes.

    Raises ValueError for an unknown backend, scheme or option, and for what does not go together.
    """

    confluent: ClassVar[bool] = True
    backend: str = "generic"
    scheme: str = "symmetric"
    weight_type: str = "int8"
    symmetric: bool | None = None
    granularity: str = "channel"
    block_size: int = 0
    reduce_range: bool = False
    bias: bool = True
    scale_search: str = "auto"
    rounding: str = "balanced"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    non_fusing: str = "decline"

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"unknown backend {self.backend!r}; there are {', '.join(BACKENDS)}")
        if self.scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {self.scheme!r}; there are {', '.join(SCHEMES)}")
        if self.non_fusing not in NON_FUSING:
            raise ValueError(f"unknown non_fusing {self.non_fusing!r}; there are {', '.join(NON_FUSING)}")
        for option in ("reduce_range", "bias", "symmetric"):
            value = getattr(self, option)
            if not (isinstance(value, bool) or (option == "symmetric" and value is None)):
                raise ValueError(f"{option} must be True or False, not {value!r}")
        for option in ("include", "exclude"):
            object.__setattr__(self, option, patterns(option, getattr(self, option)))
        asked, target = self.weights, self.target
        if not asked.symmetric and not target.zero_points:
            raise ValueError(f"{self.backend} takes weights with zero point 0 only: leave out symmetric=False")
        if target.weight_types is not None and self.weight_type not in target.weight_types:
            raise ValueError(f"{self.backend} takes {' or '.join(target.weight_types)} weights, not {self.weight_type}")
        if target is not GENERIC and self.granularity == "block":
            raise ValueError(f"{self.backend} has no integer kernels for weights in blocks")
        if self.scheme == "onnxruntime" and not (self.bias and asked in (qm.Scheme(), qm.Scheme(rounding="nearest"))):
            raise ValueError("scheme 'onnxruntime' has numbers of its own: it goes with no other option of the weights")

    @property
    def weights(self) -> qm.Scheme:
        """The options of the weights. Raises ValueError for what is unknown or does not go together."""
        return qm.Scheme(
            weight_type=self.weight_type,
            symmetric=self.symmetric is not False,
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

    def want(self, node: Node) -> None:
        """Decline a node that is not wanted."""
        reason = left_out(node, self.include, self.exclude)
        if reason is not None:
            raise Decline(reason)

    def judge(self, m: Match, core: str) -> str | None:
        """Why a wanted unit is no integer kernel on the backend; None if it is one.

        Raises Decline for that reason unless the unit is to be quantized all the same, and where it is not wanted.
        """
        self.want(m.node(core))
        require_output_scale(m)
        if self.target is GENERIC:
            return None
        unit = describe(m, core, weight_type=self.weight_type)
        reason = self.target.why_not(unit)
        if "Add" in unit.activations and self.target.bias != "float":
            reason = f"{self.backend} takes {self.target.bias} biases, and bias=False leaves the Add in float"
        if reason is None and not self.bias and unit.has_float_bias and self.target.bias != "float":
            reason = f"{self.backend} takes {self.target.bias} biases, and bias=False leaves this one float"
        if reason is not None and self.non_fusing == "decline":
            raise Decline(reason)
        return reason

    def with_weight(self, m: Match, core: str, factors: Factors = NO_FACTORS, *, bias: bool = True) -> Returned:
        """A unit whose weight is float."""
        reason, free = self.judge(m, core), self.symmetric is None
        return complete_unit(m, core, factors, bias, self.weights, self.target, zero_points=free, reason=reason)

    def with_bias(self, m: Match, core: str, factors: Factors = NO_FACTORS) -> Returned:
        """A unit whose weight is quantized; judged only where there is something to do, since most are complete."""
        return complete_bias(m, core, factors, self.target, lambda: self.judge(m, core))

    # -- float weight ------------------------------------------------------------------------------

    @rule(p.conv_float_weight, p.conv_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def conv(self, m: Match) -> Returned:
        """Conv and ConvTranspose: the weight, and a constant bias."""
        return self.with_weight(m, "conv")

    @rule(p.gemm_float_weight, p.gemm_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def gemm(self, m: Match) -> Returned:
        """Gemm: the weight with alpha, and a constant bias with beta, folded in."""
        return self.with_weight(m, "gemm", Factors.of(m)) | folded(m)

    @rule(p.matmul_float_weight, p.matmul_quantized, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def matmul(self, m: Match) -> Returned:
        """MatMul: the weight."""
        return self.with_weight(m, "matmul", bias=False)

    @rule(p.matmul_add_float_weight, p.matmul_add_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=own)
    def matmul_add(self, m: Match) -> Returned:
        """MatMul with a constant Add: the weight, and the constant as bias; the Add stays."""
        return self.with_weight(m, "matmul")

    # -- float weight, run-time bias ---------------------------------------------------------------

    @rule(p.conv_runtime_bias, p.conv_quantized_weight, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def conv_weight(self, m: Match) -> Returned:
        """Conv and ConvTranspose whose bias is known only at run time: the weight alone."""
        return self.with_weight(m, "conv", bias=False)

    @rule(p.gemm_runtime_bias, p.gemm_quantized_weight, inherit={"x": "w_dq"}, opset=OPSETS, enabled=own)
    def gemm_weight(self, m: Match) -> Returned:
        """Gemm whose bias is known only at run time: the weight alone, with alpha folded in."""
        returned = self.with_weight(m, "gemm", Factors(float(m.attribute("alpha"))), bias=False)
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
        returned = self.with_weight(m, core, factors, bias=False)
        return returned | {"block_size": self.block_size or None}

    # -- quantized weight --------------------------------------------------------------------------

    @rule(
        [p.conv_float_bias, p.conv_quantized_bias], p.conv_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=own
    )
    def conv_bias(self, m: Match) -> Returned:
        """Conv and ConvTranspose whose weight is quantized: the bias."""
        return self.with_bias(m, "conv")

    @rule(GEMM_BIAS, p.gemm_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=own)
    def gemm_bias(self, m: Match) -> Returned:
        """Gemm whose weight is quantized: the bias."""
        if float(m.attribute("alpha")) != 1:
            raise NoMatch
        return self.with_bias(m, "gemm", Factors.of(m)) | folded(m)

    @rule(GEMM_BIAS, p.gemm_with_bias_and_alpha, inherit={"x": "b_dq", "w": "w_dq"}, opset=OPSETS, enabled=own)
    def gemm_bias_alpha(self, m: Match) -> Returned:
        """Gemm whose weight is quantized and whose alpha is not 1: the bias, with alpha folded into the weight's
        scale."""
        if float(m.attribute("alpha")) == 1:
            raise NoMatch
        returned = self.with_bias(m, "gemm", Factors.of(m))
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
        return self.with_bias(m, "matmul")

    # -- what the backend cannot load --------------------------------------------------------------

    @rule(behind_moves, opset=OPSETS, enabled=warns)
    def moved(self, m: Match) -> None:
        """Units behind an int8 DequantizeLinear that is moved: a reason, and nothing is done."""
        warn_of_int8(m)

    # -- quantized weight, computed by a QuantizeLinear ---------------------------------------------

    @rule(
        [done.complete_conv, done.complete_gemm, done.complete_matmul, done.complete_matmul_add],
        opset=OPSETS,
        enabled=own,
    )
    def codes(self, m: Match) -> None:
        """The codes that a QuantizeLinear makes of a stored float weight: they are stored in its place."""
        codes = m.value("w_q")
        if codes.producer_type not in p.Q:
            raise NoMatch
        self.judge(m, next(name for name in ("conv", "gemm", "matmul") if name in m.names))
        m.edit.set_input(m.node("w"), 0, m.edit.constant(codes.numpy(), f"{m.output('w').name}_quantized"))

    # -- ONNX Runtime's own numbers ----------------------------------------------------------------

    @rule(p.ort_float_weight, p.ort_quantized, inherit=NEW_DQ, opset=OPSETS, enabled=ort)
    def ort_weight(self, m: Match) -> Returned:
        """What WeightBiasQuantization does to a float weight and its bias."""
        returned = ort_weight_and_bias(m)
        self.want(m.root)
        return returned

    @rule(p.ort_quantized_weight, p.ort_with_bias, inherit={"x": "b_dq"}, opset=OPSETS, enabled=ort)
    def ort_bias(self, m: Match) -> Returned:
        """What WeightBiasQuantization does to the float bias of a quantized weight."""
        returned = ort_bias_only(m)
        self.want(m.root)
        return returned


def folded(m: Match) -> Returned:
    """The factors of a Gemm, once they are folded in: 1 where they were something else."""
    return {name: 1.0 for name in ("alpha", "beta") if float(m.attribute(name)) != 1.0}
