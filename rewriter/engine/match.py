"""Match: what a replacement callback sees of one place where its rule fits.

Names are those of the source script. Values and nodes come as read-only views; what lies around the match is asked
for through `reads`, so that the driver knows when to ask again. Views are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rewriter.engine.views import Neighbours, Node, Value

if TYPE_CHECKING:
    from rewriter.compiler.program import Leaf
    from rewriter.engine.edit import Edit
    from rewriter.engine.run import Run
    from rewriter.rule import Rule

T = TypeVar("T")


class Match:
    """One place in a model where a rule fits."""

    def __init__(self, run: Run, leaf: Leaf, nodes: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        self._run = run
        self._table = run.table
        self._leaf = leaf
        self._nodes = leaf.decode_nodes(nodes)
        self._values = leaf.decode_values(values)
        self.notes: dict[str, Any] = {}
        self.read_values: set[int] = set()
        self._edit: Edit | None = None
        self.root_id = leaf.root_of(self._nodes)

    def __repr__(self) -> str:
        return f"Match({self.rule.name!r}, at {self.root.name!r})"

    def _repr_html_(self) -> str:
        from rewriter.notebook import match_html

        return match_html(self)

    # -- what is bound -----------------------------------------------------------------------------

    @property
    def rule(self) -> Rule:
        return self._run.rules[self._leaf.rule_index]

    @property
    def root(self) -> Node:
        """The node that the first returned value of the source comes from."""
        return Node(self._table, self.root_id)

    @property
    def matched(self) -> list[Node]:
        """Every matched node, in the order of the model."""
        ids = {n for captured in self._nodes.values() for n in flat(captured)}
        return [Node(self._table, n) for n in sorted(ids, key=self._table.rank.__getitem__)]

    def __getitem__(self, name: str) -> Any:
        """The value (None if absent), list of values (Many) or attribute bound to a parameter of the source."""
        graph = self._leaf.variant.graph
        if name in graph.attribute_parameters:
            return self.attribute(name)
        if name in graph.parameters:
            bound = self._values.get(name, 0)
            if isinstance(bound, list):
                return [Value(self._table, v) for v in bound]
            return Value(self._table, bound) if bound else None
        if name in self._leaf.node_names:
            return self.node(name)
        if any(name in one.parameters for one in self.rule.definition.sources):
            return None  # another source of the rule has it
        known = [*graph.parameters, *graph.attribute_parameters, *self._leaf.node_names]
        raise KeyError(f"the source {graph.name!r} has no {name!r}; it has {', '.join(known)}")

    def value(self, name: str) -> Value:
        """The value bound to a parameter; raises LookupError if it is absent."""
        found = self[name]
        if not isinstance(found, Value):
            raise LookupError(f"{name!r} is absent in this match; ask m.maybe({name!r})")
        return found

    def maybe(self, name: str) -> Value | None:
        """The value bound to a parameter, or None if it is absent."""
        found = self[name]
        return found if isinstance(found, Value) else None

    def many(self, name: str) -> list[Value]:
        """The values bound to a `Many` parameter."""
        found = self[name]
        return list(found) if isinstance(found, list) else []

    def array(self, name: str) -> np.ndarray:
        """The elements of the constant bound to a parameter."""
        return self.value(name).numpy()

    def attribute(self, name: str) -> Any:
        """The value bound to an attribute parameter; its default, else None, where the node has none."""
        place = self._leaf.attribute_places.get(name)
        if place is None:
            return self._leaf.variant.graph.attribute_parameters[name].default
        node, attribute = place
        found = self._table.known_attribute(flat(self._nodes[node])[0], attribute)
        return self._leaf.variant.graph.attribute_parameters[name].default if found is None else found

    def node(self, name: str) -> Node:
        """The node that produced the value of that name in the source."""
        found = self.nodes(name)
        if len(found) != 1:
            raise LookupError(f"{name!r} stands for {len(found)} nodes; ask m.nodes({name!r})")
        return found[0]

    def nodes(self, name: str) -> list[Node]:
        """The nodes of a chain, or those that are repeated for a `Many`, in order."""
        pattern = self._leaf.node_names.get(name)
        if pattern is None:
            raise KeyError(f"the source {self._leaf.variant.graph.name!r} assigns no {name!r} in this variant")
        return [Node(self._table, n) for n in flat(self._nodes[pattern])]

    def output(self, name: str) -> Value:
        """The value that the source calls `name`, where that is a node's output."""
        node = self.node(name)
        return Value(self._table, self._table.outputs[node.id][self._leaf.value_slots[name]])

    @property
    def names(self) -> frozenset[str]:
        """The names that this form of the source has: its parameters and what it assigns."""
        graph = self._leaf.variant.graph
        return frozenset((*graph.parameters, *graph.attribute_parameters, *self._leaf.node_names))

    def is_local(self, value: Value) -> bool:
        """Whether a value belongs to the graph that the match's root lies in, not to an outer one."""
        return self._table.value_scope[value.id] == self._table.scope_of[self.root_id]

    @property
    def opset(self) -> int:
        """The version of ai.onnx where the match lies."""
        return self.version("")

    def version(self, domain: str) -> int:
        """The version of an opset where the match lies; 0 where it is not imported."""
        return self._table.scope(self.root_id).opsets.get(domain, 0)

    # -- what lies around, and what is said --------------------------------------------------------

    def reads(self, value: Value) -> Neighbours:
        """What stands around a value. The driver asks the rule again when that changes."""
        self.read_values.add(value.id)
        producer = self._table.producer[value.id]
        users = dict.fromkeys(self._table.uses[value.id])
        return Neighbours(Node(self._table, producer) if producer else None, tuple(Node(self._table, n) for n in users))

    def note(self, **measurements: Any) -> None:
        """Record measurements for the report."""
        self.notes.update(measurements)

    def analysis(self, make: Callable[[Any], T]) -> T:
        """`make(input model)`, computed at most once per run and shared by all matches."""
        return self._run.analysis(make)

    @property
    def edit(self) -> Edit:
        """The edit that this match will become; for rules without a target."""
        if self._edit is None:
            from rewriter.engine.edit import Edit

            self._edit = Edit(self._table, self.root_id, self.rule)
        return self._edit


def flat(captured: Any) -> tuple[int, ...]:
    """The node ids of one captured node, chain, or list of lanes."""
    if isinstance(captured, int):
        return (captured,)
    return tuple(captured)
