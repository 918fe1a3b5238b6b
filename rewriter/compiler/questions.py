"""Questions: what a match must satisfy, as values.

A position says how a node or value is reached from the anchor, a question asks something about positions. Both are
interned by the `Space` that all rules of a set share: what two rules ask in the same way is one question, asked
once. Each question knows the Python expression that asks it and the sentence that explains a "no".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rewriter.pattern.graph import AttributeValue
from rewriter.pattern.markers import Marker

if TYPE_CHECKING:
    from rewriter.engine.table import Table

NODE, VALUE, PAIR = "n", "v", "c"


@dataclass(frozen=True)
class Position:
    """How something is reached. `kind` and `parent` and `argument` are its identity; `letter` names its variable."""

    number: int
    kind: str
    parent: int
    argument: Any
    letter: str
    loops: frozenset[int]  # the loops (steps) that define it or what it hangs on

    @property
    def variable(self) -> str:
        return f"{self.letter}{self.number}"


class Space:
    """The positions of all rules of a set, interned."""

    def __init__(self) -> None:
        self.positions: list[Position] = []
        self._index: dict[tuple[str, int, Any], int] = {}
        self.constants: dict[str, Any] = {}
        self._constant_names: dict[Any, str] = {}

    def position(self, kind: str, parent: int, argument: Any, letter: str) -> int:
        key = (kind, parent, argument)
        found = self._index.get(key)
        if found is None:
            found = len(self.positions)
            loops = self.positions[parent].loops if parent >= 0 else frozenset()
            if kind in ("operand", "any_user", "lane"):
                loops |= {parent_loop(kind, parent, argument)}
            self.positions.append(Position(found, kind, parent, argument, letter, loops))
            self._index[key] = found
        return found

    def constant(self, prefix: str, value: Any, key: Any = None) -> str:
        """The name under which emitted code finds an object."""
        key = (prefix, value if key is None else key)
        name = self._constant_names.get(key)
        if name is None:
            name = f"{prefix}_{len(self._constant_names)}"
            self._constant_names[key] = name
            self.constants[name] = value
        return name


LOOP_BASE = 1 << 20


def parent_loop(kind: str, parent: int, argument: Any) -> int:
    """A loop's own number: both operands of a node come from one loop, each `any_user` from its own."""
    if kind == "operand":
        return LOOP_BASE + parent
    return 2 * LOOP_BASE + parent * 64 + int(argument)


@dataclass(frozen=True)
class Question:
    """Something that must hold. Equal questions of different rules merge."""

    kind: str
    positions: tuple[int, ...]
    argument: Any = None

    @property
    def cost(self) -> int:
        return COSTS.get(self.kind, 3)


@dataclass(frozen=True)
class Loop:
    """Try each way: both orders of two operands, or each user of a value."""

    kind: str  # "operand" | "any_user"
    position: int  # the node whose operands, the value whose users
    argument: int = 0

    @property
    def number(self) -> int:
        return parent_loop(self.kind, self.position, self.argument)


@dataclass(frozen=True)
class Lanes:
    """Run a lane (its own small matcher) on each of the rest of a node's inputs."""

    position: int  # the node
    slot: int
    lane: str  # the name of the emitted lane function
    outer: tuple[int, ...]  # positions that it reads
    agree: tuple[int, ...]  # captured values that must agree between lanes
    attributes: tuple[tuple[int, str], ...] = ()  # captured nodes with an attribute that must


Step = Question | Loop | Lanes

COSTS = {
    "op": -1,
    "slot": 0,
    "identical": 0,
    "present": 0,
    "absent": 0,
    "no_more": 0,
    "attribute": 1,
    "same_attribute": 1,
    "uses": 1,
    "inner": 1,
    "distinct": 1,
    "same": 4,
    "marker": 5,
    "dim": 6,
    "literal": 6,
}


@dataclass(frozen=True)
class AttributeIs:
    """The argument of an "attribute" question: a literal that the attribute must equal."""

    name: str
    value: tuple[Any, ...] | AttributeValue | Literal

    @staticmethod
    def of(name: str, value: AttributeValue) -> AttributeIs:
        if isinstance(value, np.ndarray):
            return AttributeIs(name, Literal.of(value))
        if isinstance(value, float):
            value = float(np.float32(value))
        if isinstance(value, list):
            return AttributeIs(name, tuple(float(np.float32(v)) if isinstance(v, float) else v for v in value))
        return AttributeIs(name, value)


@dataclass(frozen=True)
class Literal:
    """The argument of a "literal" question: hashable by content."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(array: np.ndarray) -> Literal:
        return Literal(str(array.dtype), array.shape, array.tobytes())

    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


def is_tensor(have: Any, wanted: Literal) -> bool:
    """Whether a tensor attribute is equal in type, shape and bytes."""
    return have is not None and Literal.of(have.numpy()) == wanted


def sentence(question: Question, label: Callable[[int], str], table: Table, seen: Sequence[int]) -> str:
    """Why the answer was no, for the report: `seen` are the values and nodes that stood at the question's positions.

    It speaks of ops as they stand in the model and names no node, so that equal reasons are one line for many nodes.
    """
    kind, argument = question.kind, question.argument
    at = seen[0]
    if kind == "op":
        have = short(table.op[at]) if at else ""
        want = " or ".join(dict.fromkeys(article(short(op)) for op in argument))
        return (
            f"{article(have)} stands where {want} is expected" if have else f"nothing stands where {want} is expected"
        )
    subject = subject_of(question, label, table, at)
    if kind == "uses":
        have_uses = len(table.uses[at])
        want_uses = "one" if argument == 1 else str(argument)
        if not have_uses:
            return f"{subject} has no consumer, where {want_uses} is expected"
        return f"{subject} has {have_uses} consumers, where only {want_uses} may be"
    if kind == "inner":
        return f"{subject} is also a graph output"
    if kind == "marker":
        marker: Marker = argument
        return f"{subject} is {marker.contrary or f'not {marker.sentence}'}"
    if kind == "present":
        return f"{subject} is absent"
    if kind == "absent":
        return f"{subject} is given, where none may be"
    if kind == "no_more":
        return f"{subject} has more inputs than the pattern names"
    if kind == "attribute":
        return f"{subject} has {argument.name}={table.attribute(at, argument.name)!r}, not {argument.value!r}"
    if kind == "same_attribute":
        return f"{subject} and {label(question.positions[1])} differ in {argument[0]!r} and {argument[1]!r}"
    if kind in ("same", "identical"):
        pairs = zip(seen, question.positions, strict=False)
        names = [repr(table.name[v]) if kind == "same" and v else label(p) for v, p in pairs]
        return f"{names[0]} and {names[1]} are not the same value"
    if kind == "literal":
        return f"another value stands where the constant {argument.array().tolist()!r} is expected"
    if kind == "dim":
        return f"dimensions of {subject} and {label(question.positions[1])} do not agree"
    return f"{subject}: {kind} does not hold"


def subject_of(question: Question, label: Callable[[int], str], table: Table, at: int) -> str:
    """What a reason is about: the output of an op of the model, or what the pattern calls it."""
    if question.kind in ("uses", "inner") and table.producer[at]:
        return f"the output of the {short(table.op[table.producer[at]])}"
    return label(question.positions[0])


def short(key: str) -> str:
    """An op key without its domain."""
    return key.rpartition("::")[2]


def article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}" if noun else "nothing"
