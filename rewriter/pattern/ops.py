"""The pattern operators: ops of one custom opset, so that a rule stays plain ONNX Script.

| operator | what it says |
| --- | --- |
| `P.AnyOf(a, b, ...)` | one of these values; the first that matches is preferred |
| `P.Op(x, w, b, types=[...])` | a node of any of these types; `"domain::Type"` names another domain |
| `P.Chain(x, ops=[...])` | zero or more such nodes, through input 0, other inputs constant, one consumer each |
| `P.OnlyUse(v)` | v has the one consumer that the pattern shows, and is no graph output |
| `P.Core(v)` | once everything up to v has matched, what fails further on is a decline, reported with its reason |

In a target, `P.Op` of several types is either tied to a node of the source, or takes its type from one by `inherit`;
`P.Chain` is tied to the chain of the same name and moves as one segment; `P.Core` and `P.OnlyUse` say nothing there.
"""

from __future__ import annotations

from onnxscript.values import Opset

P = Opset("rewriter.pattern", 1)
"""The opset of the pattern operators."""

DOMAIN = "rewriter.pattern"
OPERATORS = ("AnyOf", "Op", "Chain", "OnlyUse", "Core")
