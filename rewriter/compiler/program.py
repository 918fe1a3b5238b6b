"""Program: the compiled form of the rules of one stage, for one choice of anchors.

An anchor is where the search for a rule begins: of the nodes that its pattern surely has, the one whose op is rarest
in the model at hand. So the program depends on the model through its histogram of ops, but only through that choice,
and programs are kept by (rules, choice of anchors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewriter.compiler.edits import EditScript
from rewriter.compiler.emit import DeclineInfo, Emitter, compile_source, node_capture, node_captures, value_captures
from rewriter.compiler.lower import Lowered, lower
from rewriter.compiler.questions import Space
from rewriter.compiler.tree import build_trees
from rewriter.compiler.variants import Variant
from rewriter.errors import RuleError
from rewriter.pattern.graph import AttributeParameter, PNode, nodes_of
from rewriter.rule import Definition, Rule, Window


@dataclass(eq=False)
class Leaf:
    """One variant of one rule in a program: how to decode what the matcher captured for it."""

    index: int
    definition: Definition
    rule_index: int
    script: EditScript | None
    lowered: Lowered
    window: dict[str, Window]
    node_names: dict[str, int] = field(init=False)
    value_slots: dict[str, int] = field(init=False)
    attribute_places: dict[str, tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        variant = self.variant
        self.node_names = {v.name: id(n) for n in variant.nodes for v in n.outputs if v.name}
        self.value_slots = {v.name: v.slot for n in variant.nodes for v in n.outputs if v.name}
        self.attribute_places = {}
        for node in variant.nodes:
            for name, value in node.attributes.items():
                if isinstance(value, AttributeParameter):
                    self.attribute_places.setdefault(value.name, (id(node), name))
        self._extended: dict[str, tuple[list[str], list[str]]] = {}
        node_slots = {p: k for k, p in enumerate(node_captures(self.lowered))}
        value_slots = {p: k for k, p in enumerate(value_captures(self.lowered))}
        items = self.lowered.lane_items
        self._node_slots = [
            (n, node_slots[node_capture(self.lowered, n)], items[id(n)][1] if id(n) in items else None)
            for n in variant.nodes
        ]
        self._value_slots: list[tuple[str, int, int | None]] = []
        for name, parameter in variant.parameters.items():
            if id(parameter) in items:
                holder, index = items[id(parameter)]
                self._value_slots.append((name, value_slots[holder], index))
            else:
                self._value_slots.append((name, value_slots[self.lowered.value_positions[id(parameter)]], None))
        from rewriter.pattern.markers import Many

        self._many = {
            name for name, value in variant.parameters.items() if value.has(Many) or id(value) in variant.lanes
        }

    @property
    def variant(self) -> Variant:
        return self.lowered.variant

    @property
    def benefit(self) -> int:
        return len(self.variant.nodes) if self.definition.benefit is None else self.definition.benefit

    def decode_nodes(self, captured: tuple[Any, ...]) -> dict[int, Any]:
        """id of a pattern node -> node id; a tuple of ids for a chain or for lanes."""
        found: dict[int, Any] = {}
        for node, slot, lane in self._node_slots:
            item = captured[slot]
            if lane is not None:
                found[id(node)] = tuple(one[lane] for one in item)
            elif node.chain:
                found[id(node)] = item[0]
            else:
                found[id(node)] = item
        return found

    def decode_values(self, captured: tuple[Any, ...]) -> dict[str, Any]:
        """Parameter -> value id (0: absent), or a list of ids for a Many."""
        found: dict[str, Any] = {}
        for name, slot, lane in self._value_slots:
            item = captured[slot]
            if lane is None:
                found[name] = item
            elif name in self._many:
                found[name] = [one[lane] for one in item]
            else:
                found[name] = item[0][lane]
        return found

    def extended(self, name: str) -> tuple[list[str], list[str]]:
        """The parameters and the nodes of the source whose names this one extends (`w_scale` does `w`), longest
        first."""
        found = self._extended.get(name)
        if found is None:
            names = ((one for one, *_ in self._value_slots), self.node_names)
            parameters, nodes = (
                sorted((one for one in known if name.startswith(one + "_")), key=len, reverse=True) for known in names
            )
            found = self._extended[name] = parameters, nodes
        return found

    def root_of(self, nodes: Mapping[int, Any]) -> int:
        """The node of the first returned value (for an empty chain, any matched node)."""
        for value in self.variant.outputs:
            if value.node is not None:
                captured = nodes[id(value.node)]
                if isinstance(captured, int):
                    return captured
                if captured:
                    return int(captured[-1])
        return next(int(n) for n in nodes.values() if isinstance(n, int))


@dataclass(eq=False)
class Program:
    """Compiled rules: the leaves, what declines mean, the source and how to bind it to a table."""

    leaves: list[Leaf]
    declines: list[DeclineInfo]
    source: str
    bind: Callable[..., dict[str, Callable[..., None]]]
    anchors: dict[str, None]
    space: Space


Planned = tuple[int, Definition, Variant, EditScript | None, PNode]
_programs: dict[tuple[Any, ...], Program] = {}
MAX_PROGRAMS = 256


def program_for(rules: Sequence[Rule], histogram: Mapping[str, int]) -> Program:
    """The program of these rules for a model with this histogram of ops (kept, and made once)."""
    plan: list[Planned] = []
    for index, one in enumerate(rules):
        for variant, script in one.definition.variants:
            plan.append((index, one.definition, variant, script, anchor_of(variant, histogram)))
    key = tuple((k, id(d), id(v), id(a)) for k, d, v, _, a in plan)
    program = _programs.get(key)
    if program is None:
        if len(_programs) >= MAX_PROGRAMS:
            _programs.pop(next(iter(_programs)))
        program = _programs[key] = compile_program(rules, plan)
    return program


def anchor_of(variant: Variant, histogram: Mapping[str, int]) -> PNode:
    """The pattern node to search for: of those surely there (and before the core), the one whose op is rarest."""
    core = variant.core
    nodes = variant.nodes if core is None else list(nodes_of([core]))
    candidates = [n for n in nodes if not n.chain and id(n) not in variant.lanes]
    if not candidates:
        raise RuleError(f"{variant.graph.place}: pattern {variant.graph.name!r} has no node to search for")
    return min(reversed(candidates), key=lambda n: sum(histogram.get(t, 0) for t in n.types))


def compile_program(rules: Sequence[Rule], plan: Sequence[Planned]) -> Program:
    space = Space()
    leaves: list[Leaf] = []
    for index, definition, variant, script, anchor in plan:
        lowered = lower(variant, anchor, script, space, definition.commute)
        leaves.append(Leaf(len(leaves), definition, index, script, lowered, definition.window(variant)))
    lowered_all = [leaf.lowered for leaf in leaves]
    title = ", ".join(dict.fromkeys(one.name for one in rules)) or "no rules"
    emitter = Emitter(space, lowered_all, title)
    roots = build_trees(lowered_all)
    source = emitter.module(roots)
    bind = compile_source(source, f"{title[:60]} #{len(_programs)}", space.constants)
    return Program(leaves, emitter.declines, source, bind, dict.fromkeys(roots), space)
