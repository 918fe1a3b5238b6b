"""A pattern graph as text, for tests: one node a line, what a reader of the test would have drawn."""

from __future__ import annotations

from rewriter.pattern.graph import AttributeParameter, PatternGraph, PNode, PValue


def show(graph: PatternGraph) -> list[str]:
    """The graph as text, one node a line: what a reader of these tests would have drawn."""
    numbers: dict[int, str] = {}

    def value(v: PValue | None) -> str:
        if v is None:
            return "None"
        if v.literal is not None:
            return f"{v.literal.tolist()}"
        if v.choices:
            return "(" + " | ".join(map(value, v.choices)) + ")"
        if v.parameter:
            return str(v.name)
        return numbers.setdefault(id(v), v.name or f"%{len(numbers)}")

    def line(n: PNode) -> str:
        attributes = [
            f"{k}=@{a.name}" if isinstance(a, AttributeParameter) else f"{k}={a!r}" for k, a in n.attributes.items()
        ]
        call = f"{'/'.join(n.types)}{'*' if n.chain else ''}({', '.join([*map(value, n.inputs), *attributes])})"
        return f"{', '.join(map(value, n.outputs))} = {call}"

    lines = [line(n) for n in graph.nodes()]
    return [*lines, "return " + ", ".join(map(value, graph.outputs))]
