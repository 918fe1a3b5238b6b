"""The helpers that emitted matchers call: chains, lanes, and questions that need more than a list look-up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rewriter.compiler.questions import Literal
from rewriter.engine import constants
from rewriter.engine.constants import same
from rewriter.engine.types import type_of
from rewriter.engine.views import Value
from rewriter.pattern.markers import Marker

if TYPE_CHECKING:
    from rewriter.engine.table import Table

__all__ = ["both", "chain_down", "chain_up", "dim", "holds", "lanes", "literal", "same"]

Chain = tuple[tuple[int, ...], int]


def both(inputs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The two orders of a binary op's operands."""
    if len(inputs) != 2:
        return ()
    a, b = inputs
    return ((a, b), (b, a)) if a != b else ((a, b),)


def is_link(table: Table, node: int, value: int) -> bool:
    """Whether a chain may pass through a node: `value` is its input 0, every other input is constant."""
    inputs = table.inputs[node]
    return bool(inputs) and inputs[0] == value and all(not v or constants.is_constant(table, v) for v in inputs[1:])


def chain_down(table: Table, value: int, ops: Collection[str]) -> Chain:
    """From a value down through single consumers of these types: the nodes passed, and the value they end in."""
    nodes: list[int] = []
    while len(table.uses[value]) == 1 and not table.output_count[value]:
        node = table.uses[value][0]
        if table.op[node] not in ops or not is_link(table, node, value):
            break
        nodes.append(node)
        value = table.outputs[node][0]
    return tuple(nodes), value


def chain_up(table: Table, value: int, ops: Collection[str]) -> Chain:
    """From a value up through producers of these types, each with a single consumer: the nodes in order, and the value
    they start from."""
    nodes: list[int] = []
    while True:
        node = table.producer[value]
        if table.op[node] not in ops or len(table.uses[value]) != 1 or table.output_count[value]:
            break
        start = table.inputs[node][0] if table.inputs[node] else 0
        if not is_link(table, node, start):
            break
        nodes.append(node)
        value = start
    return tuple(reversed(nodes)), value


def lanes(
    table: Table,
    values: Sequence[int],
    lane: Callable[..., Iterator[tuple[Any, ...]]],
    outer: tuple[int, ...],
    agree: tuple[int, ...],
    attributes: tuple[tuple[int, str], ...],
) -> Iterator[list[tuple[Any, ...]]]:
    """Run a lane on each value: what each captured, for each way of the first with which all the others agree."""
    for first in lane(values[0], *outer) if values else ():
        found = [first]
        for value in values[1:]:
            for one in lane(value, *outer):
                if all(same(table, first[k], one[k]) for k in agree) and all(
                    table.attribute(first[k], name) == table.attribute(one[k], name) for k, name in attributes
                ):
                    found.append(one)
                    break
            else:
                break
        if len(found) == len(values):
            yield found


def holds(table: Table, value: int, marker: Marker) -> bool:
    """Whether a marker holds of a value; an absent value is asked nothing."""
    return not value or marker.holds(Value(table, value))


def literal(table: Table, value: int, wanted: Literal) -> bool:
    return constants.is_literal(table, value, wanted.array())


def dim(table: Table, a: int, axis_a: int, b: int, axis_b: int) -> bool:
    """Whether two dimensions are known and equal."""
    if not (a and b):
        return True
    shapes = type_of(table, a).shape, type_of(table, b).shape
    if shapes[0] is None or shapes[1] is None or axis_a >= len(shapes[0]) or axis_b >= len(shapes[1]):
        return False
    x, y = shapes[0][axis_a], shapes[1][axis_b]
    return x is not None and x == y
