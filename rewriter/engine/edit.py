"""Edit: a change to the table, built whole, checked, then applied. Inside a rewrite there is nothing to undo.

Target scripts compile to this interface (`engine.script_edit`), and rules without a target use it through `m.edit`.
Building an edit touches nothing: new values are promises (`New`). `check` looks at names of ops, inputs and attributes
against the schema at the model's opset, at the types of what is replaced, and at the order of nodes: an edit that would
close a cycle is refused. `apply` performs it by the table's primitives and takes away what it left without use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rewriter import schemas
from rewriter.engine import constants
from rewriter.engine.checking import check
from rewriter.engine.held import Held, dtype_of, hold, shape_of, tensor_of
from rewriter.engine.inline import inline_body
from rewriter.engine.order import Placement
from rewriter.engine.pool import ConstantPool
from rewriter.engine.scope import NewNode, Scope, ValueType
from rewriter.engine.table import Table
from rewriter.engine.types import UNKNOWN, Known, infer, stored, type_of
from rewriter.engine.views import Node, Value
from rewriter.errors import RuleError

if TYPE_CHECKING:
    from rewriter.rule import Rule


@dataclass(eq=False)
class New:
    """A value that the edit will make: the output of a new node ("": one that nobody wants), or a new constant."""

    wish: str
    id: int = 0
    shared: bool = True
    node: PlannedNode | None = None


Operand = int | New  # a value of the table (0: absent), or one that the edit makes
PublicOperand = Value | New | np.ndarray | ir.TensorProtocol | int | float | None


@dataclass(eq=False)
class PlannedNode:
    op: str
    inputs: list[Operand]
    outputs: list[New]
    attributes: dict[str, Any]
    name: str


@dataclass
class Effect:
    """What an applied edit did, for the report and the worklist."""

    added: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    initializers: list[int] = field(default_factory=list)
    inlined: bool = False


class Edit:
    """A change around one node, in its scope."""

    def __init__(self, table: Table, root: int, rule: Rule) -> None:
        self.table = table
        self.root = root
        self.rule = rule
        self.scope: Scope = table.scope(root)
        self.nodes: list[PlannedNode] = []
        self.constants: list[tuple[New, Held]] = []
        self.inputs: list[tuple[int, int, Operand]] = []
        self.attributes: list[tuple[int, str, Any]] = []
        self.replacements: list[tuple[int, Operand]] = []
        self.removals: list[int] = []
        self.types: list[tuple[int, ir.DataType]] = []
        self.inlined: list[tuple[int, str]] = []
        self.labels: dict[int, str] = {}

    # -- building: the public interface ------------------------------------------------------------

    def constant(self, array: np.ndarray | ir.TensorProtocol | int | float, name: str = "constant") -> New:
        """A new constant: an initializer, or a Constant node in a function body."""
        if isinstance(array, (np.ndarray, np.generic)) and array.dtype.kind in "OUS":
            raise self.error(f"the constant {name!r} holds Python objects or text; pass numbers, or an onnx_ir tensor")
        if isinstance(array, (np.ndarray, np.generic, int, float)):  # asking a protocol is dear: the common kinds first
            held = hold(array)
        else:
            held = array
        made = New(name)
        self.constants.append((made, held))
        return made

    def node(
        self,
        op_type: str,
        inputs: Sequence[PublicOperand],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        name: str | None = None,
    ) -> New:
        """A new node; returns its first output (`.node.outputs` has all of them)."""
        key = schemas.op_key(domain, op_type)
        return self.plan(key, [self.operand(v) for v in inputs], dict(attributes or {}), outputs, name).outputs[0]

    def set_input(self, node: Node, slot: int, value: PublicOperand) -> None:
        """Rewire one input of a node."""
        self.inputs.append((node.id, slot, self.operand(value)))

    def set_attribute(self, node: Node, name: str, value: Any) -> None:
        """Write an attribute, or take it away (None)."""
        self.attributes.append((node.id, name, value))

    def set_type(self, value: Value, dtype: ir.DataType) -> None:
        """Say that the edit makes a kept value one of another element type, so that what the model declares follows."""
        self.types.append((value.id, dtype))

    def replace(self, value: Value, by: PublicOperand) -> None:
        """Let everything that reads `value` read `by`; a graph output keeps its name."""
        if not (isinstance(by, Value) and by.id == value.id):
            self.replacements.append((value.id, self.operand(by)))

    def remove(self, node: Node) -> None:
        """Take a node away, once nothing uses it any more."""
        self.removals.append(node.id)

    def inline(self, node: Node, attribute: str) -> None:
        """Move a body of the node (`"then_branch"` of an If) into the node's scope, with its outputs in their place."""
        self.inlined.append((node.id, attribute))

    def operand(self, value: PublicOperand) -> Operand:
        if value is None:
            return 0
        if isinstance(value, Value):
            return value.id
        if isinstance(value, New):
            return value
        if isinstance(value, (np.ndarray, np.generic, int, float)) or isinstance(value, ir.TensorProtocol):  # noqa: SIM101
            return self.constant(value)
        raise self.error(f"{value!r} is no operand: pass a value, what m.edit made, a tensor, a number or None")

    def plan(
        self, op: str, inputs: list[Operand], attributes: dict[str, Any], outputs: int | list[str], name: str | None
    ) -> PlannedNode:
        wish = name or f"{self.table.label(self.root)}_{schemas.split_key(op)[1]}"
        wishes = [wish if k == 0 else f"{wish}_{k}" for k in range(outputs)] if isinstance(outputs, int) else outputs
        node = PlannedNode(op, inputs, [New(w) for w in wishes], attributes, wish)
        for made in node.outputs:
            made.node = node
        self.nodes.append(node)
        return node

    def constants_at_risk(self) -> list[int]:
        """Constants of the model that the edit may make into something else: what it replaces or computes anew."""
        table = self.table
        candidates = [old for old, _ in self.replacements]
        for node in dict.fromkeys(node for node, *_ in (*self.inputs, *self.attributes)):
            if table.op[node] in constants.FOLDABLE:
                candidates += [v for v in table.outputs[node] if v]
        return [value for value in candidates if constants.is_constant(table, value)]

    @property
    def is_empty(self) -> bool:
        return not (self.nodes or self.inputs or self.attributes or self.replacements or self.removals or self.inlined)

    # -- checking ----------------------------------------------------------------------------------

    def error(self, message: str) -> RuleError:
        return RuleError(
            f"rule {self.rule.name!r} ({self.rule.place}), at node {self.table.label(self.root)!r}: {message}"
        )

    def check(self) -> Placement:
        """Refuse what would break the model, and find the place of what is new (see `engine.checking`)."""
        return check(self)

    def planned_type(self, wanted: New, search: bool = False) -> ValueType:
        """What the schemas say of a value that the edit will make; `search` infers the model's own types for it."""
        known: dict[int, Known] = {
            id(new): (ValueType(dtype_of(held), shape_of(held)), tensor_of(held)) for new, held in self.constants
        }

        def of(value: Operand) -> Known | None:
            if isinstance(value, New):
                return known.get(id(value), (UNKNOWN, None))
            return (type_of(self.table, value, search=search), stored(self.table, value)) if value else None

        for node in self.nodes:
            version = self.scope.opsets.get(schemas.split_key(node.op)[0], 1)
            types = infer(
                self.table, node.op, version, [of(v) for v in node.inputs], len(node.outputs), node.attributes
            )
            known.update((id(new), (found, None)) for new, found in zip(node.outputs, types, strict=True))
        return known.get(id(wanted), (UNKNOWN, None))[0]

    # -- applying ----------------------------------------------------------------------------------

    def apply(self, placement: Placement, share: ConstantPool) -> Effect:
        """Perform the edit. Nothing here can fail for a reason that `check` could have seen."""
        table, scope = self.table, self.scope
        effect = Effect()
        orphans: list[int] = []
        self.labels = {node: table.label(node) for node in self.removals}
        placement.make_room(table, scope)
        in_function = bool(self.constants) and any(s.kind == "function" for s in (scope, *enclosing(scope)))
        for made, held in self.constants:
            if in_function:
                made.id = table.add_value(table.fresh_name(made.wish), scope.id)
                handle = NewNode(table.fresh_node_name(made.wish), {"value": tensor_of(held)})
                effect.added.append(table.add_node("Constant", [], [made.id], handle, scope, scope.first))
            else:
                made.id, is_new = share.constant(table, scope, held, made.wish, made.shared)
                if is_new:
                    effect.initializers.append(made.id)
        taken = self.take_over()
        read = {v for planned in self.nodes for v in planned.inputs if type(v) is int} if taken else set()
        read.update(v for _, _, v in self.inputs if type(v) is int)
        renamed = {  # what a new node reads of an old value it takes over
            old: self.release(old, effect) for old in taken.values() if old in read or not self.give_up(old)
        }

        def resolved(value: Operand) -> int:
            return value.id if isinstance(value, New) else renamed.get(value, value)

        for planned, before in zip(self.nodes, placement.before, strict=True):
            outputs: list[int] = []
            for made in planned.outputs:
                old = taken.get(id(made), 0)
                if old:
                    made.id = old
                elif made.wish:
                    made.id = table.add_value(table.fresh_name(made.wish), scope.id)
                outputs.append(made.id)
            while not outputs[-1]:
                outputs.pop()
            handle = NewNode(table.fresh_node_name(planned.name), planned.attributes)
            inputs = [resolved(v) for v in planned.inputs]
            while inputs and not inputs[-1]:
                inputs.pop()
            effect.added.append(table.add_node(planned.op, inputs, outputs, handle, scope, before))
        for node, attribute in self.inlined:
            orphans.extend(table.inputs[node])
            inline_body(table, node, attribute, effect)
            effect.inlined = True
        for node, slot, value in self.inputs:
            if slot < len(table.inputs[node]):
                orphans.append(table.inputs[node][slot])
            table.set_input(node, slot, resolved(value))
            effect.changed.append(node)
        for node, name, value in self.attributes:
            table.set_attribute(node, name, value)
            effect.changed.append(node)
        for value, dtype in self.types:
            table.set_type(value, dtype)
        for old, new in self.replacements:
            if not (isinstance(new, New) and taken.get(id(new)) == old):
                self.substitute(old, resolved(new), effect)
        self.clean(orphans, effect)
        effect.changed = list(dict.fromkeys(effect.changed))
        return effect

    def take_over(self) -> dict[int, int]:
        """New outputs that become an old value, name and uses and all: id of New -> value."""
        taken: dict[int, int] = {}
        for old, new in self.replacements:
            if isinstance(new, New) and new.node is not None and id(new) not in taken:
                taken[id(new)] = old
        return taken

    def give_up(self, value: int) -> bool:
        """Take a value that nothing will read from its producer, if that is to go and makes nothing else."""
        producer = self.table.producer[value]
        if producer not in self.removals or len(self.table.outputs[producer]) > 1:
            return False
        self.table.set_output(producer, 0, 0)
        return True

    def release(self, value: int, effect: Effect) -> int:
        """Let go of a value: its producer, if it stays, writes a fresh one instead, which is returned."""
        table = self.table
        producer = table.producer[value]
        if not producer:
            return value
        fresh = table.add_value(table.fresh_name(table.name[value] + "_old"), self.scope.id)
        table.set_output(producer, table.outputs[producer].index(value), fresh)
        effect.changed.append(producer)
        return fresh

    def substitute(self, old: int, new: int, effect: Effect) -> None:
        table = self.table
        if table.output_count[old]:
            source = table.producer[new]
            own = source and table.scope_of[source] == table.value_scope[old] and not table.output_count[new]
            if own:
                old_producer = table.producer[old]
                self.release(old, effect)
                table.set_output(source, table.outputs[source].index(new), old)
                effect.changed.append(source)
                if old_producer:
                    self.removals.append(old_producer)
                old, new = new, old
            else:
                self.release(old, effect)
                handle = NewNode(table.fresh_node_name(table.name[old] + "_identity"), {})
                maker = table.owner_in(source, self.scope) if source else 0
                before = table.next[maker] if maker else self.scope.first
                effect.added.append(table.add_node("Identity", [new], [old], handle, self.scope, before))
        for node in dict.fromkeys(list(table.uses[old])):
            if node in effect.added and table.op[node] == "Identity" and table.outputs[node] == [old]:
                continue
            for slot, value in enumerate(list(table.inputs[node])):
                if value == old:
                    table.set_input(node, slot, new)
                    effect.changed.append(node)

    def clean(self, orphans: list[int], effect: Effect) -> None:
        """Take away the matched nodes and the constants that nothing uses any more."""
        table = self.table
        candidates = set(self.removals)
        waiting = list(reversed(dict.fromkeys(self.removals)))
        while waiting:
            node = waiting.pop()
            if not table.op[node] or not self.is_unused(node):
                continue
            read = table.inputs[node]
            orphans.extend(read)
            effect.removed.append(self.labels.get(node) or table.label(node))
            table.remove_node(node)
            waiting.extend(maker for v in reversed(read) if (maker := table.producer[v]) in candidates)
        stack = list(dict.fromkeys(orphans))
        while stack:
            value = stack.pop()
            if not value or table.uses[value] or table.output_count[value]:
                continue
            node = table.producer[value]
            if not node:
                if (
                    value in table.initializer
                    and value not in table.overridable
                    and not table.access.is_annotated(table.name[value])
                ):
                    table.drop_initializer(value)
            elif node not in effect.added and self.is_unused(node) and constants.is_constant(table, value):
                stack.extend(table.inputs[node])
                effect.removed.append(table.label(node))
                table.remove_node(node)

    def is_unused(self, node: int) -> bool:
        table = self.table
        return not any(table.uses[v] or table.output_count[v] for v in table.outputs[node] if v)


def enclosing(scope: Scope) -> list[Scope]:
    found: list[Scope] = []
    while scope.parent is not None:
        scope = scope.parent
        found.append(scope)
    return found
