"""The flat table: the one representation of a model that is matched and edited.

Nodes and values are integers into parallel lists, so that a compiled matcher is a few list look-ups per node. Id 0 is
"none" for both: node 0 has no type and no inputs, value 0 no producer and no uses. So `op[producer[v]]` never needs a
guard, and an absent input is simply value 0. All scopes (the main graph, bodies of If/Loop/Scan, model-local
functions) live in one table; a value of an outer scope that a body uses has the body's nodes among its uses.

What is dear stays behind handles and is read on demand through `Access` (the source of the model): attributes, tensors,
declared types. The table remembers what was edited (`added`, `removed`, `changed`, ...): that journal is the only
thing that a sink ever writes back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from rewriter import schemas
from rewriter.engine.held import Held
from rewriter.engine.scope import Access, AttributeReference, NewNode, Scope, ValueType
from rewriter.errors import Decline, ModelError
from rewriter.pattern.graph import AttributeValue

GAP = 1 << 32  # between the ranks of neighbours, so that insertions need no renumbering


class Table:
    """A model as parallel lists, with the journal of what was edited."""

    def __init__(self, access: Access, ir_version: int, producer: str = "") -> None:
        self.access = access
        self.ir_version = ir_version
        # nodes
        self.op: list[str] = [""]
        self.inputs: list[list[int]] = [[]]
        self.outputs: list[list[int]] = [[]]
        self.scope_of: list[int] = [0]
        self.handle: list[Any] = [None]
        self.rank: list[int] = [0]
        self.next: list[int] = [0]
        self.previous: list[int] = [0]
        # values
        self.name: list[str] = [""]
        self.producer: list[int] = [0]
        self.uses: list[list[int]] = [[]]
        self.output_count: list[int] = [0]
        self.value_scope: list[int] = [0]
        self.is_input: set[int] = set()
        self.parameter: dict[int, tuple[str, int]] = {}  # inputs of functions: op key and slot of what calls pass
        self.overridable: set[int] = set()
        self.initializer: dict[int, Any] = {}
        self.scopes: list[Scope] = []
        self.by_op: dict[str, list[int]] = {}
        # journal
        self.added: set[int] = set()
        self.removed: set[int] = set()
        self.changed: set[int] = set()
        self.changed_attributes: dict[int, dict[str, Any]] = {}
        self.new_initializers: dict[int, Held] = {}
        self.dead_initializers: set[int] = set()
        self.reordered: set[int] = set()
        self.dropped_values: set[int] = set()
        self.changed_types: dict[int, ir.DataType] = {}
        # what the edit at hand touched, for the worklist
        self.touched_nodes: set[int] = set()
        self.touched_values: set[int] = set()
        self.touched_producers: set[int] = set()
        # types found since the last edit (see engine.types), with and without inference over the model
        self.types_known: dict[int, ValueType] = {}
        self.types_stated: dict[int, ValueType] = {}
        self._attributes: dict[int, dict[str, Any]] = {}
        self._names: set[str] | None = None
        self._node_names: set[str] = set()
        self._numbers: dict[tuple[bool, str], int] = {}  # the last number behind a wish (of a node's name or not)
        self.given_names: dict[str, dict[str, None]] = {}  # wish -> names given for it, in order

    # -- reading -----------------------------------------------------------------------------------

    def attributes(self, node: int) -> dict[str, Any]:
        """The attributes that the node states (no defaults)."""
        found = self._attributes.get(node)
        if found is None:
            handle = self.handle[node]
            found = handle.attributes if type(handle) is NewNode else self.access.attributes(handle)
            self._attributes[node] = found
        return found

    def attribute(self, node: int, name: str) -> Any:
        """The attribute's value, the schema's default where it is absent, None where there is none."""
        found = self.attributes(node).get(name)
        if found is None:
            info = schemas.op_info(self.op[node], self.version(node))
            if info is not None:
                return info.defaults.get(name)
        return found

    def known_attribute(self, node: int, name: str) -> Any:
        """`attribute`, where it is known and of the schema's type.

        Raises Decline where it stands for an attribute of the enclosing function, ModelError where its type is wrong.
        """
        found = self.attribute(node, name)
        if isinstance(found, AttributeReference):
            raise Decline(f"attribute {name!r} of the {self.op[node]} depends on the function's caller")
        info = schemas.op_info(self.op[node], self.version(node))
        if info is not None and name in info.attribute_types and isinstance(found, (int, float, str, list)):
            try:
                schemas.attribute_value(found, info.attribute_types[name])
            except ValueError as error:
                raise ModelError(f"node {self.label(node)!r}: attribute {name!r} of {self.op[node]}: {error}") from None
        return found

    def version(self, node: int, key: str | None = None) -> int:
        """The opset version that the node's scope imports for the domain of `key` (default: the node's own op)."""
        domain, _ = schemas.split_key(self.op[node] if key is None else key)
        return self.scopes[self.scope_of[node]].opsets.get(domain, 1)

    def node_name(self, node: int) -> str:
        handle = self.handle[node]
        return handle.name if type(handle) is NewNode else self.access.node_name(handle)

    def label(self, node: int) -> str:
        """How messages call a node: its name, else its first output."""
        return self.node_name(node) or next((self.name[v] for v in self.outputs[node] if v), f"#{node}")

    def nodes(self, scope: Scope) -> Iterator[int]:
        """The scope's nodes in order, edits included."""
        node = scope.first
        while node:
            yield node
            node = self.next[node]

    def scope(self, node: int) -> Scope:
        return self.scopes[self.scope_of[node]]

    def title(self, scope: Scope) -> str:
        """How people call a scope: "" for the main graph."""
        if scope.kind == "function":
            return f"function {scope.name}"
        return f"{scope.attribute} of {self.label(scope.owner)}" if scope.kind == "body" else ""

    def owner_in(self, node: int, scope: Scope) -> int:
        """The node itself, or the node of `scope` in whose body it lies; 0 where it lies elsewhere."""
        while node and self.scope_of[node] != scope.id:
            node = self.scope(node).owner
        return node

    def place(self, node: int) -> tuple[int, ...]:
        """Where a node stands in the model, for sorting: the main graph first, bodies with the node that owns them."""
        path: list[int] = []
        scope = self.scope(node)
        while node:
            path.append(self.rank[node])
            scope = self.scope(node)
            node = scope.owner
        return (scope.id, *reversed(path))

    # -- building (used by sources) ----------------------------------------------------------------

    def add_scope(self, scope: Scope) -> Scope:
        self.scopes.append(scope)
        return scope

    def add_value(self, name: str, scope: int) -> int:
        value = len(self.name)
        self.name.append(name)
        self.producer.append(0)
        self.uses.append([])
        self.output_count.append(0)
        self.value_scope.append(scope)
        return value

    def link(self, scope: Scope) -> None:
        """Put the scope's nodes in the order in which they were read."""
        nodes = scope.nodes
        if nodes:
            scope.first, scope.last = nodes[0], nodes[-1]
            for a, b in itertools.pairwise(nodes):
                self.next[a] = b
                self.previous[b] = a

    def index_ops(self) -> None:
        """One pass: which nodes there are of each op type."""
        by_op: dict[str, list[int]] = {}
        for node in range(1, len(self.op)):
            kind = self.op[node]
            if kind in by_op:
                by_op[kind].append(node)
            else:
                by_op[kind] = [node]
        self.by_op = by_op

    # -- names -------------------------------------------------------------------------------------

    def fresh_name(self, wish: str) -> str:
        """`wish`, or `wish_1`, ...: a name that no value of the model has, reserved from now on."""
        return self._reserve(wish, self._value_pool(), False)

    def fresh_node_name(self, wish: str) -> str:
        """The same for nodes. (A node and a value may share a name.)"""
        self._value_pool()
        return self._reserve(wish, self._node_names, True)

    def _value_pool(self) -> set[str]:
        if self._names is None:
            self._names = self.access.other_names(self.scopes)
            self._names.update(self.name)
            self._node_names = set(self._names)
        return self._names

    def _reserve(self, wish: str, pool: set[str], of_node: bool) -> str:
        name = wish
        if name in pool or not name:
            number = self._numbers.get((of_node, wish), 0)
            while name in pool or not name:
                number += 1
                name = f"{wish}_{number}"
            self._numbers[of_node, wish] = number
        pool.add(name)
        self.given_names.setdefault(wish, {})[name] = None  # a value and a node may have the same
        return name

    # -- order -------------------------------------------------------------------------------------

    def unlink(self, node: int) -> None:
        scope = self.scope(node)
        before, after = self.previous[node], self.next[node]
        if before:
            self.next[before] = after
        else:
            scope.first = after
        if after:
            self.previous[after] = before
        else:
            scope.last = before
        self.next[node] = self.previous[node] = 0

    def insert(self, node: int, before: int, scope: Scope) -> None:
        """Link `node` into `scope` right before `before`, or at the end where that is 0."""
        after = before
        earlier = self.previous[after] if after else scope.last
        self.previous[node], self.next[node] = earlier, after
        if earlier:
            self.next[earlier] = node
        else:
            scope.first = node
        if after:
            self.previous[after] = node
        else:
            scope.last = node
        low = self.rank[earlier] if earlier else (self.rank[after] - 2 * GAP if after else 0)
        high = self.rank[after] if after else low + 2 * GAP
        if high - low < 2:
            for place, other in enumerate(self.nodes(scope)):
                self.rank[other] = (place + 1) * GAP
        else:
            self.rank[node] = (low + high) // 2
        self.reordered.add(scope.id)

    # -- primitive edits: each keeps producers, uses and the journal in step -----------------------

    def add_node(
        self, op: str, inputs: Sequence[int], outputs: Sequence[int], handle: NewNode, scope: Scope, before: int
    ) -> int:
        node = len(self.op)
        self.op.append(op)
        self.inputs.append(list(inputs))
        self.outputs.append(list(outputs))
        self.scope_of.append(scope.id)
        self.handle.append(handle)
        self.rank.append(0)
        self.next.append(0)
        self.previous.append(0)
        for value in inputs:
            if value:
                self.uses[value].append(node)
        for value in outputs:
            if value:
                self.producer[value] = node
        self.insert(node, before, scope)
        self.by_op.setdefault(op, []).append(node)
        self.added.add(node)
        self.touched_nodes.add(node)
        self.touched_values.update(inputs)
        self.touched_producers.update(outputs)
        return node

    def set_input(self, node: int, slot: int, value: int) -> None:
        inputs = self.inputs[node]
        while len(inputs) <= slot:
            inputs.append(0)
        old = inputs[slot]
        if old:
            self.uses[old].remove(node)
        inputs[slot] = value
        if value:
            self.uses[value].append(node)
        while inputs and not inputs[-1]:
            inputs.pop()
        self.changed.add(node)
        self.touched_nodes.add(node)
        self.touched_values.update((old, value))

    def set_output(self, node: int, slot: int, value: int) -> None:
        """Let the node produce `value` at `slot`; what stood there is left without a producer."""
        outputs = self.outputs[node]
        while len(outputs) <= slot:
            outputs.append(0)
        old = outputs[slot]
        if old and self.producer[old] == node:
            self.producer[old] = 0
            self.dropped_values.add(old)
        outputs[slot] = value
        if value:
            self.producer[value] = node
        self.changed.add(node)
        self.touched_nodes.add(node)
        self.touched_producers.update((old, value))

    def set_attribute(self, node: int, name: str, value: AttributeValue | None) -> None:
        """Set an attribute, or take it away (None)."""
        stated = dict(self.attributes(node))
        if value is None:
            stated.pop(name, None)
        else:
            stated[name] = value
        self._attributes[node] = stated
        self.touched_nodes.add(node)
        handle = self.handle[node]
        if type(handle) is NewNode:
            handle.attributes = stated
        else:
            self.changed_attributes.setdefault(node, {})[name] = value

    def set_type(self, value: int, dtype: ir.DataType) -> None:
        """State that a value is of another element type from now on; what the model declares of it is out of date."""
        self.changed_types[value] = dtype
        self.touched_values.add(value)

    def remove_node(self, node: int) -> None:
        """Take a node away, and all that is in its bodies."""
        for scope in self.scopes:
            if scope.owner == node:
                for value in scope.outputs:
                    self.output_count[value] -= 1
                scope.outputs = []
                for member in list(self.nodes(scope)):
                    self.remove_node(member)
        self.touched_values.update(self.inputs[node])
        self.touched_producers.update(self.outputs[node])
        for value in self.inputs[node]:
            if value:
                self.uses[value].remove(node)
        for value in self.outputs[node]:
            if value and self.producer[value] == node:
                self.producer[value] = 0
                self.dropped_values.add(value)
        self.unlink(node)
        self.inputs[node], self.outputs[node] = [], []
        self.op[node] = ""
        if node in self.added:
            self.added.discard(node)
        else:
            self.removed.add(node)

    def add_initializer(self, name: str, held: Held, scope: Scope) -> int:
        value = self.add_value(name, scope.id)
        self.initializer[value] = held
        self.new_initializers[value] = held
        return value

    def made_initializers(self) -> list[tuple[int, Held]]:
        """The new initializers in the order in which the model reads them first, whatever order they were made in."""
        return sorted(self.new_initializers.items(), key=lambda item: self.first_place(item[0]))

    def first_place(self, value: int, of_reader: bool = False) -> tuple[tuple[int, ...], int]:
        """For sorting: where a value is produced, and as which output; without a producer (or if asked for), where it
        is read first, and as which input."""
        node = 0 if of_reader else self.producer[value]
        if node:
            return self.place(node), self.outputs[node].index(value)
        user = min(self.uses[value], key=self.place, default=0)
        return (self.place(user), self.inputs[user].index(value)) if user else ((), 0)

    def drop_initializer(self, value: int) -> None:
        """Forget an initializer that nothing uses any more."""
        if value in self.new_initializers:
            del self.new_initializers[value]
        else:
            self.dead_initializers.add(value)
        self.initializer.pop(value, None)

    @property
    def is_changed(self) -> bool:
        return bool(
            self.added
            or self.removed
            or self.changed
            or self.changed_attributes
            or self.new_initializers
            or self.dead_initializers
        )
