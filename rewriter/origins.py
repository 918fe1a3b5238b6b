"""Provenance: a new node says which rule made it, of which release of which rules, and of which nodes.

It stands in the node's metadata_props, which models have from IR version 10 on; in older ones there is no place for it.
The names are plain, so that any tool that shows metadata shows them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewriter.rule import Rule

RULE, RULES, SOURCES = "rewriter.rule", "rewriter.rules", "rewriter.from"
OLDEST_IR = 10


@dataclass(frozen=True)
class Origin:
    """Where a node comes from: the rule, the package that has it and its version (`"rules 0.1.0"`), and the nodes that
    stood there before."""

    node: str
    op_type: str
    rule: str
    rules: str
    sources: tuple[str, ...]


def origin(rule: Rule, sources: Sequence[str]) -> dict[str, str]:
    """The metadata of a node that a rule made of these nodes."""
    return {RULE: rule.name, RULES: release(rule.module), SOURCES: json.dumps(list(sources))}


@cache
def release(module: str) -> str:
    """The package that a module belongs to and its `__version__`; just the module where it has none."""
    package = module.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{package} {version}" if version else module


def provenance(model: Any) -> list[Origin]:
    """The nodes of a model that say that a rule made them, in the order of the model, bodies and functions too.

    model: an onnx.ModelProto, an onnx_ir.Model, or a path. Raises ModelError as `rewriter.apply`.
    """
    from rewriter.api import read

    return list(_origins(read(model)))


def _origins(reading: Any) -> Iterator[Origin]:
    table = reading.table
    for node in sorted((n for n in range(1, len(table.op)) if table.op[n]), key=table.place):
        props = table.handle[node].metadata_props
        held = dict(props) if isinstance(props, dict) else {entry.key: entry.value for entry in props}
        if RULE not in held:
            continue
        try:
            sources = tuple(map(str, json.loads(held.get(SOURCES, "[]"))))
        except (ValueError, TypeError):
            sources = (held[SOURCES],)
        yield Origin(table.label(node), table.op[node], held[RULE], held.get(RULES, ""), sources)
