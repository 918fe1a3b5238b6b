"""The pattern operators (`P.AnyOf`, `P.Op`, `P.Chain`, `P.OnlyUse`, `P.Core`) as they stand in a script.

Wrappers leave a flag on the value that they wrap and are gone; in a target they say nothing. The rest become
choices and nodes. Every operator is checked here for its own arguments, because no schema does it.
"""

from __future__ import annotations

import ast
import difflib
from typing import TYPE_CHECKING

from rewriter.pattern.graph import PNode, PValue
from rewriter.pattern.ops import OPERATORS
from rewriter.schemas import op_key, split_key, why_unknown

if TYPE_CHECKING:
    from rewriter.reading.expressions import ExpressionReader


def read(reader: ExpressionReader, call: ast.Call, name: str, count: int) -> list[PValue | None]:
    """The values of one pattern operator."""
    if name not in OPERATORS:
        close = difflib.get_close_matches(name, OPERATORS, 1, 0.4)
        hint = f"did you mean P.{close[0]}?" if close else f"there are {', '.join(OPERATORS)}"
        reader.fail(call, f"there is no pattern operator P.{name}; {hint}")
    if name == "Op":
        return _op(reader, call, count)
    if name == "Chain":
        return [_chain(reader, call)]
    if name == "AnyOf":
        return [_any_of(reader, call)]
    return [_wrapper(reader, call, name)]


def _op(reader: ExpressionReader, call: ast.Call, count: int) -> list[PValue | None]:
    keys = _types(reader, call, "P.Op", "types")
    keywords = [k for k in call.keywords if k.arg != "types"]
    return [*reader.node(call, keys, call.args, keywords, count).outputs]


def _chain(reader: ExpressionReader, call: ast.Call) -> PValue:
    keys = _types(reader, call, "P.Chain", "ops")
    start = _only_argument(reader, call, "P.Chain", ", ops=[...]", {"ops"})
    node = PNode(reader.source.place(call), tuple(keys), [start], chain=True)
    node.outputs.append(PValue(node.place, node=node))
    return node.outputs[0]


def _any_of(reader: ExpressionReader, call: ast.Call) -> PValue:
    if reader.reading.role == "target":
        reader.fail(call, "P.AnyOf in a target leaves open what to write; write one of them, or two rules")
    if call.keywords or len(call.args) < 2:
        reader.fail(call, "P.AnyOf takes two or more values and nothing else; write P.AnyOf(a, b)")
    choices = tuple(reader.present(reader.plain(a)) for a in call.args)
    return PValue(reader.source.place(call), choices=choices)


def _wrapper(reader: ExpressionReader, call: ast.Call, name: str) -> PValue:
    value = _only_argument(reader, call, f"P.{name}", "", set())
    if reader.reading.role == "target":
        return value
    if value.literal is not None or (name == "Core" and value.parameter):
        reader.fail(call, f"P.{name} says something about the output of a node; wrap that")
    if name == "OnlyUse":
        value.only_use = True
        return value
    if (first := reader.reading.core) is not None:
        reader.fail(call, f"P.Core can occur only once in a source (it does at {first}); remove one")
    reader.reading.core = reader.source.place(call)
    value.core = True
    return value


def _only_argument(reader: ExpressionReader, call: ast.Call, label: str, rest: str, keywords: set[str]) -> PValue:
    if len(call.args) != 1 or any(k.arg not in keywords for k in call.keywords):
        reader.fail(call, f"{label} takes exactly one value; write {label}(v{rest})")
    return reader.present(reader.plain(call.args[0]))


def _types(reader: ExpressionReader, call: ast.Call, label: str, keyword: str) -> list[str]:
    """The op types that an operator lists, as keys, each of which must exist."""
    given = next((k.value for k in call.keywords if k.arg == keyword), None)
    if given is None:
        reader.fail(call, f'{label} needs its op types; write {keyword}=["Relu", "Clip"]')
    names = reader.attribute(given)
    if not isinstance(names, list | tuple) or not names or not all(isinstance(n, str) for n in names):
        reader.fail(given, f'{keyword} of {label} must be a list of op types, such as ["Relu", "Clip"]')
    keys = []
    for name in names:
        domain, op_type = split_key(name)
        if "." in op_type:
            reader.fail(given, f"{name}: write the domain with two colons, {'::'.join(name.rsplit('.', 1))}")
        version = reader.version_of(domain, call)
        if problem := why_unknown(name, version):
            reader.fail(given, problem)
        reader.use(domain, version, call)
        keys.append(op_key(domain, op_type))
    return keys
