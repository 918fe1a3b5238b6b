"""Run: the compiled rules of one stage bound to one table: finding matches and asking again.

Everything mutable of a run lives here and nothing on the rules, so that one rule set can serve many threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rewriter.compiler.program import Leaf, program_for
from rewriter.engine import walk
from rewriter.engine.match import Match
from rewriter.engine.reach import Reach
from rewriter.engine.table import Table
from rewriter.rule import Rule

STRETCH = 4096  # nodes

T = TypeVar("T")
Raw = tuple[int, tuple[Any, ...], tuple[Any, ...]]  # leaf, captured nodes, captured values
Failure = tuple[int, int, tuple[int, ...]]  # decline, core node, what stood at the question's positions


class Run:
    """One stage's rules on one table."""

    def __init__(
        self, table: Table, rules: Sequence[Rule], model: Any = None, analyses: dict[Any, Any] | None = None
    ) -> None:
        self.table = table
        self.rules = tuple(rules)
        self.model = model
        self._analyses: dict[Any, Any] = {} if analyses is None else analyses
        histogram = {op: len(nodes) for op, nodes in table.by_op.items()}
        self.program = program_for(self.rules, histogram)
        self.reach = Reach(self.program, self.program.space)
        self._found: list[Raw] = []
        self._failures: list[Failure] = []
        self.explaining = False
        self._entries = self.program.bind(
            table,
            self._found.append,
            self._fail,
            walk.chain_up,
            walk.chain_down,
            walk.both,
            walk.lanes,
            walk.same,
            walk.holds,
            walk.literal,
            walk.dim,
        )

    def _fail(self, decline: int, core: int, seen: tuple[int, ...]) -> None:
        if self.explaining:
            self._failures.append((decline, core, seen))

    def sweep(self) -> list[Raw]:
        """Every match in the model."""
        held = [(match, self.table.by_op[op]) for op, match in self._entries.items() if self.table.by_op.get(op)]
        for start in range(0, len(self.table.op), STRETCH):  # by stretches of the model, which stay in the cache
            for match, nodes in held:
                first, last = bisect_left(nodes, start), bisect_left(nodes, start + STRETCH)
                if first < last:
                    match(nodes[first:last])
        return self._drain()

    def sweep_with_failures(self) -> tuple[list[Raw], list[Failure]]:
        """Every match, and every failure past a core."""
        self.explaining = True
        try:
            found = self.sweep()
        finally:
            self.explaining = False
        failures = self._failures[:]
        self._failures.clear()
        return found, failures

    def ask(self, anchors: Iterable[int]) -> list[Raw]:
        """The matches at these anchors."""
        table = self.table
        for node in anchors:
            match = self._entries.get(table.op[node])
            if match is not None:
                match((node,))
        return self._drain()

    def _drain(self) -> list[Raw]:
        found = list(dict.fromkeys(map(hashable, self._found)))
        self._found.clear()
        return found

    def leaf(self, raw: Raw) -> Leaf:
        return self.program.leaves[raw[0]]

    def match(self, raw: Raw) -> Match:
        leaf = self.leaf(raw)
        return Match(self, leaf, raw[1], raw[2])

    def anchor(self, raw: Raw) -> int:
        """The node at which a match was found."""
        leaf = self.leaf(raw)
        node: int = leaf.decode_nodes(raw[1])[id(leaf.lowered.anchor)]
        return node

    def in_window(self, leaf: Leaf, node: int) -> str | None:
        """None where the opsets at this node are those the rule is made for, else the reason why not."""
        opsets = self.table.scope(node).opsets
        for domain, (low, high) in leaf.window.items():
            have = opsets.get(domain)
            if have is None or (have >= low and (high is None or have <= high)):
                continue
            span = (
                f"opset {low} or later"
                if high is None
                else f"opset {low}"
                if low == high
                else f"opsets {low} to {high}"
            )
            return f"the rule is made for {domain or 'ai.onnx'} {span}, the model has {have}"
        return None

    def analysis(self, make: Callable[[Any], T]) -> T:
        """`make(model)`, once per run."""
        if make not in self._analyses:
            self._analyses[make] = make(self.model)
        found: T = self._analyses[make]
        return found


def hashable(raw: tuple[Any, ...]) -> Raw:
    """A captured match as a tuple all through (lanes come as lists)."""
    leaf, nodes, values = raw
    return (leaf, tuple(map(frozen, nodes)), tuple(map(frozen, values)))


def frozen(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item
