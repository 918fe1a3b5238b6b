"""The decision tree: the ordered questions of all variants, merged where they begin alike.

There is one tree per op type that anchors anything. A node's edges are tried one after the other, since every match
is wanted, not the first; equal questions stand on one edge, so what rules share is asked once. An edge remembers
which variants are past their core there: for them a "no" is a decline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rewriter.compiler.lower import Lowered
from rewriter.compiler.questions import Step


@dataclass(eq=False)
class Edge:
    step: Step
    target: TreeNode
    declines: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TreeNode:
    edges: dict[Step, Edge] = field(default_factory=dict)
    leaves: list[int] = field(default_factory=list)


def build_trees(lowered: Iterable[Lowered]) -> dict[str, TreeNode]:
    """The tree of each anchor op; leaves and declines hold positions in `lowered`."""
    roots: dict[str, TreeNode] = {}
    for number, one in enumerate(lowered):
        for op in one.anchor.types:
            node = roots.setdefault(op, TreeNode())
            for step, late in one.steps:
                edge = node.edges.get(step)
                if edge is None:
                    edge = node.edges[step] = Edge(step, TreeNode())
                if late:
                    edge.declines.append(number)
                node = edge.target
            node.leaves.append(number)
    return roots
