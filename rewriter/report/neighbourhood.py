"""Which nodes stand around a rewrite, in the model before it and in the one after.

Shown are the nodes that it touched, and those one step from them; what is shown in one of the two models and is still
(or already) there in the other is shown in both, so that the two pictures can be compared. Nodes go by the names that
reports give them: their own, else that of their first output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import onnx
import onnx_ir as ir

from rewriter.errors import ModelError
from rewriter.report import Rewrite

MOST_NODES = 24
MOST_READERS = 4


@dataclass
class Around:
    """Nodes to be drawn. role: of each node's label, "removed", "changed" or "added"; a neighbour has none. left_out:
    how many are not drawn because the picture would be too large."""

    nodes: list[ir.Node] = field(default_factory=list)
    role: dict[str, str] = field(default_factory=dict)
    left_out: int = 0


class Drawable:
    """A model, its nodes found by label.

    Raises ModelError where it cannot be read.
    """

    def __init__(self, model: Any) -> None:
        try:
            self.model = opened(model)
            self.place = {id(node): k for k, node in enumerate(_nodes(self.model))}
            self.by_label: dict[str, list[ir.Node]] = {}
            for node in _nodes(self.model):
                self.by_label.setdefault(label(node), []).append(node)
        except TypeError:
            raise
        except Exception as problem:
            raise ModelError(f"the model cannot be read for the report: {problem}") from problem

    def op_types(self) -> dict[str, int]:
        """How many nodes of each type it has, functions included."""
        counts: dict[str, int] = {}
        for node in _nodes(self.model):
            counts[op_type(node)] = counts.get(op_type(node), 0) + 1
        return counts

    def constant_bytes(self) -> int:
        """Of all initializers and of the tensors of Constant nodes, those of subgraphs and functions included."""
        graphs = [self.model.graph, *self.model.graph.subgraphs()]
        held = [value.const_value for graph in graphs for value in graph.initializers.values()]
        nodes = (node for node in _nodes(self.model) if op_type(node) == "Constant")
        values = (node.attributes.get("value") for node in nodes)
        held += [one.as_tensor() for one in values if one is not None and one.type == ir.AttributeType.TENSOR]
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def named(self, labels: Iterable[str]) -> list[ir.Node]:
        return [node for one in labels for node in self.by_label.get(one, ())]

    def shown(self, touched: list[ir.Node], besides: list[ir.Node], role: dict[str, str]) -> Around:
        """Touched nodes first, then the others, as many as a picture holds, in the order of the model."""
        chosen = list(dict.fromkeys([*touched, *besides]))
        kept = sorted(chosen[:MOST_NODES], key=lambda node: self.place[id(node)])
        return Around(kept, role, len({*chosen, *_one_step(touched, None)}) - len(kept))


def around(rewrite: Rewrite, before: Drawable | None, after: Drawable) -> tuple[Around | None, Around, int]:
    """The neighbourhood before (None without that model) and after, and how many touched nodes are in neither."""
    labels = dict.fromkeys((*rewrite.removed, *rewrite.changed, *rewrite.added))
    touched = after.named((*rewrite.changed, *rewrite.added))
    context = _one_step(touched)
    role_after = dict.fromkeys(rewrite.changed, "changed") | dict.fromkeys(rewrite.added, "added")
    if before is None:
        return None, after.shown(touched, context, role_after), sum(one not in after.by_label for one in labels)
    touched_before = before.named((*rewrite.removed, *rewrite.changed))
    context_before = _one_step(touched_before)
    role_before = dict.fromkeys(rewrite.removed, "removed") | dict.fromkeys(rewrite.changed, "changed")
    old = before.shown(touched_before, [*context_before, *before.named(map(label, context))], role_before)
    new = after.shown(touched, [*context, *after.named(map(label, context_before))], role_after)
    return old, new, sum(one not in before.by_label and one not in after.by_label for one in labels)


def label(node: ir.Node) -> str:
    """How reports call a node."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def op_type(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def opened(model: Any) -> ir.Model:
    """An `onnx_ir.Model` of what `rewriter.run` takes; tensors of files are not read."""
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return ir.from_proto(model)
    if isinstance(model, str | PathLike):
        return ir.load(model)
    raise TypeError(f"expected an onnx.ModelProto, an onnx_ir.Model or a path, got {type(model).__name__}")


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _one_step(nodes: list[ir.Node], most: int | None = MOST_READERS) -> list[ir.Node]:
    """The producers of what they read, and the first readers of each value that they give."""
    found: dict[ir.Node, None] = {}
    for node in nodes:
        producers = (value.producer() for value in node.inputs if value is not None)
        readers = (use.node for value in node.outputs for use in list(value.uses())[:most])
        found.update(dict.fromkeys(one for one in (*producers, *readers) if one is not None))
    return list(found)
