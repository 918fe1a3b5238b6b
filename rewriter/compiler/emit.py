"""Emitting the tree as Python source: nested `if`s over list look-ups, one function per anchor op.

The source is meant to be read (`ruleset.source()`); it is registered in `linecache`, so that tracebacks and profilers
show its lines. `bind(t, ...)` closes the functions over one table. Nesting is cut into further functions before
Python's limits, so a pattern may have hundreds of nodes.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rewriter.compiler.lower import Lane, Lowered
from rewriter.compiler.ordering import step_positions
from rewriter.compiler.questions import AttributeIs, Lanes, Literal, Loop, Question, Space, Step, is_tensor
from rewriter.compiler.tree import Edge, TreeNode
from rewriter.pattern.graph import PNode

MAX_DEPTH = 14  # nesting inside one function; Python allows 20 loops and 100 levels of indentation
DISPATCH = 5  # from so many op types on, look the branch up in a dict

HEADER = '''\
"""The compiled matcher of {title}. Ids are the table's; 0 is "none" (see rewriter.engine.table)."""


def bind(t, found, no, chain_up, chain_down, both, lanes, same, holds, literal, dim):
    op, ins, outs, prod, uses, out_count = t.op, t.inputs, t.outputs, t.producer, t.uses, t.output_count
    attr = t.attribute
