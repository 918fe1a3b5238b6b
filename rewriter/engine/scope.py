"""Scopes, and what the table keeps behind handles: the small types that sources, table and sinks share.

`Access` is how the source of a model reads what is dear, on demand: attributes, tensors, declared types. A scope is one
graph of the model; all scopes of a model lie in one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import onnx_ir as ir

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class ValueType:
    """Element type and shape of a tensor, as far as they are known."""

    dtype: ir.DataType | None
    shape: Shape | None


class AttributeReference:
    """An attribute of a function's node that stands for the caller's attribute of that name."""

    def __init__(self, name: str, kind: int) -> None:
        self.name = name
        self.kind = kind  # an AttributeProto.AttributeType


@dataclass(eq=False)
class NewNode:
    """The handle of a node that an edit made."""

    name: str
    attributes: dict[str, Any]
    metadata: dict[str, str] = field(default_factory=dict)


class Access(Protocol):
    """How the source of a model reads what the table keeps behind handles."""

    def attributes(self, handle: Any) -> dict[str, Any]:
        """Attributes of a node: Python values; tensors as ir.TensorProtocol; graphs as the source's own objects."""
        ...

    def node_name(self, handle: Any) -> str: ...

    def tensor(self, handle: Any) -> ir.TensorProtocol:
        """The tensor of an initializer's handle."""
        ...

    def declared_type(self, scope: Scope, name: str) -> ValueType | None: ...

    def is_annotated(self, name: str) -> bool:
        """Whether a quantization annotation names this value."""
        ...

    def other_names(self, scopes: Iterable[Scope]) -> set[str]:
        """The names in these scopes that the table does not hold: of nodes, of sparse tensors, and those that only a
        declared type mentions."""
        ...

    def inferred_types(self) -> Mapping[str, ValueType]:
        """Types of the main graph's values by shape inference; run at most once per run."""
        ...


@dataclass(eq=False)
class Scope:
    """A graph: the main one, a body, or a model-local function."""

    id: int
    kind: str  # "graph", "body" or "function"
    name: str
    parent: Scope | None
    owner: int  # the node whose body it is, else 0
    attribute: str  # the attribute of the owner that holds it
    handle: Any
    opsets: Mapping[str, int]
    values: dict[str, int] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)  # as read
    outputs: list[int] = field(default_factory=list)
    initializers: dict[int, Any] = field(default_factory=dict)
    first: int = 0
    last: int = 0

    def encloses(self, other: Scope | None) -> bool:
        """Whether `other` is this scope or lies inside it."""
        while other is not None:
            if other is self:
                return True
            other = other.parent
        return False
