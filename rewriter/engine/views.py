"""Views: values and nodes as callbacks and markers see them, read-only windows on the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rewriter.engine import constants, types
from rewriter.engine.scope import Shape

if TYPE_CHECKING:
    from rewriter.engine.table import Table


@dataclass(frozen=True)
class Value:
    """A value of the model: its name, its type and, if it is constant, its elements."""

    _table: Table
    id: int

    def __repr__(self) -> str:
        return f"Value({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and other.id == self.id and other._table is self._table

    def __hash__(self) -> int:
        return self.id

    @property
    def name(self) -> str:
        return self._table.name[self.id]

    @property
    def is_constant(self) -> bool:
        """Computable at build time (an initializer that the caller can override is not)."""
        return constants.is_constant(self._table, self.id)

    @property
    def is_overridable(self) -> bool:
        """An initializer that is a graph input too, from IR version 4 on."""
        return self.id in self._table.overridable

    @property
    def is_graph_input(self) -> bool:
        return self.id in self._table.is_input

    @property
    def is_graph_output(self) -> bool:
        return self._table.output_count[self.id] > 0

    @property
    def dtype(self) -> ir.DataType | None:
        return types.type_of(self._table, self.id).dtype

    @property
    def shape(self) -> Shape | None:
        """Dimensions: numbers, symbols, or None where unknown; None where not even the rank is known."""
        return types.type_of(self._table, self.id).shape

    @property
    def producer_type(self) -> str | None:
        """Op type of the node that produces it (`"domain::Type"` outside ai.onnx), None for inputs and initializers."""
        return self._table.op[self._table.producer[self.id]] or None

    @property
    def tensor(self) -> ir.TensorProtocol:
        """A constant, not read before somebody asks it for elements; it outlives the value. Raises ValueError if it is
        none."""
        return constants.tensor(self._table, self.id)

    def numpy(self) -> np.ndarray:
        """The elements of a constant; raises ValueError if it is none, ModelError if its data cannot be read."""
        return constants.array(self._table, self.id)


@dataclass(frozen=True)
class Node:
    """A node of the model."""

    _table: Table
    id: int

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.op_type!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.id == self.id and other._table is self._table

    def __hash__(self) -> int:
        return self.id

    @property
    def name(self) -> str:
        """Its name, or its first output's where it has none."""
        return self._table.label(self.id)

    @property
    def op_type(self) -> str:
        """`"Conv"`, or `"domain::Type"` outside ai.onnx."""
        return self._table.op[self.id]

    def attribute(self, name: str) -> Any:
        """The attribute's value, the schema's default where it is absent, None where there is none.

        Raises Decline where it stands for an attribute of the function that the node lies in, and ModelError where the
        model holds a value of another type than the schema's.
        """
        return self._table.known_attribute(self.id, name)

    @property
    def inputs(self) -> list[Value | None]:
        return [Value(self._table, v) if v else None for v in self._table.inputs[self.id]]

    @property
    def outputs(self) -> list[Value | None]:
        return [Value(self._table, v) if v else None for v in self._table.outputs[self.id]]


@dataclass(frozen=True)
class Neighbours:
    """What stands around a value: the node that produces it and those that read it, in the order of reading."""

    producer: Node | None
    users: tuple[Node, ...]
