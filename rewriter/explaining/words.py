"""A missed question in words: what is expected, what stands there, and what would make it pass.

The reason itself is the sentence that the report of a run uses too (`questions.sentence`). Here it gets what somebody
needs who is to mend it: names and types of what was seen, and what to change, in the model or in the pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rewriter.compiler.questions import Question, article, short
from rewriter.engine import constants, types
from rewriter.engine.table import Table
from rewriter.errors import ModelError

WHOLE = 8  # elements of a constant that are shown


def expected(question: Question, label: str, passed: Sequence[str] = ()) -> str:
    """What the pattern asks for. passed: ops of a chain before it."""
    kind, argument = question.kind, question.argument
    if kind == "op":
        wanted = " or ".join(dict.fromkeys(article(short(op)) for op in argument))
        return f"{wanted}, before any {', '.join(map(short, passed))}" if passed else wanted
    if kind == "uses":
        return f"{argument} consumer{'' if argument == 1 else 's'} of {label}"
    if kind == "attribute":
        value = argument.value
        return f"{argument.name}={value.array().tolist() if hasattr(value, 'array') else value!r}"
    if kind == "literal":
        return f"the constant {argument.array().tolist()!r}"
    if kind == "marker":
        return f"{label} to be {argument.sentence}"
    if kind == "no_more":
        return f"no more than {argument} inputs"
    if kind == "slot":
        return f"output {argument} of its node"
    fixed = {
        "inner": f"{label} is no graph output",
        "present": f"{label} is given",
        "absent": f"{label} is left out",
        "same_attribute": "equal attributes",
        "same": "the same value, or equal constants",
        "identical": "the same value",
        "distinct": "two different nodes",
        "dim": "equal dimensions",
        "lanes": "inputs that agree in what they share",
    }
    return fixed.get(kind, kind)


def seen(question: Question, table: Table, at: tuple[int, ...], instead: int = 0) -> str:
    """What stands there. instead: the value that no node produces."""
    kind, argument = question.kind, question.argument
    one = at[0] if at else 0
    if kind == "op" and not one and instead:
        return value(table, instead)
    if kind in ("op", "no_more", "attribute", "same_attribute", "slot", "distinct", "lanes"):
        if not one:
            return "no node: a graph input, an initializer, or nothing"
        nodes = at[:1] if kind == "slot" else dict.fromkeys(at[:2])
        names = " and ".join(f"{short(table.op[n])} {table.label(n)!r}" for n in nodes if n)
        if kind == "attribute":
            return f"{names} with {argument.name}={plain(table.attribute(one, argument.name))!r}"
        if kind == "same_attribute":
            values = (plain(table.attribute(n, name)) for n, name in zip(at, argument, strict=True))
            return f"{names} with " + " and ".join(map(repr, values))
        return f"{names} with {len(table.inputs[one])} inputs" if kind == "no_more" else names
    if not at:
        return "nothing"
    if kind == "uses":
        users = [f"{short(table.op[n])} {table.label(n)!r}" for n in dict.fromkeys(table.uses[one])]
        return f"{value(table, one)} with {len(table.uses[one])} consumers: {', '.join(users[:WHOLE]) or 'none'}"
    return " and ".join(value(table, v) for v in dict.fromkeys(at))


def remedy(question: Question, table: Table, at: tuple[int, ...], label: str) -> str:
    """What would make it pass."""
    kind, argument = question.kind, question.argument
    want = expected(question, label)
    if kind == "op":
        have = short(table.op[at[0]]) if at and at[0] else ""
        if not have:
            return f"put {want} there, or let the pattern take a parameter instead"
        return (
            f"put {want} there, or let the pattern allow {article(have)} "
            "(P.AnyOf for another form, P.Chain for what it may pass over)"
        )
    if kind == "attribute":
        return f"set {want} on the node, or leave the attribute out of the pattern"
    if kind == "literal":
        return f"store {want} there, or let the pattern take a parameter instead"
    if kind == "marker":
        return f"see that it is {argument.sentence}, or take {type(argument).__name__} off the parameter"
    if kind == "uses" and at and not table.uses[at[0]]:
        return "let something read it, as the pattern does"
    if kind == "uses":
        return "give the other consumers a value of their own: the rewrite changes this one, or the pattern asks for it"
    fixed = {
        "inner": "return another value from the graph: the rewrite changes this one, or the pattern asks for it",
        "present": "give that input, or mark the parameter with Maybe",
        "absent": "leave that input out, or name it in the pattern",
        "no_more": "name the further inputs in the pattern (Maybe for those that may be absent)",
        "same_attribute": "give both the same value, or bind them to two attribute parameters",
        "same": "let both read the same value, or use two parameters",
        "identical": "let both read the same value, or use two parameters",
        "dim": "see that both dimensions are known and equal, or name them differently in Dims",
        "slot": "read that output of the node, or return another one in the pattern",
        "distinct": "the pattern needs two nodes here where the model has one",
        "lanes": "see that every repeated input is like the first",
    }
    return fixed.get(kind, "change the model or the pattern")


def value(table: Table, one: int) -> str:
    """A value: its name, type, and where it comes from; the elements of a small constant."""
    if not one:
        return "nothing"
    known = types.type_of(table, one)
    text = repr(table.name[one])
    if known.dtype is not None:
        shape = (
            "" if known.shape is None else "[" + ",".join(str(d) if d is not None else "?" for d in known.shape) + "]"
        )
        text += f" ({known.dtype.name.lower()}{shape})"
    if one in table.overridable:
        return f"{text}, an initializer that is a graph input too"
    if constants.is_constant(table, one):
        size = 0 if known.shape is None else len(known.shape) and int(_product(known.shape))
        text += ", a constant"
        if known.shape == () or 0 < size <= WHOLE:
            text += f" {elements(table, one)}"
        return text
    producer = table.producer[one]
    return f"{text} of {short(table.op[producer])} {table.label(producer)!r}" if producer else f"{text}, a graph input"


def elements(table: Table, one: int) -> str:
    try:
        array = constants.array(table, one)
        return (
            repr(array.tolist())
            if array.ndim == 0
            else np.array2string(array, precision=6, separator=", ", max_line_width=1000)
        )
    except ModelError:
        return "that cannot be computed"


def _product(shape: tuple[Any, ...]) -> int:
    total = 1
    for dim in shape:
        total *= dim if isinstance(dim, int) else WHOLE + 1
    return total


def plain(attribute: Any) -> Any:
    """An attribute's value as it is printed."""
    return attribute.numpy().tolist() if hasattr(attribute, "numpy") else attribute