'''


@dataclass(frozen=True)
class DeclineInfo:
    """What an emitted `no(...)` refers to: whose question failed, and which."""

    variants: tuple[int, ...]
    question: Question
    step: Step


class Emitter:
    def __init__(self, space: Space, lowered: list[Lowered], title: str) -> None:
        self.space = space
        self.lowered = lowered
        self.title = title
        self.lines: list[str] = []
        self.declines: list[DeclineInfo] = []
        self.functions = 0
        self.queue: list[Callable[[], None]] = []
        self.tables: list[str] = []  # made once, when all the functions are there

    # -- the module --------------------------------------------------------------------------------

    def module(self, roots: dict[str, TreeNode]) -> str:
        self.lines = HEADER.format(title=self.title).splitlines()
        for one in self.lowered:
            for lane in one.lanes:
                self.lane(lane)
        entries: list[str] = []
        for op, root in roots.items():
            name = "match_" + "".join(c if c.isalnum() else "_" for c in op)
            entries.append(f"{op!r}: {name}")
            self.write(1, "")
            self.write(1, f"def {name}(nodes):")
            self.write(2, "for n0 in nodes:")
            self.write(3, f"if op[n0] != {op!r}:")
            self.write(4, "continue")
            self.tree(root, 3, {0}, MAX_DEPTH)
            self.flush()
        self.write(1, "")
        for table in self.tables:
            self.write(1, table)
        self.write(1, f"return {{{', '.join(entries)}}}")
        return "\n".join(self.lines) + "\n"

    def write(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text if text else "")

    def flush(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    # -- the tree ----------------------------------------------------------------------------------

    def tree(self, node: TreeNode, depth: int, known: set[int], room: int) -> None:
        known = set(known)
        if room <= 0 and (node.edges or node.leaves):
            self.call(node, depth, known)
            return
        for leaf in node.leaves:
            self.leaf(leaf, depth, known)
        edges = list(node.edges.values())
        ops: dict[int, list[Edge]] = {}
        for edge in edges:
            step = edge.step
            if isinstance(step, Question) and step.kind == "op" and len(step.argument) == 1 and not edge.declines:
                ops.setdefault(step.positions[0], []).append(edge)
        for position, group in ops.items():
            if len(group) >= DISPATCH:
                self.dispatch(position, group, depth, known)
                edges = [e for e in edges if e not in group]
        for edge in edges:
            self.edge(edge, depth, known, room)
        if not (node.leaves or node.edges):
            self.write(depth, "pass")

    def edge(self, edge: Edge, depth: int, known: set[int], room: int) -> None:
        step = edge.step
        if isinstance(step, Loop):
            self.define(step.position, depth, known)
            inside = set(known)
            parent = self.space.positions[step.position].variable
            if step.kind == "operand":
                a = self.space.position("operand", step.position, 0, "v")
                b = self.space.position("operand", step.position, 1, "v")
                inside |= {a, b}
                self.write(depth, f"for v{a}, v{b} in both(ins[{parent}]):")
            else:
                user = self.space.position("any_user", step.position, step.argument, "n")
                inside.add(user)
                self.write(depth, f"for n{user} in uses[{parent}]:")
            self.tree(edge.target, depth + 1, inside, room - 1)
            if edge.declines and step.kind == "any_user":  # the loop has nothing to try, and so nothing to say
                self.write(depth, f"if not uses[{parent}]:")
                self.decline(edge, Question("uses", (step.position,), 1), depth, known)
            return
        if isinstance(step, Lanes):
            inside = self.lanes_step(step, depth, known)
            self.tree(edge.target, depth + 1, inside, room - 1)
            return
        for position in step.positions:
            self.define(position, depth, known)
        self.write(depth, f"if {self.condition(step)}:")
        self.tree(edge.target, depth + 1, known, room - 1)
        if edge.declines:
            self.write(depth, "else:")
            self.decline(edge, step, depth, known)

    def decline(self, edge: Edge, step: Question, depth: int, known: set[int]) -> None:
        by_core: dict[int, list[int]] = {}
        for variant in edge.declines:
            core = self.lowered[variant].core_position
            assert core is not None
            by_core.setdefault(core, []).append(variant)
        for core, variants in by_core.items():
            self.define(core, depth + 1, set(known))
            self.declines.append(DeclineInfo(tuple(variants), step, edge.step))
            seen = ", ".join(self.variable(p) for p in step.positions)
            self.write(depth + 1, f"no({len(self.declines) - 1}, {self.variable(core)}, ({seen},))")

    def dispatch(self, position: int, group: list[Edge], depth: int, known: set[int]) -> None:
        self.define(position, depth, known)
        names: list[str] = []
        arguments = sorted(set().union(*(self.free(e.target) for e in group)) & known)
        for edge in group:
            assert isinstance(edge.step, Question)
            names.append(f"{edge.step.argument[0]!r}: {self.function(edge.target, arguments)}")
        call = ", ".join(map(self.variable, arguments))
        table = f"branches_{len(self.tables)}"
        self.tables.append(f"{table} = {{{', '.join(names)}}}")
        self.write(depth, f"branch = {table}.get(op[{self.variable(position)}])")
        self.write(depth, "if branch:")
        self.write(depth + 1, f"branch({call})")

    def call(self, node: TreeNode, depth: int, known: set[int]) -> None:
        arguments = sorted(self.free(node) & known)
        self.write(depth, f"{self.function(node, arguments)}({', '.join(map(self.variable, arguments))})")

    def function(self, node: TreeNode, arguments: list[int]) -> str:
        self.functions += 1
        name = f"branch_{self.functions}"

        def emit() -> None:
            self.write(1, "")
            self.write(1, f"def {name}({', '.join(map(self.variable, arguments))}):")
            self.tree(node, 2, set(arguments), MAX_DEPTH)

        self.queue.append(emit)
        return name

    def free(self, node: TreeNode) -> set[int]:
        """Every position that a subtree may read, with what those hang on."""
        found: set[int] = set()
        stack = [node]
        while stack:
            one = stack.pop()
            for leaf in one.leaves:
                found.update(self.captured(self.lowered[leaf]))
            for edge in one.edges.values():
                found.update(step_positions(edge.step))
                for variant in edge.declines:
                    core = self.lowered[variant].core_position
                    if core is not None:
                        found.add(core)
                stack.append(edge.target)
        for position in list(found):
            parent = self.space.positions[position].parent
            while parent >= 0 and parent not in found:
                found.add(parent)
                parent = self.space.positions[parent].parent
        return found

    # -- leaves and captures -----------------------------------------------------------------------

    def captured(self, one: Lowered) -> list[int]:
        return [*node_captures(one), *value_captures(one)]

    def leaf(self, number: int, depth: int, known: set[int]) -> None:
        one = self.lowered[number]
        known = set(known)
        for position in self.captured(one):
            self.define(position, depth, known)
        nodes = "".join(f"{self.variable(p)}, " for p in node_captures(one))
        values = "".join(f"{self.variable(p)}, " for p in value_captures(one))
        self.write(depth, f"found(({number}, ({nodes}), ({values})))  # {one.variant.graph.name}")

    # -- positions ---------------------------------------------------------------------------------

    def variable(self, position: int) -> str:
        return self.space.positions[position].variable

    def define(self, position: int, depth: int, known: set[int]) -> None:
        """Write the assignments that a position needs, outermost first (iterative: paths may be long)."""
        path: list[int] = []
        while position not in known:
            path.append(position)
            position = self.space.positions[position].parent
        for item in reversed(path):
            place = self.space.positions[item]
            self.write(depth, f"{place.variable} = {self.expression(item)}")
            known.add(item)

    def expression(self, position: int) -> str:
        place = self.space.positions[position]
        parent = self.variable(place.parent)
        argument = place.argument
        if place.kind in ("input", "output"):
            name, slots = ("i", "ins") if place.kind == "input" else ("o", "outs")
            held = f"{name} := {slots}[{parent}]"
            there = f"({held})" if argument == 0 else f"len({held}) > {argument}"
            return f"{name}[{argument}] if {there} else 0"
        if place.kind == "producer":
            return f"prod[{parent}]"
        if place.kind == "user":
            return f"uses[{parent}][0] if uses[{parent}] else 0"
        if place.kind in ("chain_up", "chain_down"):
            return f"{place.kind}(t, {parent}, {self.space.constant('OPS', frozenset(argument), argument)})"
        if place.kind == "chain_end":
            return f"{parent}[1]"
        if place.kind == "lane_item":
            return f"{parent}[0][{argument}]"
        raise AssertionError(f"position {place} has no expression of its own")

    def lanes_step(self, step: Lanes, depth: int, known: set[int]) -> set[int]:
        for position in (step.position, *step.outer):
            self.define(position, depth, known)
        holder = self.space.position("lanes", step.position, step.lane, "m")
        node = self.variable(step.position)
        outer = "".join(f"{self.variable(p)}, " for p in step.outer)
        arguments = f"t, ins[{node}][{step.slot}:], {step.lane}, ({outer}), {step.agree!r}, {step.attributes!r}"
        self.write(depth, f"for {self.variable(holder)} in lanes({arguments}):")
        return known | {holder}

    def lane(self, lane: Lane) -> None:
        """A lane's own little matcher: each way that fits, as a tuple of what it captured."""
        known = {lane.root, *lane.outer}
        arguments = ", ".join(self.variable(p) for p in (lane.root, *lane.outer))
        self.write(1, "")
        self.write(1, f"def {lane.name}({arguments}):")
        depth = 2
        for step in lane.steps:
            depth = self.lane_step(step, depth, known)
        for position in lane.captures:
            self.define(position, depth, known)
        captured = "".join(f"{self.variable(p)}, " for p in lane.captures)
        self.write(depth, f"yield ({captured})")

    def lane_step(self, step: Step, depth: int, known: set[int]) -> int:
        if isinstance(step, Loop):
            self.define(step.position, depth, known)
            pair = [self.space.position("operand", step.position, k, "v") for k in (0, 1)]
            known.update(pair)
            names = ", ".join(map(self.variable, pair))
            self.write(depth, f"for {names} in both(ins[{self.variable(step.position)}]):")
        elif isinstance(step, Question):
            for position in step.positions:
                self.define(position, depth, known)
            self.write(depth, f"if {self.condition(step)}:")
        return depth + 1

    # -- questions ---------------------------------------------------------------------------------

    def condition(self, question: Question) -> str:
        kind, argument = question.kind, question.argument
        v = [self.variable(p) for p in question.positions]
        if kind == "op":
            if len(argument) == 1:
                return f"op[{v[0]}] == {argument[0]!r}"
            return f"op[{v[0]}] in {self.space.constant('OPS', frozenset(argument), argument)}"
        if kind == "slot":
            return f"outs[{v[0]}][{argument}:{argument + 1}] == [{v[1]}]"
        if kind == "identical":
            return f"{v[0]} == {v[1]}"
        if kind == "distinct":
            return f"{v[0]} != {v[1]}"
        if kind == "present":
            return v[0]
        if kind == "absent":
            return f"not {v[0]}"
        if kind == "no_more":
            return f"len(ins[{v[0]}]) <= {argument}"
        if kind == "attribute":
            return self.attribute(v[0], argument)
        if kind == "same_attribute":
            return f"attr({v[0]}, {argument[0]!r}) == attr({v[1]}, {argument[1]!r})"
        if kind == "uses":
            return f"len(uses[{v[0]}]) == {argument}"
        if kind == "inner":
            return f"not out_count[{v[0]}]"
        if kind == "same":
            return f"({v[0]} == {v[1]} or same(t, {v[0]}, {v[1]}))"
        if kind == "marker":
            return f"holds(t, {v[0]}, {self.space.constant(type(argument).__name__, argument)})"
        if kind == "literal":
            return f"literal(t, {v[0]}, {self.space.constant('LITERAL', argument)})"
        if kind == "dim":
            return f"dim(t, {v[0]}, {argument[0]}, {v[1]}, {argument[1]})"
        raise AssertionError(f"no expression for question {kind}")

    def attribute(self, node: str, wanted: AttributeIs) -> str:
        if isinstance(wanted.value, Literal):
            test = self.space.constant("is_tensor", is_tensor)
            return f"{test}(attr({node}, {wanted.name!r}), {self.space.constant('LITERAL', wanted.value)})"
        value: Any = list(wanted.value) if isinstance(wanted.value, tuple) else wanted.value
        return f"attr({node}, {wanted.name!r}) == {value!r}"


def node_captures(one: Lowered) -> list[int]:
    """The positions that are captured for the variant's nodes: nodes, chains, and whole lanes."""
    found: list[int] = []
    for node in one.variant.nodes:
        position = node_capture(one, node)
        if position not in found:
            found.append(position)
    return found


def node_capture(one: Lowered, node: PNode) -> int:
    if id(node) in one.lane_items:
        return one.lane_items[id(node)][0]
    return one.node_positions[id(node)]


def value_captures(one: Lowered) -> list[int]:
    """The positions that are captured for the variant's parameters; a Many parameter lies in its lanes."""
    found: list[int] = []
    for value in one.variant.parameters.values():
        position = one.lane_items[id(value)][0] if id(value) in one.lane_items else one.value_positions[id(value)]
        if position not in found:
            found.append(position)
    return found


def compile_source(source: str, name: str, constants: dict[str, Any]) -> Callable[..., dict[str, Callable[..., None]]]:
    """Make the emitted source callable, visible to tracebacks."""
    filename = f"<matcher {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = dict(constants)
    exec(compile(source, filename, "exec"), namespace)  # our own emitted source, never text from a model
    bind: Callable[..., dict[str, Callable[..., None]]] = namespace["bind"]
    return bind
