"""Transpose after Transpose: one with the product of both, or none at all.

Shows: attribute parameters that bind (None where the node has none), a callback that computes an attribute,
a target that returns its own input, `NoMatch`, and a rule set of several rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxscript import opset13 as op
from onnxscript import script

from rewriter import Match, NoMatch, RuleSet, rule
from rewriter.pattern import Tensor


@script(default_opset=op)
def pair(x: Tensor, first: list[int], second: list[int]) -> Tensor:
    return op.Transpose(op.Transpose(x, perm=first), perm=second)


@script(default_opset=op)
def single(x: Tensor, perm: list[int]) -> Tensor:
    return op.Transpose(x, perm=perm)


@script(default_opset=op)
def nothing(x: Tensor) -> Tensor:
    return x


def product(m: Match) -> list[int]:
    """The permutation that both together make. A Transpose without perm reverses the axes."""
    first, second = m.attribute("first"), m.attribute("second")
    known = first or second
    if known is None:
        return []  # reversed twice: the identity, whatever the rank
    reverse = list(reversed(range(len(known))))
    return [(first or reverse)[axis] for axis in second or reverse]


@dataclass(frozen=True)
class Transposes(RuleSet):
    @rule(pair, nothing)
    def cancel(self, m: Match) -> None:
        perm = product(m)
        if perm != sorted(perm):
            raise NoMatch

    @rule(pair, single)
    def merge(self, m: Match) -> Mapping[str, object]:
        perm = product(m)
        if perm == sorted(perm):
            raise NoMatch
        return {"perm": perm}

    @rule(single, nothing)
    def drop(self, m: Match) -> None:
        perm = m.attribute("perm")
        if perm is None or perm != sorted(perm):
            raise NoMatch


transposes = Transposes()
