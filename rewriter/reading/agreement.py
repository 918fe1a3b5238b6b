"""A check of the reader itself: the graph has the ops that onnxscript's converter made of the function.

The two read the same text independently, so a difference is a mistake in one of them, and a rule that means
one thing here and another when it is run must not pass. Only op types are compared, and only where that is
cheap: the converter's own insertions (Constant, CastLike, Identity), and nodes that it makes of constants
which we compute, are left out, and a function that calls others is not compared at all.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
from onnxscript import OnnxFunction

from rewriter.pattern.graph import PatternGraph, PNode
from rewriter.pattern.ops import DOMAIN
from rewriter.reading.source import Source
from rewriter.schemas import op_key

INSERTED = ("Constant", "CastLike", "Identity")


def check_agreement(source: Source, graph: PatternGraph) -> None:
    """Raise an error if the graph and the converter's function have different ops."""
    theirs = _their_ops(source.function.function_ir)
    if theirs is None:
        return
    ours = _our_ops(graph)
    if ours != theirs:
        more = sorted((ours - theirs).elements()), sorted((theirs - ours).elements())
        raise source.error(
            source.tree,
            f"it was read with {more[0]} where onnxscript has {more[1]}; "
            "please report this, and write the expression in another way",
        )


def _our_ops(graph: PatternGraph) -> Counter[str]:
    found: Counter[str] = Counter()
    constant: set[int] = set()
    for node in graph.nodes():
        if not node.chain and all(v is None or v.literal is not None or id(v.node) in constant for v in node.inputs):
            constant.add(id(node))
        else:
            found[_ours(node)] += 1
    return _without_inserted(found)


def _their_ops(function: ir.Function) -> Counter[str] | None:
    found: Counter[str] = Counter()
    constant: set[ir.Value | None] = {None}
    for node in function:
        if isinstance(node.meta.get("callee"), OnnxFunction):
            return None
        pattern = node.domain == DOMAIN
        if pattern and node.op_type in ("Core", "OnlyUse", "AnyOf"):
            if node.op_type != "AnyOf" and constant.issuperset(node.inputs):
                constant.update(node.outputs)
            continue
        types = node.attributes.get("types") or node.attributes.get("ops") if pattern else None
        if node.op_type != "Chain" and constant.issuperset(node.inputs):
            constant.update(node.outputs)
        elif types is not None:
            chain = "*" if node.op_type == "Chain" else ""
            found["/".join(t.removeprefix("ai.onnx::") for t in types.as_strings()) + chain] += 1
        else:
            found[op_key(node.domain, node.op_type)] += 1
    return _without_inserted(found)


def _ours(node: PNode) -> str:
    return "/".join(node.types) + ("*" if node.chain else "")


def _without_inserted(found: Counter[str]) -> Counter[str]:
    for op in INSERTED:
        del found[op]
    return found
