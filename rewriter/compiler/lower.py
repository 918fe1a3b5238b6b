"""Lowering: a variant, seen from its anchor, as an ordered list of questions.

From the anchor every other node is reached through a producer (up) or a user (down). A value with a single permitted
consumer leads to its user directly; other values are followed by a loop over their users. Questions are ordered by
what they cost and by the position they ask about, in the same way for every rule, so that rules that begin alike share
a prefix of the tree. With a `P.Core`, everything up to the core is asked first; what fails later is a decline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewriter import schemas
from rewriter.compiler.edits import EditScript
from rewriter.compiler.ordering import ordered, step_positions
from rewriter.compiler.questions import AttributeIs, Lanes, Literal, Loop, Question, Space, Step
from rewriter.compiler.variants import Variant, is_variadic
from rewriter.pattern.graph import AttributeParameter, PNode, PValue, nodes_of
from rewriter.pattern.markers import Dims, Many, Maybe


@dataclass(eq=False)
class Lane:
    """The small matcher of what is repeated for each input of a Many: steps from the lane's value to its captures."""

    name: str
    steps: list[Step]
    root: int
    outer: tuple[int, ...]
    captures: tuple[int, ...]


@dataclass(eq=False)
class Lowered:
    """What the tree is built from: steps in order, what to capture, and words for explanations."""

    variant: Variant
    anchor: PNode
    steps: list[tuple[Step, bool]]  # the step, and whether its failing is a decline
    node_positions: dict[int, int]  # id of a PNode -> position
    value_positions: dict[int, int]  # id of a PValue -> position
    core_position: int | None
    labels: dict[int, str]
    lanes: list[Lane]
    lane_items: dict[int, tuple[int, int]] = field(default_factory=dict)  # id of value or node -> lanes position, index
    lane_values: dict[int, int] = field(default_factory=dict)


def lower(variant: Variant, anchor: PNode, script: EditScript | None, space: Space, commute: bool) -> Lowered:
    return _Lowering(variant, anchor, script, space, commute).run()


