"""PatternGraph: one side of a rule as data, between the script that the author wrote and the compiler.

A graph of values and nodes. A value is a parameter, a literal, a choice between values (`P.AnyOf`) or an output of a
node; wrappers (`P.Core`, `P.OnlyUse`) are flags on the value they wrap. Names are those that the author assigned:
they tie a node of the target to the node of the source. Everything knows the line it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rewriter.pattern.markers import Marker, Maybe

AttributeValue = int | float | str | list[int] | list[float] | list[str] | np.ndarray


@dataclass(frozen=True)
class Place:
    """Where something was written, for messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False)
class PValue:
    """A value of a pattern; exactly one of its kinds: parameter, literal, choice, or output `slot` of `node`.

    A literal that was a Python number is `castable`: it takes the element type of the inputs that it shares a
    type variable with, as ONNX Script's converter has it. An array, a tensor, an `op.Constant` keeps its own.
    """

    place: Place
    name: str | None = None
    parameter: bool = False
    markers: tuple[Marker, ...] = ()
    literal: np.ndarray | None = None
    castable: bool = False
    choices: tuple[PValue, ...] = ()
    node: PNode | None = None
    slot: int = 0
    core: bool = False
    only_use: bool = False

    def has(self, marker: type[Marker]) -> bool:
        return any(isinstance(m, marker) for m in self.markers)

    @property
    def may_be_absent(self) -> bool:
        return self.has(Maybe)


@dataclass(frozen=True)
class AttributeParameter:
    """An attribute parameter of the script: it binds, in a source, or is provided, in a target."""

    name: str
    type: type
    default: AttributeValue | None = None


@dataclass(eq=False)
class PNode:
    """A node of a pattern. `types` holds op keys: `"Conv"`, or `"com.microsoft::Gelu"` outside ai.onnx.

    A `chain` stands for zero or more nodes of those types; it has one input and one output.
    """

    place: Place
    types: tuple[str, ...]
    inputs: list[PValue | None]
    outputs: list[PValue] = field(default_factory=list)
    attributes: dict[str, AttributeValue | AttributeParameter] = field(default_factory=dict)
    chain: bool = False

    @property
    def name(self) -> str | None:
        return next((v.name for v in self.outputs if v.name), None)

    @property
    def label(self) -> str:
        """How messages call this node."""
        return self.name or "/".join(self.types)


@dataclass(eq=False)
class PatternGraph:
    """One side of a rule: parameters in order, returned values in order."""

    name: str
    place: Place
    parameters: dict[str, PValue]
    attribute_parameters: dict[str, AttributeParameter]
    outputs: list[PValue]
    opsets: dict[str, int]

    def nodes(self) -> list[PNode]:
        """Every node that a returned value depends on, inputs before users; all alternatives included."""
        return list(nodes_of(self.outputs))


def nodes_of(values: list[PValue]) -> Iterator[PNode]:
    """The nodes that these values depend on, inputs before users (iterative: patterns may be deep)."""
    done: set[int] = set()
    stack: list[tuple[PValue | PNode, bool]] = [(v, False) for v in reversed(values)]
    while stack:
        item, expanded = stack.pop()
        if isinstance(item, PValue):
            if item.choices:
                stack.extend((c, False) for c in reversed(item.choices))
            elif item.node is not None and id(item.node) not in done:
                stack.append((item.node, False))
        elif expanded:
            if id(item) not in done:
                done.add(id(item))
                yield item
        elif id(item) not in done:
            stack.append((item, True))
            stack.extend((v, False) for v in reversed(item.inputs) if v is not None)
