"""Mixed rules, as many as asked for, the same for this engine and for onnxscript.rewriter.

Each rule looks for three nodes one behind the other, `C(B(A(x)))` with a binary op somewhere, whose types all occur in
the models of `graphs.plain`, though never in this order: so that a rule costs what a rule costs which does not
match. The roots are spread over all op types.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import linecache
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxscript.rewriter import pattern as peer

import rewriter
from benchmarks.graphs import BINARY, CYCLE

Ops = tuple[str, str, str]


def triples() -> Iterator[Ops]:
    """Op types that are all there and never in this order: root first; every root once before any comes twice."""
    before = dict(zip([*CYCLE[1:], CYCLE[0]], CYCLE, strict=True))
    for shift in range(len(CYCLE)):
        for number, root in enumerate(CYCLE):
            middle, first = before[root], CYCLE[(number * 7 + shift) % len(CYCLE)]
            if first != before[middle]:
                yield root, middle, first


def call(op: str, inner: str, free: str) -> str:
    return f"op.{op}({inner}, {free})" if op in BINARY else f"op.{op}({inner})"


def body(ops: Ops) -> str:
    root, middle, first = ops
    return call(root, call(middle, call(first, "x", "a"), "b"), "c")


def parameters(ops: Ops) -> list[str]:
    root, middle, first = ops
    free = [name for op, name in ((first, "a"), (middle, "b"), (root, "c")) if op in BINARY]
    return ["x", *free]


def functions(text: str) -> dict[str, Any]:
    """What the Python text defines. It is imported from a file, because patterns are read from their source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"made_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        linecache.getlines(str(path))
        return dict(vars(module))


def ours(count: int) -> rewriter.RuleSet:
    """`count` such rules as one set of this engine."""
    held = []
    for number, ops in enumerate(itertools.islice(triples(), count)):
        named = ", ".join(f"{name}: Tensor" for name in parameters(ops))
        text = (
            "from onnxscript import opset17 as op, script\nfrom rewriter.pattern import Tensor\n"
            f"@script(default_opset=op)\ndef source_{number}({named}) -> Tensor:\n    return {body(ops)}\n"
            f"@script(default_opset=op)\ndef target_{number}(x: Tensor) -> Tensor:\n    return op.Identity(x)\n"
        )
        made = functions(text)
        held.append(rewriter.rewrite(made[f"source_{number}"], made[f"target_{number}"]))
    assert len(held) == count
    rules: rewriter.RuleSet = held[0]
    for one in held[1:]:
        rules += one
    return rules


def theirs(count: int) -> peer.RewriteRuleSet:
    """The same rules as one set of onnxscript.rewriter."""
    held = []
    for _number, ops in enumerate(itertools.islice(triples(), count)):
        named = ", ".join(["op", *parameters(ops)])
        text = f"def source({named}):\n    return {body(ops)}\ndef target({named}):\n    return op.Identity(x)\n"
        made = functions(text)
        held.append(peer.RewriteRule(made["source"], made["target"]))
    return peer.RewriteRuleSet(held)
