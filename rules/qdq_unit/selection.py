"""Which units are wanted: patterns of node names and op types, as quantizers have them.

A node is meant by a pattern that is its name or op type, or matches one of them as file names are matched (`*`, `?`,
`[...]`). Both stand in one list, since nobody gives a node the name of an op type and means something else. What is
left out is declined and not passed over in silence, so that the report shows whether a pattern meant what its author
did.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from rewriter import Node


def patterns(option: str, given: Any) -> tuple[str, ...]:
    """The patterns of an option: of a list or tuple, or of one string. Raises ValueError for anything else."""
    if isinstance(given, str):
        given = (given,)
    found = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(one, str) and one for one in found):
        raise ValueError(f"{option} takes names or op types of nodes, like ('Conv', '/head/*'), not {given!r}")
    return found


def left_out(node: Node, include: tuple[str, ...], exclude: tuple[str, ...]) -> str | None:
    """Why a node is not wanted, as a sentence; None if it is."""
    for pattern in exclude:
        if means(pattern, node):
            return f"excluded by {pattern!r}"
    if include and not any(means(pattern, node) for pattern in include):
        return f"not included by {', '.join(map(repr, include))}"
    return None


def means(pattern: str, node: Node) -> bool:
    """Whether a pattern means a node; a name is met as it is even where it holds a character of patterns."""
    return any(one == pattern or fnmatchcase(one, pattern) for one in (node.name, node.op_type))