class _Lowering:
    def __init__(self, variant: Variant, anchor: PNode, script: EditScript | None, space: Space, commute: bool) -> None:
        self.variant = variant
        self.anchor = anchor
        self.script = script
        self.space = space
        self.commute = commute
        self.questions: dict[Step, bool] = {}  # step -> it belongs before the core
        self.node_positions: dict[int, int] = {}
        self.value_positions: dict[int, int] = {}
        self.labels: dict[int, str] = {}
        self.lanes: list[Lane] = []
        self.lane_items: dict[int, tuple[int, int]] = {}
        self.dims: dict[str, tuple[int, int]] = {}
        self.pending: list[PNode] = []  # placed, and not asked about yet (a walk by recursion would end at 200 nodes)
        self.todo: list[tuple[PValue, int]] = []
        self.repeats: list[tuple[PNode, int, int]] = []
        self.bindings: dict[str, tuple[int, str]] = {}  # attribute parameter -> where it is bound
        self.by_types: dict[tuple[str, ...], list[int]] = {}
        core = variant.core
        self.before_core = set(map(id, nodes_of([core]))) if core is not None else set()
        self.has_core = core is not None
        self.in_lane: PNode | None = None
        self.lane_outer: dict[int, int] = {}

    # -- the walk ----------------------------------------------------------------------------------

    def run(self) -> Lowered:
        position = self.space.position("anchor", -1, None, "n")
        self.node(self.anchor, position)
        self.drain()
        while True:
            step_down = self.unvisited_user()
            if step_down is None:
                break
            self.down(*step_down)
            self.drain()
        self.engine_questions()
        core = self.variant.core
        core_position = self.node_positions.get(id(core.node)) if core is not None and core.node is not None else None
        return Lowered(
            self.variant,
            self.anchor,
            ordered(self.questions, self.has_core, self.space, self.node_positions.values()),
            self.node_positions,
            self.value_positions,
            core_position,
            self.labels,
            self.lanes,
            self.lane_items,
        )

    def ask(self, question: Step, node: PNode | None) -> None:
        """Ask, on behalf of a pattern node: before the core if that node leads to the core."""
        early = self.has_core and node is not None and id(node) in self.before_core
        if question not in self.questions or early:
            self.questions[question] = early

    def label(self, position: int, text: str) -> None:
        self.labels.setdefault(position, text)

    def node(self, node: PNode, position: int) -> None:
        self.node_positions[id(node)] = position
        self.label(position, node.label)
        self.pending.append(node)

    def visit(self, node: PNode) -> None:
        position = self.node_positions[id(node)]
        if self.space.positions[position].kind != "anchor":
            self.ask(Question("op", (position,), node.types), node)
        for other in self.by_types.setdefault(node.types, []):
            if self.space.positions[position].loops or self.space.positions[other].loops:
                self.ask(Question("distinct", (other, position)), node)
        self.by_types[node.types].append(position)
        self.attributes(node, position)
        self.inputs(node, position)
        for slot, value in enumerate(node.outputs):
            if id(value) not in self.value_positions:
                self.todo.append((value, self.space.position("output", position, slot, "v")))

    def drain(self) -> None:
        while self.pending or self.todo or self.repeats:
            if self.pending:
                self.visit(self.pending.pop(0))
            elif self.todo:
                self.value(*self.todo.pop(0))
            else:
                self.repeat(*self.repeats.pop(0))

    def value(self, value: PValue, position: int, of: PNode | None = None) -> None:
        """`value` stands at `position`, as an input of `of` (None: it was reached from its producer)."""
        known = self.value_positions.get(id(value))
        if known is not None:
            if known != position:
                kind = "same" if value.parameter else "identical"
                self.ask(Question(kind, tuple(sorted((known, position)))), of)
            return
        self.value_positions[id(value)] = position
        self.label(position, label_of(value))
        self.wrappers(value, position)
        if value.literal is not None:
            self.ask(Question("literal", (position,), Literal.of(value.literal)), of)
        elif value.parameter:
            self.parameter(value, position, of)
        elif of is not None and value.node is not None:
            self.up(value, value.node, position, of)

    def wrappers(self, value: PValue, position: int) -> None:
        """What the pattern says about an inner value: its markers, and P.OnlyUse."""
        if value.only_use:
            users = self.variant.users(value)
            reader = users[0][0] if users else None  # a question about consumers: past the core, if value is the core
            self.ask(Question("uses", (position,), len(users)), reader)
            self.ask(Question("inner", (position,)), reader)
        if not value.parameter:
            self.markers(value, position, value.node)

    def parameter(self, value: PValue, position: int, of: PNode | None) -> None:
        optional = value.may_be_absent
        if not optional:
            self.ask(Question("present", (position,)), of)
        self.markers(value, position, of)

    def markers(self, value: PValue, position: int, of: PNode | None) -> None:
        for marker in value.markers:
            if isinstance(marker, (Maybe, Many)):
                continue
            self.ask(Question("marker", (position,), marker), of)
            if isinstance(marker, Dims):
                self.dimensions(marker, position, of)

    def dimensions(self, marker: Dims, position: int, of: PNode | None) -> None:
        for name, axis in marker.axes().items():
            first = self.dims.setdefault(name, (position, axis))
            if first != (position, axis):
                self.ask(Question("dim", (first[0], position), (first[1], axis)), of)

    def up(self, value: PValue, node: PNode, position: int, of: PNode) -> None:
        if node.chain:
            chain = self.space.position("chain_up", position, node.types, "c")
            self.node_positions[id(node)] = chain
            start = self.space.position("chain_end", chain, None, "v")
            source = node.inputs[0]
            assert source is not None
            self.ask(Question("uses", (position,), 1), node)
            self.ask(Question("inner", (position,)), node)
            self.value(source, start, node)
            return
        known = self.node_positions.get(id(node))
        producer = self.space.position("producer", position, None, "n")
        if known is not None:
            self.ask(Question("identical", tuple(sorted((known, producer)))), of)
        else:
            self.node(node, producer)
        if needs_slot(node):
            self.ask(Question("slot", (producer, position), value.slot), of)

    def inputs(self, node: PNode, position: int) -> None:
        many = next((k for k, v in enumerate(node.inputs) if v is not None and self.is_lane_root(node, v)), None)
        fixed = node.inputs if many is None else node.inputs[:many]
        swap = self.commute and len(node.types) == 1 and node.types[0] in schemas.COMMUTATIVE and len(node.inputs) == 2
        swap = swap and many is None
        if swap:
            self.ask(Loop("operand", position), node)
        for slot, value in enumerate(fixed):
            kind = "operand" if swap else "input"
            place = self.space.position(kind, position, slot, "v")
            if value is None:
                self.label(place, f"input {slot} of {node.label}")
                self.ask(Question("absent", (place,)), node)
            else:
                self.label(place, label_of(value))
                self.value(value, place, node)
        if many is not None:
            self.repeats.append((node, position, many))
        else:
            self.ask(Question("no_more", (position,), len(node.inputs)), node)

    def attributes(self, node: PNode, position: int) -> None:
        for name, value in node.attributes.items():
            if isinstance(value, AttributeParameter):
                first = self.bindings.setdefault(value.name, (position, name))
                if first != (position, name):
                    self.ask(Question("same_attribute", (first[0], position), (first[1], name)), node)
            else:
                self.ask(Question("attribute", (position,), AttributeIs.of(name, value)), node)

    # -- down --------------------------------------------------------------------------------------

    def unvisited_user(self) -> tuple[PValue, int, PNode, int] | None:
        """A placed value with a consumer in the pattern that is not placed yet; single-use values first."""
        best: tuple[PValue, int, PNode, int] | None = None
        for node in self.variant.nodes:
            if id(node) in self.node_positions or id(node) in self.variant.lanes:
                continue
            for slot, value in enumerate(node.inputs):
                if value is None or id(value) not in self.value_positions or value.literal is not None:
                    continue
                found = (value, self.value_positions[id(value)], node, slot)
                if node.chain or self.is_sole(value):
                    return found
                best = best or found
        return best

    def is_sole(self, value: PValue) -> bool:
        """Whether the match demands that the pattern's one consumer be the only one."""
        if len(self.variant.users(value)) != 1:
            return False
        return value.only_use or self.is_modified(value) or (value.node is not None and value.node.chain)

    def is_modified(self, value: PValue) -> bool:
        return self.script is not None and id(value) in self.script.modified

    def down(self, value: PValue, position: int, node: PNode, slot: int) -> None:
        if node.chain:
            chain = self.space.position("chain_down", position, node.types, "c")
            self.node_positions[id(node)] = chain
            end = self.space.position("chain_end", chain, None, "v")
            output = node.outputs[0]
            self.value_positions[id(output)] = end
            self.label(end, label_of(output))
            self.wrappers(output, end)
            if self.variant.users(output):  # of a chain that is returned, anybody may read the end
                self.ask(Question("inner", (end,)), node)
                self.ask(Question("uses", (end,), 1), node)
            return
        if self.is_sole(value):
            self.ask(Question("inner", (position,)), None)
            self.ask(Question("uses", (position,), 1), None)
            user = self.space.position("user", position, None, "n")
        else:
            index = sum(
                1
                for p in self.space.positions
                if p.kind == "any_user" and p.parent == position and p.number in self.used()
            )
            self.ask(Loop("any_user", position, index), node)
            user = self.space.position("any_user", position, index, "n")
        self.node(node, user)

    def used(self) -> set[int]:
        return set(self.node_positions.values())

    # -- lanes -------------------------------------------------------------------------------------

    def is_lane_root(self, node: PNode, value: PValue) -> bool:
        return (value.has(Many) or id(value) in self.variant.lanes) and is_variadic(node, value)

    def repeat(self, node: PNode, position: int, slot: int) -> None:
        root = node.inputs[slot]
        assert root is not None
        members = [n for n in nodes_of([root]) if id(n) in self.variant.lanes]
        inner = _Lowering(self.variant, node, self.script, self.space, self.commute)
        inner.has_core = False
        start = self.space.position("lane", position, slot, "v")
        outer_before = dict(self.value_positions)
        inner.value_positions.update(outer_before)
        inner.node_positions.update(self.node_positions)
        inner.bindings.update(self.bindings)
        inner.value_positions.pop(id(root), None)
        inner.value(root, start, node)
        inner.drain()
        captured_values = [
            v for n in members for v in (*n.inputs, *n.outputs) if v is not None and id(v) not in outer_before
        ]
        if root.parameter:
            captured_values.append(root)
        captured_values = list({id(v): v for v in captured_values}.values())
        positions = [inner.value_positions[id(v)] for v in captured_values]
        positions += [inner.node_positions[id(n)] for n in members]
        outer = tuple(sorted({p for s in inner.questions for p in step_positions(s)} & set(outer_before.values())))
        shared = [
            k
            for k, v in enumerate(captured_values)
            if v.parameter and not v.has(Many) and id(v) not in self.variant.lanes
        ]
        name = f"lane_{start}_{self.variant.graph.name}_{self.variant.number}_{len(self.lanes)}"
        self.lanes.append(
            Lane(
                name,
                [s for s, _ in ordered(inner.questions, False, self.space, inner.node_positions.values())],
                start,
                outer,
                tuple(positions),
            )
        )
        bound: dict[
            str, tuple[int, str]
        ] = {}  # an attribute parameter that is bound in the lanes must be equal in all of them
        for index, node_ in enumerate(members, len(captured_values)):
            for attribute, value in node_.attributes.items():
                if isinstance(value, AttributeParameter):
                    bound.setdefault(value.name, (index, attribute))
        step = Lanes(position, slot, name, outer, tuple(shared), tuple(bound.values()))
        self.ask(step, node)
        holder = self.space.position("lanes", position, name, "m")
        for index, item in enumerate([*captured_values, *members]):
            self.lane_items[id(item)] = (holder, index)
            if index in shared and isinstance(item, PValue):
                self.value_positions[id(item)] = self.space.position("lane_item", holder, index, "v")
                self.label(self.value_positions[id(item)], label_of(item))

    # -- order -------------------------------------------------------------------------------------

    def engine_questions(self) -> None:
        """What the engine asks by itself: a kept node whose value changes may be seen by nobody outside."""
        if self.script is None:
            return
        for node in self.variant.nodes:
            if id(node) in self.lane_items:
                continue
            for value in node.outputs:
                position = self.value_positions.get(id(value))
                if position is not None and self.is_modified(value):
                    self.ask(Question("inner", (position,)), None)
                    self.ask(Question("uses", (position,), len(self.variant.users(value))), None)


def label_of(value: PValue) -> str:
    if value.name:
        return value.name
    if value.literal is not None:
        return f"constant {value.literal.tolist()!r}"
    return f"output of {value.node.label}" if value.node is not None else "value"


def needs_slot(node: PNode) -> bool:
    """Whether the producer may have other outputs than the one meant."""
    if len(node.types) == 1:
        info = schemas.op_info(node.types[0], 1000)
        if info is not None and info.max_outputs == 1:
            return False
    return True
