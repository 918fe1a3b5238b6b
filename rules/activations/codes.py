"""Codes: the int8 tensors of one graph that must become uint8 together, and what stands around them.

From one tensor the set spreads over every node that passes codes along, in both directions, so it ends at the
QuantizeLinear nodes that make the codes and the DequantizeLinear nodes that read them: those hold the zero points.
Where codes enter or leave the graph (its inputs and outputs, the bodies of an If, Loop or Scan) they keep their type;
that is a border. Anything else that makes or reads codes (QLinearConv, Cast, ...) needs them as they are, so that
the whole set stays int8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rewriter import Decline, Match, Neighbours, Node, Value
from rules.activations.passing import BLIND, BORDERS, code_outputs, code_slots, lacks_padding

DQ = ("DequantizeLinear", "com.microsoft::DequantizeLinear")
Q = ("QuantizeLinear", "com.microsoft::QuantizeLinear")
FUSES = ("Relu", "Clip")
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Read:
    """A node that takes codes, and through which input."""

    node: Node
    slot: int


@dataclass
class Codes:
    """int8 code tensors that become uint8 together, each list in the order in which it was found."""

    made: list[Value] = field(default_factory=list)  # by nodes of this graph
    entering: list[Value] = field(default_factory=list)  # from outside: they stay int8
    leaving: list[Value] = field(default_factory=list)  # those of `made` that something outside reads, too
    quantizers: list[Node] = field(default_factory=list)
    dequantizers: list[Node] = field(default_factory=list)
    reads: dict[Value, list[Read]] = field(default_factory=dict)  # inside, of what is made or enters
    constants: list[tuple[Read, Value]] = field(default_factory=list)
    unpadded: list[Node] = field(default_factory=list)  # Pad nodes that put in zeros without naming them

    @property
    def ends(self) -> list[Node]:
        """The nodes that hold zero points."""
        return [*self.quantizers, *self.dequantizers]


def codes_of(node: Node) -> Value:
    """The codes that a QuantizeLinear makes or a DequantizeLinear reads."""
    found = node.outputs[0] if node.op_type in Q else node.inputs[0]
    assert found is not None
    return found


def find_codes(m: Match, start: Value) -> Codes:
    """Everything that hangs together with one code tensor. Raises Decline where it has to stay int8."""
    codes = Codes()
    seen = {start}
    stack = [start]
    passed: set[Node] = set()
    while stack:
        value = stack.pop()
        around = m.reads(value)
        nodes = [*_maker(m, value, around, codes), *_readers(m, value, around, codes)]
        for node in nodes:
            if node in passed:
                continue
            passed.add(node)
            for one in _passed_by(node, codes):
                if one not in seen:
                    seen.add(one)
                    stack.append(one)
    return codes


def _maker(m: Match, value: Value, around: Neighbours, codes: Codes) -> Iterator[Node]:
    """Where the codes come from: the node, if it passes them along."""
    node = around.producer
    codes.reads[value] = []
    if node is None or not m.is_local(value) or node.op_type in BORDERS:
        codes.entering.append(value)
        return
    codes.made.append(value)
    if node.op_type in Q:
        codes.quantizers.append(node)
    elif code_slots(node) and value in code_outputs(node):
        yield node
    else:
        raise Decline(f"its codes come from {node.op_type} {node.name!r}, which makes int8")


def _readers(m: Match, value: Value, around: Neighbours, codes: Codes) -> Iterator[Node]:
    """Where the codes go to: the nodes that pass them along."""
    leaves = value.is_graph_output
    for node in around.users:
        slots = [slot for slot, read in enumerate(node.inputs) if read == value]
        if node.op_type in BLIND:
            continue
        if not is_here(m, node) or node.op_type in BORDERS:
            leaves = True
        elif node.op_type in DQ and slots == [0]:
            codes.dequantizers.append(node)
            codes.reads[value].append(Read(node, 0))
        elif set(slots) <= set(code_slots(node)):
            codes.reads[value].extend(Read(node, slot) for slot in slots)
            yield node
        else:
            raise Decline(f"its codes go to {node.op_type} {node.name!r}, which may need them as int8")
    if leaves and value not in codes.entering:
        codes.leaving.append(value)


def _passed_by(node: Node, codes: Codes) -> Iterator[Value]:
    """The other code tensors of a node that passes codes along."""
    yield from code_outputs(node)
    inputs = node.inputs
    for slot in code_slots(node):
        value = inputs[slot] if slot < len(inputs) else None
        if value is None:
            continue
        if value.is_constant:
            codes.constants.append((Read(node, slot), value))
        else:
            yield value
    if lacks_padding(node):
        codes.unpadded.append(node)


def is_here(m: Match, node: Node) -> bool:
    """Whether a node lies in the graph of the match, not in a body inside it."""
    return any(m.is_local(value) for value in node.outputs if value is not None)


# -- what the codes are for ------------------------------------------------------------------------


def serves_a_unit(m: Match, codes: Codes) -> bool:
    """Whether a unit (DQ -> op -> Q, or any weighted op) takes or gives these codes: it could run on integers."""
    return any(_feeds_a_unit(m, node) for node in codes.dequantizers) or any(
        _ends_a_unit(m, node) for node in codes.quantizers
    )


def is_conversion(m: Match, codes: Codes) -> bool:
    """Whether the codes only come from a DequantizeLinear or go to a QuantizeLinear: a change of type, and no more."""
    makers = [_producer(m, node) for node in codes.quantizers]
    users = [user for node in codes.dequantizers for user in _users(m, node)]
    return all(n is not None and n.op_type in DQ for n in makers) and all(n.op_type in Q for n in users)


def weight_of(m: Match, codes: Codes) -> Node | None:
    """The convolution whose weight or bias these codes are, if they are that."""
    for node in codes.dequantizers:
        for user in _users(m, node):
            if user.op_type in ("Conv", "ConvTranspose") and node.outputs[0] in user.inputs[1:]:
                return user
    return None


def _feeds_a_unit(m: Match, node: Node) -> bool:
    for user in _users(m, node):
        while user.op_type in FUSES and len(after := _users(m, user)) == 1:
            user = after[0]
        if user.op_type in WEIGHTED:
            return True
        if user.op_type not in Q and any(_reaches_q(m, one) for one in _users(m, user)):
            return True
    return False


def _reaches_q(m: Match, node: Node) -> bool:
    while node.op_type in FUSES and len(after := _users(m, node)) == 1:
        node = after[0]
    return node.op_type in Q


def _ends_a_unit(m: Match, node: Node) -> bool:
    maker = _producer(m, node)
    while maker is not None and maker.op_type in FUSES:
        before = _producer(m, maker)
        if before is None or before.op_type in DQ:
            break
        maker = before
    if maker is None or maker.op_type in DQ:
        return False
    if maker.op_type in WEIGHTED:
        return True
    before_it = (m.reads(value).producer for value in maker.inputs if value is not None)
    return any(one is not None and one.op_type in (*DQ, *WEIGHTED) for one in before_it)  # MatMul and its Add


def _producer(m: Match, node: Node) -> Node | None:
    value = node.inputs[0] if node.inputs else None
    return None if value is None else m.reads(value).producer


def _users(m: Match, node: Node) -> tuple[Node, ...]:
    value = node.outputs[0] if node.outputs else None
    return () if value is None else m.reads(value).users
