"""`Uint8Activations`: which places are asked whether they are int8 activations.

A set of codes is changed by one edit, and no fixed target can say over how many nodes it spreads, so these rules have
none: they follow the codes (`codes`) and edit through `m.edit` (`shift`). Each QuantizeLinear with int8 codes is a
place to start from, and each DequantizeLinear whose codes no QuantizeLinear of its graph makes.

Weights stay int8, as they should. A constant operand beside an activation (the 3 in x + 3) is another matter:
kernels for Add, Mul, Concat and Where take one type for all operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir
from onnxscript import opset21 as op
from onnxscript import script

from rewriter import Decline, Match, Node, NoMatch, RuleSet, Value, rule
from rewriter.pattern import Const, DType, Maybe, P, Tensor
from rules.activations.codes import DQ, Codes, Q, codes_of, find_codes, is_conversion, serves_a_unit, weight_of
from rules.activations.shift import Shift

OPSETS = (10, None)  # QuantizeLinear came with opset 10
ONE_TYPE = ("Add", "Mul", "Concat", "Where")

Optional = Annotated[Tensor, Maybe]


@script(default_opset=op)
def quantized(x: Tensor, scale: Tensor, zero_point: Optional) -> Tensor:
    return P.Op(x, scale, zero_point, types=["QuantizeLinear", "com.microsoft::QuantizeLinear"])


@script(default_opset=op)
def dequantized(codes: Tensor, scale: Tensor, zero_point: Optional) -> Tensor:
    return P.Op(codes, scale, zero_point, types=["DequantizeLinear", "com.microsoft::DequantizeLinear"])


@script(default_opset=op)
def dequantized_constant(codes: Annotated[Tensor, Const, DType("INT8")], scale: Tensor, zero_point: Optional) -> Tensor:
    return P.Op(codes, scale, zero_point, types=["DequantizeLinear", "com.microsoft::DequantizeLinear"])


@dataclass(frozen=True)
class Uint8Activations(RuleSet):
    """int8 activations become uint8, every real value exactly the same.

    On x86 ONNX Runtime fuses units with uint8 activations, and those with int8 activations only in part.

    Args:
        convert_at_borders: graph inputs and outputs (and what enters or leaves a body or a function) keep their type.
            Where codes cross such a border and something computes on them, a DequantizeLinear and a QuantizeLinear
            convert them there, exactly; if False, such codes stay int8.
    """

    confluent: ClassVar[bool] = True
    convert_at_borders: bool = True

    @rule(quantized, opset=OPSETS)
    def quantizer(self, m: Match) -> None:
        """The codes that a QuantizeLinear makes, and all that hang together with them."""
        stated, zero_point = m.root.attribute("output_dtype"), m.maybe("zero_point")
        if ir.DataType.INT8 not in (stated, None if zero_point is None else zero_point.dtype):
            raise NoMatch
        self.shift(m)

    @rule(dequantized, opset=OPSETS)
    def dequantizer(self, m: Match) -> None:
        """Codes that enter a graph and that no QuantizeLinear of it makes."""
        if (m.maybe("zero_point") or m.value("codes")).dtype != ir.DataType.INT8:
            raise NoMatch
        self.shift(m)

    @rule(dequantized_constant, opset=OPSETS)
    def constant(self, m: Match) -> None:
        """A constant operand beside uint8 activations, where kernels want one type for all operands."""
        users = m.reads(real(m.root)).users
        if not users or not all(node.op_type in ONE_TYPE and has_uint8_operand(m, node) for node in users):
            raise NoMatch
        Shift(m, Codes()).plan_constant(m.value("codes"))

    def shift(self, m: Match) -> None:
        """Plan the edit for the codes at the match's root."""
        start = codes_of(m.root)
        if start.is_constant:
            raise NoMatch  # a weight
        codes = find_codes(m, start)
        if codes.quantizers and m.root.op_type not in Q:
            raise NoMatch  # those ask for themselves
        if codes.entering or codes.leaving:
            self.check_border(m, codes)
        convolution = weight_of(m, codes)
        if convolution is not None:
            raise Decline(f"its codes are a weight of {convolution.op_type} {convolution.name!r}")
        Shift(m, codes).plan()

    def check_border(self, m: Match, codes: Codes) -> None:
        """Decline where converting at the border is not wanted, or would serve nothing."""
        if is_conversion(m, codes):
            raise NoMatch
        names = ", ".join(repr(value.name) for value in (*codes.entering, *codes.leaving))
        if not self.convert_at_borders:
            raise Decline(f"{names} enters or leaves the graph as int8; convert_at_borders=True would convert it there")
        if not serves_a_unit(m, codes):
            raise Decline(f"{names} enters or leaves the graph as int8, and no unit would gain from a conversion")


def real(node: Node) -> Value:
    """What a DequantizeLinear gives."""
    value = node.outputs[0]
    assert value is not None
    return value


def has_uint8_operand(m: Match, node: Node) -> bool:
    """Whether an operand comes from a DequantizeLinear of uint8 codes."""
    for value in node.inputs:
        maker = None if value is None else m.reads(value).producer
        if maker is None or maker.op_type not in DQ:
            continue
        held = [v for v in (maker.inputs[0], *maker.inputs[2:3]) if v is not None]
        for one in held:
            m.reads(one)  # when these change, ask again
        if held[-1].dtype == ir.DataType.UINT8:
            return True
    return False
