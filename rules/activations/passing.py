"""Which ops pass codes along: what they do to codes that are all 128 larger is what they did, 128 larger.

That holds where an op only moves elements, and where it picks the largest or smallest. It does not hold where an op
puts in elements of its own (Trilu's zeros) or computes (Relu, a linear Resize). All of these take uint8 wherever they
take int8. Pad is the one that has an element of its own and says which: that one is shifted too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rewriter import Node, Value


def always(node: Node) -> bool:
    return True


def picks(node: Node) -> bool:
    """A scatter that adds or multiplies computes; one that overwrites, or keeps the largest or smallest, does not."""
    return node.attribute("reduction") in (None, "none", "max", "min")


def is_nearest(node: Node) -> bool:
    """Resize without interpolation, and without the value that it extrapolates with."""
    cropped = node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    return node.attribute("mode") == "nearest" and not cropped


def has_known_mode(node: Node) -> bool:
    """Pad whose mode is not left to a function's caller; its elements are an input (from opset 11 on)."""
    return isinstance(node.attribute("mode"), str) and node.attribute("value") is None


@dataclass(frozen=True)
class Passing:
    """Which inputs of an op are codes, None for all; `when` says whether this node passes them unchanged."""

    slots: tuple[int, ...] | None = (0,)
    when: Callable[[Node], bool] = always


DATA = Passing()
CHOICE = Passing((1, 2))
SCATTER = Passing((0, 2), picks)
PASSING = {
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"), DATA),
    **dict.fromkeys(("Slice", "Split", "Gather", "GatherElements", "GatherND", "Compress", "ReverseSequence"), DATA),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "MaxPool", "ReduceMax", "ReduceMin"), DATA),
    **dict.fromkeys(("Resize", "Upsample"), Passing((0,), is_nearest)),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), SCATTER),
    **dict.fromkeys(("Concat", "Max", "Min"), Passing(None)),
    "Where": CHOICE,
    "Pad": Passing((0, 2), has_known_mode),
}
"""What passes codes along, by op type."""

BLIND = ("Shape", "Size")
"""What reads codes without looking at them."""

BORDERS = ("If", "Loop", "Scan")
"""What takes codes into graphs of its own and returns others."""


def code_slots(node: Node) -> tuple[int, ...]:
    """The inputs through which a node takes codes that it passes along; none where it does not."""
    passing = PASSING.get(node.op_type)
    if passing is None or not passing.when(node):
        return ()
    return tuple(range(len(node.inputs))) if passing.slots is None else passing.slots


def code_outputs(node: Node) -> list[Value]:
    """The outputs of a passing node that are codes (the second of a MaxPool is not)."""
    outputs = node.outputs if node.op_type == "Split" else node.outputs[:1]
    return [value for value in outputs if value is not None]


def lacks_padding(node: Node) -> bool:
    """A Pad that puts in zeros without naming them."""
    stated = node.inputs[2] if len(node.inputs) > 2 else None
    return node.op_type == "Pad" and node.attribute("mode") == "constant" and stated is None
