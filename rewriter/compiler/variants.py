"""Variants: one concrete pattern per way of choosing among the alternatives of `P.AnyOf`.

A variant is a copy of the pattern without choices, so that what comes after it (questions, edit scripts) never
meets one. Commuted operands are *not* variants: the tree asks both orders in a loop, so k commutative nodes cost
2k, not 2^k. What alternatives have in common is asked once all the same, because equal questions merge in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rewriter.errors import RuleError
from rewriter.pattern.graph import PatternGraph, PNode, PValue, nodes_of
from rewriter.pattern.markers import Many

MAX_VARIANTS = 256


@dataclass(eq=False)
class Variant:
    """A source pattern without choices: its nodes in topological order, its returned values, its parameters."""

    graph: PatternGraph
    number: int
    nodes: list[PNode]
    outputs: list[PValue]
    parameters: dict[str, PValue]  # those that this choice uses
    lanes: set[int]  # ids of the nodes and values that are repeated for each value of a Many parameter

    @property
    def core(self) -> PValue | None:
        for node in self.nodes:
            for value in node.outputs:
                if value.core:
                    return value
        return None

    def users(self, value: PValue) -> list[tuple[PNode, int]]:
        return [(n, slot) for n in self.nodes for slot, v in enumerate(n.inputs) if v is value]


def variants_of(graph: PatternGraph) -> list[Variant]:
    """Every concrete form of a source pattern, in the order of preference. Raises RuleError past `MAX_VARIANTS`."""
    found: list[Variant] = []
    for chosen in choices_of(graph.outputs):
        if len(found) == MAX_VARIANTS:
            raise RuleError(
                f"{graph.place}: pattern {graph.name!r} has more than {MAX_VARIANTS} variants; "
                "split it into several rules or nest fewer P.AnyOf"
            )
        found.append(concrete(graph, chosen, len(found)))
    for variant in found:
        check_connected(variant)
    return found


def check_connected(variant: Variant) -> None:
    """A pattern must hang together by shared values, or there is no way from one part to the other."""
    if not variant.nodes:
        return
    reached = {id(variant.nodes[0])}
    values: set[int] = set()
    grown = True
    while grown:
        grown = False
        for node in variant.nodes:
            around = {id(v) for v in (*node.inputs, *node.outputs) if v is not None and v.literal is None}
            if id(node) in reached or around & values:
                grown |= id(node) not in reached or not around <= values
                reached.add(id(node))
                values |= around
    for node in variant.nodes:
        if id(node) not in reached:
            raise RuleError(
                f"{node.place}: node {node.label!r} shares no value with the rest of the pattern; "
                "a pattern must be connected"
            )


def choices_of(outputs: list[PValue]) -> Iterator[dict[int, int]]:
    """Every assignment of an alternative to each choice that it can reach, first alternatives first."""
    stack: list[dict[int, int]] = [{}]
    while stack:
        chosen = stack.pop()
        undecided = next((v for v in reachable_choices(outputs, chosen) if id(v) not in chosen), None)
        if undecided is None:
            yield chosen
        else:
            stack.extend({**chosen, id(undecided): k} for k in reversed(range(len(undecided.choices))))


def reachable_choices(outputs: list[PValue], chosen: dict[int, int]) -> Iterator[PValue]:
    seen: set[int] = set()
    stack = list(reversed(outputs))
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if value.choices:
            yield value
            if id(value) in chosen:
                stack.append(value.choices[chosen[id(value)]])
        elif value.node is not None:
            stack.extend(v for v in reversed(value.node.inputs) if v is not None)


def concrete(graph: PatternGraph, chosen: dict[int, int], number: int) -> Variant:
    values: dict[int, PValue] = {}
    nodes: dict[int, PNode] = {}

    def resolve(value: PValue) -> PValue:
        """The copy of a value whose node has been copied already."""
        wrappers = []
        while value.choices:
            wrappers.append(value)
            value = value.choices[chosen[id(value)]]
        copy = values.get(id(value))
        if copy is None:
            copy = values[id(value)] = replace(value)
        for wrapper in wrappers:
            copy.core |= wrapper.core
            copy.only_use |= wrapper.only_use
            copy.markers += wrapper.markers
            if copy.node is not None and copy.node.name is None:
                copy.name = wrapper.name
        return copy

    order: list[PNode] = []
    for node in chosen_nodes(graph.outputs, chosen):
        copy = replace(node, outputs=[], attributes=dict(node.attributes))
        nodes[id(node)] = copy
        for value in node.outputs:
            values[id(value)] = replace(value, node=copy)
            copy.outputs.append(values[id(value)])
        copy.inputs = [None if v is None else resolve(v) for v in node.inputs]
        order.append(copy)
    outputs = [resolve(v) for v in graph.outputs]
    parameters = {name: values[id(v)] for name, v in graph.parameters.items() if id(v) in values}
    lanes: set[int] = set()
    for node in order:
        repeated = [v for v in node.inputs if v is not None and (v.has(Many) or id(v) in lanes)]
        if repeated and not is_variadic(node, repeated[0]):
            lanes.add(id(node))
            lanes.update(id(v) for v in node.outputs)
    return Variant(graph, number, order, outputs, parameters, lanes)


def is_variadic(node: PNode, value: PValue) -> bool:
    """Whether `value` stands where a variadic op takes the rest of its inputs: there the repetition ends."""
    from rewriter.schemas import op_info

    info = op_info(node.types[0], 1000)
    last = node.inputs[-1] is value
    return last and info is not None and info.variadic and len(node.inputs) >= len(info.required)


def chosen_nodes(outputs: list[PValue], chosen: dict[int, int]) -> list[PNode]:
    picked = {id(v): v.choices[chosen[id(v)]] for v in reachable_choices(outputs, chosen)}
    if not picked:
        return list(nodes_of(outputs))
    done: set[int] = set()
    order: list[PNode] = []
    stack: list[tuple[PValue | PNode, bool]] = [(v, False) for v in reversed(outputs)]
    while stack:
        item, expanded = stack.pop()
        if isinstance(item, PValue):
            if item.choices:
                stack.append((picked[id(item)], False))
            elif item.node is not None and id(item.node) not in done:
                stack.append((item.node, False))
        elif expanded:
            if id(item) not in done:
                done.add(id(item))
                order.append(item)
        elif id(item) not in done:
            stack.append((item, True))
            stack.extend((v, False) for v in reversed(item.inputs) if v is not None)
    return order
