"""From a match and what its callback returned to an edit, by the rule's edit script.

Walks the target in topological order: binds parameters, lets nodes disappear whose required input is absent, plans
what is new and rewires what is kept. Names of new values derive from what they replace: a name of the target that
extends a name of the source (`w_scale`, `w`) takes that value's own name (`conv1.weight_scale`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rewriter import schemas
from rewriter.compiler.edits import EditScript, Kept, is_same_parameter
from rewriter.engine.bindings import match_value, matched_slot, wish
from rewriter.engine.edit import Edit, New, Operand
from rewriter.engine.match import Match, flat
from rewriter.engine.pool import Unshared
from rewriter.engine.types import type_of
from rewriter.engine.views import Value
from rewriter.errors import Decline
from rewriter.pattern.graph import AttributeParameter, PNode, PValue

Bound = Operand | list[Operand]  # of a target value; a list where it is repeated


def edit_of(match: Match, returned: Mapping[str, Any] | None) -> Edit:
    """The edit that the rule's target makes of a match. Raises RuleError for names the callback forgot or invented."""
    script = match._leaf.script
    assert script is not None
    return _ScriptEdit(match, script, dict(returned or {})).run()


class _ScriptEdit:
    def __init__(self, match: Match, script: EditScript, returned: dict[str, Any]) -> None:
        self.match = match
        self.script = script
        self.returned = returned
        self.table = match._table
        self.edit = Edit(match._table, match.root_id, match.rule)
        self.bound: dict[int, Bound] = {}  # id of a target value -> operand
        self.made: dict[str, Bound] = {}  # parameter -> operand, so that it is made once
        self.gone: set[int] = set()  # ids of target nodes that disappeared
        self.changed: set[int] = set()  # ids of target nodes whose value changes

    def run(self) -> Edit:
        self.check_names()
        script = self.script
        for node, kept in script.order:
            if kept is None:
                self.create(node)
            else:
                self.keep(kept)
        for old, new in script.returned:
            self.replace(old, new)
        for node in script.removed:
            self.edit.removals.extend(reversed(flat(self.match._nodes[id(node)])))
        for kept_node in script.kept:
            if id(kept_node.target) in self.gone:
                self.edit.removals.extend(flat(self.match._nodes[id(kept_node.source)]))
        self.check_outside()
        return self.edit

    def check_names(self) -> None:
        script = self.script
        if not script.names.issuperset(self.returned):
            invented = [n for n in self.returned if n not in script.names]
            raise self.edit.error(
                f"the callback returned {', '.join(map(repr, invented))}, which the target {script.target.name!r} does "
                f"not have; it has {', '.join(sorted(script.names))}"
            )
        forgotten = [n for n in script.needed if n not in self.returned]
        if forgotten:
            raise self.edit.error(
                f"the callback did not return {', '.join(map(repr, forgotten))} of the target {script.target.name!r} "
                "(None makes a value absent)"
            )

    # -- operands ----------------------------------------------------------------------------------

    def operand(self, value: PValue | None, node: PNode, slot: int) -> Bound:
        if value is None:
            return 0
        return self.whole(value) if value.literal is None else self.literal(value.literal, node, slot)

    def whole(self, value: PValue) -> Bound:
        """A value of the target that stands for itself, not for what a node reads."""
        if value.parameter:
            assert value.name is not None
            return self.parameter(value.name)
        if value.literal is not None:
            return self.edit.constant(value.literal, wish(self.match, "constant"))
        return self.bound.get(id(value), 0)

    def parameter(self, name: str) -> Bound:
        if name in self.made:
            return self.made[name]
        found: Bound
        if name in self.returned:
            found = self.provided(name, self.returned[name])
        else:
            held = self.match._values.get(name, 0)
            found = list(held) if isinstance(held, list) else held
        self.made[name] = found
        return found

    def provided(self, name: str, value: Any) -> Bound:
        if value is None:
            return 0
        if isinstance(value, Value):
            return value.id
        if isinstance(value, (list, tuple)) and value and all(isinstance(v, (Value, np.ndarray)) for v in value):
            return [v.id if isinstance(v, Value) else self.edit.constant(v, wish(self.match, name)) for v in value]
        if isinstance(value, (np.ndarray, np.generic, int, float)):
            if np.asarray(value).dtype.kind == "O":
                raise self.edit.error(f"the callback returned an array of Python objects for {name!r}")
            return self.edit.constant(np.asarray(value), wish(self.match, name))
        if isinstance(value, Unshared):
            made = self.edit.constant(value.array, wish(self.match, name))
            made.shared = False
            return made
        if isinstance(value, ir.TensorProtocol):
            return self.edit.constant(value, wish(self.match, name))
        raise self.edit.error(
            f"the callback returned {type(value).__name__} for {name!r}; a tensor is a numpy array, an onnx_ir tensor, "
            "a value of the match, or None"
        )

    def literal(self, literal: np.ndarray, node: PNode, slot: int) -> Bound:
        """A constant that the target writes, cast to the type of the inputs that share its type variable."""
        dtype = None
        op = self.op_of(node)
        info = schemas.op_info(op, self.edit.scope.opsets.get(schemas.split_key(op)[0], 1))
        if info is not None:
            kinds = info.input_types
            mine = kinds[min(slot, len(kinds) - 1)]
            for k, other in enumerate(node.inputs):
                if other is None or other.literal is not None or kinds[min(k, len(kinds) - 1)] != mine:
                    continue
                operand = self.operand(other, node, k)
                if isinstance(operand, New):
                    dtype = self.edit.planned_type(operand, search=True).dtype
                elif isinstance(operand, int) and operand:
                    dtype = type_of(self.table, operand).dtype
                if dtype is not None:
                    break
        array = literal if dtype is None else literal.astype(dtype.numpy())
        return self.edit.constant(array, wish(self.match, "constant"))

    # -- nodes -------------------------------------------------------------------------------------

    def op_of(self, node: PNode) -> str:
        """The op of a target node in this match."""
        if len(node.types) == 1:
            return node.types[0]
        source = self.script.tied.get(id(node)) or self.script.inherit[id(node)]
        return self.table.op[flat(self.match._nodes[id(source)])[0]]

    def create(self, node: PNode) -> None:
        op = self.op_of(node)
        lanes = self.lanes_of(node)
        if lanes is None:
            made = self.create_one(node, op, None)
            for slot, value in enumerate(node.outputs):
                self.bound[id(value)] = made[slot] if made else 0
            return
        columns: list[list[Operand]] = [[] for _ in node.outputs]
        for lane in range(lanes):
            made = self.create_one(node, op, lane)
            for slot, column in enumerate(columns):
                column.append(made[slot] if made else 0)
        for value, column in zip(node.outputs, columns, strict=True):
            self.bound[id(value)] = column

    def lanes_of(self, node: PNode) -> int | None:
        """How often a node is repeated: as many times as its Many input has values, unless it gathers them."""
        for slot, value in enumerate(node.inputs):
            operand = self.operand(value, node, slot) if value is not None and value.literal is None else 0
            if isinstance(operand, list):
                from rewriter.compiler.variants import is_variadic

                assert value is not None
                return None if is_variadic(node, value) else len(operand)
        return None

    def create_one(self, node: PNode, op: str, lane: int | None) -> list[New] | None:
        """Plan one new node; None where it disappears because a required input is absent."""
        inputs: list[Operand] = []
        domain, _ = schemas.split_key(op)
        info = schemas.op_info(op, self.edit.scope.opsets.get(domain, 1))
        for slot, value in enumerate(node.inputs):
            operand = self.operand(value, node, slot)
            if isinstance(operand, list):
                inputs.extend(operand if lane is None else [operand[lane]])
                continue
            if not operand and value is not None and self.is_required(info, slot):
                self.gone.add(id(node))
                return None
            inputs.append(operand)
        self.changed.add(id(node))
        attributes: dict[str, Any] = {}
        heir = self.script.inherit.get(id(node))
        if heir is not None:
            donor = flat(self.match._nodes[id(heir)])[0]
            same = self.table.op[donor] == op
            for name, value in self.table.attributes(donor).items():
                if same or (info is not None and name in info.attribute_types):
                    attributes[name] = value
        for name, written in node.attributes.items():
            attribute = self.attribute(written)
            if attribute is None:
                attributes.pop(name, None)
            else:
                attributes[name] = attribute
        optional = 1 if info is None else info.min_outputs
        wishes = [
            wish(self.match, v.name or schemas.split_key(op)[1].lower())
            if id(v) in self.script.read or slot < optional
            else ""
            for slot, v in enumerate(node.outputs)
        ]
        return self.edit.plan(op, inputs, attributes, wishes, wishes[0]).outputs

    def is_required(self, info: schemas.OpInfo | None, slot: int) -> bool:
        if info is None:
            return slot == 0
        return slot < len(info.required) and info.required[slot]

    def attribute(self, written: Any) -> Any:
        if not isinstance(written, AttributeParameter):
            return written
        name = written.name
        if name in self.returned:
            value = self.returned[name]
            return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        if name in self.script.variant.graph.attribute_parameters:
            return self.match.attribute(name)
        return written.default

    def keep(self, kept: Kept) -> None:
        """Rewire a tied node where it differs; for a chain, its first node (or, if it is empty, those that read it)."""
        target, source = kept.target, kept.source
        nodes = flat(self.match._nodes[id(source)])
        if target.chain:
            self.keep_chain(kept, nodes)
            return
        for index, node in enumerate(nodes):
            lane = index if id(source) in self.script.variant.lanes else None
            if not self.keep_one(kept, node, lane):
                self.gone.add(id(target))
        gone = id(target) in self.gone
        for value in target.outputs:
            columns = [
                self.table.outputs[n][value.slot] if value.slot < len(self.table.outputs[n]) else 0 for n in nodes
            ]
            if gone:
                self.bound[id(value)] = 0
            elif id(source) in self.script.variant.lanes:
                self.bound[id(value)] = list(columns)
            else:
                self.bound[id(value)] = columns[0]

    def keep_one(self, kept: Kept, node: int, lane: int | None) -> bool:
        target = kept.target
        info = schemas.op_info(self.table.op[node], self.table.version(node))
        have = self.table.inputs[node]
        writes: list[tuple[int, PValue | None]] = list(kept.inputs)
        writes += [(slot, target.inputs[slot]) for slot, name in kept.overridable if name in self.returned]
        known = {slot for slot, _ in writes}  # an empty chain stands for what goes into it, which may be another value
        writes += [
            (slot, v)
            for slot, v in enumerate(target.inputs)
            if slot not in known and v is not None and v.node is not None and v.node.chain
        ]
        upstream = any(v is not None and v.node is not None and id(v.node) in self.changed for v in target.inputs)
        planned: list[tuple[int, Operand]] = []
        for slot, value in writes:
            operand = self.operand(value, target, slot)
            if isinstance(operand, list):
                if lane is None:
                    from rewriter.compiler.variants import is_variadic

                    if value is not None and is_variadic(target, value):
                        for extra in range(max(len(operand), len(have) - slot)):
                            planned.append((slot + extra, operand[extra] if extra < len(operand) else 0))
                    continue
                operand = operand[lane]
            if not operand and value is not None and self.is_required(info, slot):
                return False
            planned.append((slot, operand))
        for slot, operand in planned:
            slot = matched_slot(self.match, kept.source, node, lane, slot)
            current = have[slot] if slot < len(have) else 0
            if isinstance(operand, New) or operand != current:
                self.edit.inputs.append((node, slot, operand))
                self.changed.add(id(target))
        for name, written in kept.attributes.items():
            if is_same_parameter(written, kept.source.attributes.get(name)) and written.name not in self.returned:
                continue
            value = self.attribute(written)
            if value != self.table.attributes(node).get(name) and not (
                value is not None
                and name not in self.table.attributes(node)
                and value == self.table.attribute(node, name)
            ):
                self.edit.attributes.append((node, name, value))
                self.changed.add(id(target))
        if upstream:
            self.changed.add(id(target))
        return True

    def keep_chain(self, kept: Kept, nodes: tuple[int, ...]) -> None:
        target = kept.target
        output = target.outputs[0]
        start = self.operand(target.inputs[0], target, 0)
        assert not isinstance(start, list)
        if not nodes:
            self.bound[id(output)] = start
            if isinstance(start, New) or start != match_value(self.match, kept.source.outputs[0]):
                self.changed.add(id(target))
            return
        if isinstance(start, New) or self.table.inputs[nodes[0]][0] != start:
            self.edit.inputs.append((nodes[0], 0, start))
            self.changed.add(id(target))
        source = target.inputs[0]
        if source is not None and source.node is not None and id(source.node) in self.changed:
            self.changed.add(id(target))
        self.bound[id(output)] = self.table.outputs[nodes[-1]][0]

    # -- returned values ---------------------------------------------------------------------------

    def replace(self, old: PValue, new: PValue) -> None:
        assert old.node is not None
        captured = flat(self.match._nodes[id(old.node)])
        if captured:
            before = self.table.outputs[captured[-1]][old.slot]
        else:  # an empty chain: its value is what goes in
            before = match_value(self.match, old)
        operand = self.whole(new)
        if isinstance(operand, list):
            raise self.edit.error(f"the returned value {new.name!r} is repeated; only a single value can be returned")
        if operand == before:
            return
        if not operand:
            raise self.edit.error(f"the returned value {new.name or old.name!r} may not be absent")
        if isinstance(operand, int):
            source, old_node = self.table.producer[operand], self.table.producer[before]
            if (
                self.table.op[old_node] == "Identity"
                and self.table.output_count[before]
                and (
                    not source
                    or self.table.output_count[operand]
                    or self.table.scope_of[source] != self.table.value_scope[before]
                )
            ):
                raise Decline(f"{self.table.name[before]!r} is a graph output that only an Identity can produce")
        self.edit.replacements.append((before, operand))

    def check_outside(self) -> None:
        """A kept node whose value changes may be seen by nobody outside of the match, unless its value is returned."""
        if not self.changed.isdisjoint(id(kept.target) for kept in self.script.kept):
            self.check_changed()

    def check_changed(self) -> None:
        table = self.table
        returned = {id(v) for v in self.script.variant.outputs}
        inside = {n for captured in self.match._nodes.values() for n in flat(captured)}
        for kept in self.script.kept:
            if id(kept.target) not in self.changed:
                continue
            for value in kept.source.outputs:
                if id(value) in returned:
                    continue
                for node in flat(self.match._nodes[id(kept.source)]):
                    outputs = table.outputs[node]
                    held = outputs[value.slot] if value.slot < len(outputs) else 0
                    if table.output_count[held]:
                        raise Decline(f"{table.name[held]!r} would change, but is also a graph output")
                    if any(user not in inside for user in table.uses[held]):
                        raise Decline(f"{table.name[held]!r} would change, but has consumers outside of the match")
