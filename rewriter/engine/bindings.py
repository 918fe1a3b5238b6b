"""What the names of a source stand for in a match: values, operands that changed places, and names for what is new.

Names of new values derive from what they replace: a name of the target that extends a name of the source (`w_scale`,
`w`) takes that value's own name (`conv1.weight_scale`).
"""

from __future__ import annotations

from rewriter import schemas
from rewriter.engine.match import Match, flat
from rewriter.pattern.graph import PNode, PValue


def wish(match: Match, name: str) -> str:
    """The name to ask for: from the source name that `name` extends, else from the root's output."""
    values = match._values
    own = values.get(name)
    if isinstance(own, int) and own:
        return match._table.name[own]
    parameters, nodes = match._leaf.extended(name)
    for known in parameters:
        held = values[known]
        if isinstance(held, int) and held:
            return match._table.name[held] + name[len(known) :]
    for known in nodes:
        captured = flat(match._nodes[match._leaf.node_names[known]])
        if captured:
            return match._table.label(captured[0]) + name[len(known) :]
    outputs = [match._table.name[v] for v in match._table.outputs[match.root_id] if v]
    return f"{outputs[0] if outputs else match.root.name}_{name}"


def matched_slot(match: Match, source: PNode, node: int, lane: int | None, slot: int) -> int:
    """Where an input of the pattern stands in the model: commuted operands may have changed places."""
    have = match._table.inputs[node]
    op = match._table.op[node]
    if not (match.rule.definition.commute and op in schemas.COMMUTATIVE and len(source.inputs) == 2):
        return slot
    for place, value in enumerate(source.inputs):
        held = source_value(match, value, lane)
        if held and have[0] != have[1] and held in have:
            return slot if have[place] == held else 1 - slot
    return slot


def source_value(match: Match, value: PValue | None, lane: int | None) -> int:
    """What a value of the source is in the model; 0 where that is not captured (a literal)."""
    if value is None or value.literal is not None:
        return 0
    if value.node is None:
        held = match._values.get(value.name or "", 0)
        return (held[lane] if lane is not None else 0) if isinstance(held, list) else held
    nodes = flat(match._nodes[id(value.node)])
    if not nodes:
        return match_value(match, value)
    node = nodes[lane] if lane is not None and id(value.node) in match._leaf.variant.lanes else nodes[-1]
    outputs = match._table.outputs[node]
    return outputs[value.slot] if value.slot < len(outputs) else 0


def match_value(match: Match, value: PValue) -> int:
    """The table value of an empty chain's output: its input."""
    while value.node is not None and value.node.chain:
        inner = value.node.inputs[0]
        assert inner is not None
        value = inner
        if value.node is not None and not value.node.chain:
            return match._table.outputs[flat(match._nodes[id(value.node)])[0]][value.slot]
    assert value.name is not None
    held = match._values[value.name]
    assert isinstance(held, int)
    return held
