"""Edit scripts: what differs between source and target, found once when the rule is compiled.

Names tie: a name that the author assigned on both sides, with the same op, is the same node, and the k-th returned
value ties to the k-th. A tied node is kept: only those of its inputs and attributes that differ are written. What the
target adds is new; what it does not mention is removed where nothing else uses it. From this follows which values
change ("modified") and so must have no consumer outside of the match, which the tree asks by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeGuard

import numpy as np

from rewriter.compiler.variants import Variant
from rewriter.errors import RuleError
from rewriter.pattern.graph import AttributeParameter, AttributeValue, PatternGraph, PNode, PValue
from rewriter.pattern.markers import Many


@dataclass(eq=False)
class Kept:
    """A tied node: which inputs to rewire (those that differ, and those a callback may override), what to write."""

    target: PNode
    source: PNode
    inputs: list[tuple[int, PValue | None]]
    overridable: list[tuple[int, str]]
    attributes: dict[str, AttributeValue | AttributeParameter]


@dataclass(eq=False)
class EditScript:
    """The minimal edit that turns a match of `variant` into `target`."""

    variant: Variant
    target: PatternGraph
    tied: dict[int, PNode]  # id of a target node -> the source node that it is
    kept: list[Kept] = field(default_factory=list)
    new: list[PNode] = field(default_factory=list)
    returned: list[tuple[PValue, PValue]] = field(default_factory=list)  # source value, target value
    removed: list[PNode] = field(default_factory=list)
    modified: set[int] = field(default_factory=set)  # ids of source values that change and are not returned
    inherit: dict[int, PNode] = field(default_factory=dict)  # id of a new node -> whose attributes it takes over
    read: set[int] = field(default_factory=set)  # ids of target values that something reads, or that are returned
    order: list[tuple[PNode, Kept | None]] = field(default_factory=list)  # of the target's nodes; None: a new one
    names: frozenset[str] = frozenset()  # what a callback may return
    needed: tuple[str, ...] = ()  # what it must return

    @cached_property
    def shrinks(self) -> bool:
        """Whether it always takes away more nodes than it adds: then it cannot go on for ever."""
        certain = [n for n in self.removed if not n.chain]
        return len(certain) > len(self.new)


def edit_script(variant: Variant, target: PatternGraph, inherit: Mapping[str, str | tuple[str, ...]]) -> EditScript:
    """Compare the two sides. Raises RuleError for names that fit nothing."""
    tied = tie(variant, target)
    script = EditScript(variant, target, tied)
    parameters = variant.parameters
    changed: set[int] = set()  # ids of target nodes whose value differs from the source's
    nodes = target.nodes()

    def same(value: PValue | None, old: PValue | None) -> bool:
        if value is None or old is None:
            return value is None and old is None
        if value.parameter:
            return value.name is not None and parameters.get(value.name) is old
        if value.literal is not None:
            return old.literal is not None and equal_literals(value.literal, old.literal)
        node = value.node
        return node is not None and id(node) in tied and old.node is tied[id(node)] and old.slot == value.slot

    for node in nodes:
        source = tied.get(id(node))
        if source is None:
            script.new.append(node)
            script.order.append((node, None))
            changed.add(id(node))
            continue
        inputs: list[tuple[int, PValue | None]] = []
        overridable: list[tuple[int, str]] = []
        for slot in range(max(len(node.inputs), len(source.inputs))):
            value = node.inputs[slot] if slot < len(node.inputs) else None
            old = source.inputs[slot] if slot < len(source.inputs) else None
            if not same(value, old):
                inputs.append((slot, value))
            elif value is not None and value.parameter and value.name is not None and not value.has(Many):
                overridable.append((slot, value.name))
        attributes = {
            name: value
            for name, value in node.attributes.items()
            if isinstance(value, AttributeParameter) or not equal_attributes(source.attributes.get(name), value)
        }
        differing = [n for n, v in attributes.items() if not is_same_parameter(v, source.attributes.get(n))]
        kept = Kept(node, source, inputs, overridable, attributes)
        upstream = any(v is not None and v.node is not None and id(v.node) in changed for v in node.inputs)
        if inputs or differing or upstream:
            changed.add(id(node))
        script.kept.append(kept)
        script.order.append((node, kept))
    script.read = {id(v) for node in nodes for v in node.inputs} | {id(v) for v in target.outputs}
    script.returned = list(zip(variant.outputs, target.outputs, strict=True))
    returned = {id(v) for v in variant.outputs}
    mentioned = {id(n) for n in tied.values()}
    script.removed = [n for n in reversed(variant.nodes) if id(n) not in mentioned]
    script.modified = {
        id(v) for node_id in changed if node_id in tied for v in tied[node_id].outputs if id(v) not in returned
    }
    script.names = frozenset((*target.parameters, *target.attribute_parameters))
    own = variant.graph
    unbound = [name for name in target.parameters if name not in own.parameters]
    unbound += [
        name
        for name, parameter in target.attribute_parameters.items()
        if name not in own.attribute_parameters and parameter.default is None
    ]
    script.needed = tuple(unbound)
    resolve_inherit(script, inherit)
    return script


def is_same_parameter(
    value: AttributeValue | AttributeParameter, old: AttributeValue | AttributeParameter | None
) -> TypeGuard[AttributeParameter]:
    """Whether both sides bind one attribute parameter: it is written only if the callback returns another value."""
    return isinstance(value, AttributeParameter) and isinstance(old, AttributeParameter) and old.name == value.name


def equal_attributes(a: AttributeValue | AttributeParameter | None, b: AttributeValue | AttributeParameter) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return equal_literals(a, b)
    return type(a) is type(b) and bool(a == b)


def equal_literals(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def tie(variant: Variant, target: PatternGraph) -> dict[int, PNode]:
    named: dict[str, PNode] = {}
    for node in variant.nodes:
        for value in node.outputs:
            if value.name:
                named[value.name] = node
    tied: dict[int, PNode] = {}
    taken: set[int] = set()
    for node in target.nodes():
        for value in node.outputs:
            source = named.get(value.name) if value.name else None
            if source is not None and fits(source, node) and id(source) not in taken:
                tied[id(node)] = source
                taken.add(id(source))
                break
    for old, new in zip(variant.outputs, target.outputs, strict=True):
        a, b = old.node, new.node
        if a is None or b is None or id(b) in tied or id(a) in taken or old.slot != new.slot:
            continue
        if fits(a, b):
            tied[id(b)] = a
            taken.add(id(a))
    return tied


def fits(source: PNode, target: PNode) -> bool:
    return source.chain == target.chain and set(source.types) == set(target.types)


def resolve_inherit(script: EditScript, inherit: Mapping[str, str | tuple[str, ...]]) -> None:
    sources = {v.name: n for n in script.variant.nodes for v in n.outputs if v.name}
    new = {v.name: n for n in script.target.nodes() for v in n.outputs if v.name}
    for name, takers in inherit.items():
        for taker in (takers,) if isinstance(takers, str) else takers:
            if taker not in new:
                raise RuleError(f"{script.target.place}: inherit names {taker!r}, which the target does not assign")
            if name in sources:
                script.inherit[id(new[taker])] = sources[name]
    for node in script.new:
        if node.chain:
            raise RuleError(
                f"{node.place}: the chain {node.label!r} of the target is tied to no chain of the source; "
                "give it the name and the ops that it has there"
            )
        if len(node.types) > 1 and id(node) not in script.inherit:
            raise RuleError(
                f"{node.place}: P.Op of several types makes a new node of unknown type; "
                f"tie it to a node of the source by name, or say inherit={{'source name': {node.name!r}}}"
            )
