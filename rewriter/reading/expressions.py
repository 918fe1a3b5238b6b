"""The expressions of a script function, into values and nodes.

Python's own meaning and the converter's differ in one place that matters: an expression of constants. There
the converter emits nodes, and we compute the value, so that a pattern holds the number which the author sees.
Where the two would not give the same (a quotient of integers) it is an error. Names, lines and mistakes are
in the module `source`; what the schemas allow is in `calls`; the pattern operators are in `operators`.
"""

from __future__ import annotations

import ast
import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import numpy as np
import onnxscript
from onnxscript.values import Op, Opset

from rewriter.pattern.graph import AttributeParameter, AttributeValue, Place, PNode, PValue
from rewriter.pattern.ops import DOMAIN
from rewriter.reading import operators
from rewriter.reading.calls import Call
from rewriter.reading.parameters import ATTRIBUTE_TYPES
from rewriter.reading.source import Source
from rewriter.schemas import as_array, attribute_value, op_key, split_key, why_unknown

Role = Literal["source", "target"]

PYTHON_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Mod: "Mod",
    ast.Pow: "Pow",
    ast.MatMult: "MatMul",
    ast.BitAnd: "And",
    ast.BitOr: "Or",
    ast.Eq: "Equal",
    ast.NotEq: "Equal",
    ast.Lt: "Less",
    ast.LtE: "LessOrEqual",
    ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
    ast.USub: "Neg",
    ast.Not: "Not",
}
"""The ops that onnxscript gives to Python's operators (NotEq is then negated)."""

CONSTANT_TYPES = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}
"""The element types of the attributes of `op.Constant`, for those that have no tensor."""


@dataclass
class Reading:
    """What the functions of one rule side share: the one being read and those it calls."""

    role: Role
    opsets: dict[str, int] = field(default_factory=dict)
    core: Place | None = None
    calls: list[object] = field(default_factory=list)


class ExpressionReader(ABC):
    """Reads the expressions of one function. Local names are tensors (None: absent) or attributes."""

    def __init__(self, source: Source, reading: Reading) -> None:
        self.source = source
        self.reading = reading
        self.tensors: dict[str, PValue | None] = {}
        self.attributes: dict[str, AttributeParameter | AttributeValue | None] = {}
        self.unread: dict[str, ast.AST] = {}

    @abstractmethod
    def call_script(self, function: onnxscript.OnnxFunction[..., Any], call: ast.Call) -> list[PValue | None]:
        """The values that another script function returns for these arguments."""

    def fail(self, node: ast.AST, problem: str) -> NoReturn:
        """Raise the error for this piece of the source."""
        raise self.source.error(node, problem)

    # Values

    def present(self, expression: ast.expr) -> PValue:
        """The one value of an expression that must not be absent."""
        value = self.value(expression)
        if value is None:
            self.fail(expression, "None can only be an input of an op; leave it out here")
        return value

    def value(self, expression: ast.expr) -> PValue | None:
        """The one value of an expression; None if it says that an input is absent."""
        if isinstance(expression, ast.Name):
            return self._named(expression)
        if self.is_constant(expression):
            return self._literal(expression, self._constant(expression))
        if isinstance(expression, ast.Call):
            return self.values(expression, 1)[0]
        if isinstance(expression, ast.BinOp | ast.Compare | ast.UnaryOp):
            return self._operator(expression)
        text = ast.unparse(expression)
        if isinstance(expression, ast.Subscript):
            self.fail(expression, f"{text}: indexing is not supported; write op.Slice or op.Gather")
        if isinstance(expression, ast.BoolOp):
            self.fail(expression, f"{text}: write op.And or op.Or, or the operators & and |")
        if isinstance(expression, ast.IfExp):
            self.fail(expression, f"{text}: a rule has no branches; write P.AnyOf, op.Where, or two rules")
        self.fail(expression, f"{text}: this expression has no meaning in ONNX; compute it with ops")

    def values(self, call: ast.Call, count: int) -> list[PValue | None]:
        """The values of a call that must have this many."""
        callee = self._callee(call)
        if isinstance(callee, onnxscript.OnnxFunction):
            values = self.call_script(callee, call)
        elif callee is None:
            self._no_callee(call)
        elif callee[0].domain == DOMAIN:
            values = operators.read(self, call, callee[1], count)
        else:
            opset, op_type = callee
            domain = "" if opset.domain == "ai.onnx" else opset.domain
            self.use(domain, opset.version, call)
            values = [*self.node(call, [op_key(domain, op_type)], call.args, call.keywords, count).outputs]
            if domain == "" and op_type == "Constant":
                values = [self._constant_op(call, values)]
        if len(values) != count:
            self.fail(call, f"{ast.unparse(call.func)} gives {len(values)} values, here it must be {count}")
        return values

    def _named(self, name: ast.Name) -> PValue | None:
        if name.id in self.tensors:
            self.unread.pop(name.id, None)
            return self.tensors[name.id]
        if name.id in self.attributes:
            self.unread.pop(name.id, None)
            value: object = self.attributes[name.id]
            if isinstance(value, AttributeParameter):
                self.fail(
                    name,
                    f"attribute parameter {name.id} is used as a tensor; annotate it with Tensor "
                    "(in a target, the callback may return a number for it)",
                )
            return self._literal(name, value)
        return self._literal(name, self._constant(name))

    def _literal(self, node: ast.expr, value: object) -> PValue | None:
        if value is None:
            return None
        try:
            array = as_array(value)
        except ValueError as e:
            self.fail(node, f"{ast.unparse(node)} is neither a tensor nor a constant: {e}")
        castable = isinstance(value, bool | int | float | list | tuple | np.number | np.bool_) and array.dtype != object
        return PValue(self.source.place(node), literal=array, castable=castable)

    # Constants

    def is_constant(self, expression: ast.expr) -> bool:
        """Whether the expression has a value without the function's own names and without ops."""
        return not any(
            (isinstance(n, ast.Name) and (n.id in self.tensors or n.id in self.attributes))
            or (isinstance(n, ast.Call) and self._callee(n) is not None)
            for n in ast.walk(expression)
        )

    def _constant(self, expression: ast.expr, attribute: bool = False) -> object:
        """The value of a constant expression: Python's in an attribute, ONNX's where it is a tensor."""
        for n in ast.walk(expression):
            if isinstance(n, ast.Name) and not self.source.sees(n.id):
                known = [*self.tensors, *self.attributes, *self.source.names]
                close = difflib.get_close_matches(n.id, known, 1, 0.6)
                self.fail(
                    n,
                    f"{n.id} is not defined; " + (f"did you mean {close[0]}?" if close else "define it first"),
                )
            if not attribute and isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div):
                left, right = self.source.evaluate(n.left), self.source.evaluate(n.right)
                if isinstance(left, int) and isinstance(right, int):
                    self.fail(
                        n,
                        f"{ast.unparse(n)} divides integers, which ONNX does with truncation; write a float",
                    )
        return self.source.evaluate(expression)

    def _constant_op(self, call: ast.Call, values: Sequence[PValue | None]) -> PValue:
        """`op.Constant` is a literal: a pattern does not care how a model stores one."""
        node = values[0].node if values[0] is not None else None
        attributes = node.attributes if node is not None else {}
        if len(attributes) != 1:
            self.fail(call, "op.Constant needs exactly one attribute, such as value_float=1.0")
        ((name, value),) = attributes.items()
        if isinstance(value, AttributeParameter):
            self.fail(call, f"op.Constant of attribute parameter {value.name}; make it a Tensor parameter instead")
        if isinstance(value, np.ndarray):
            array = value
        else:
            array = np.asarray(value, CONSTANT_TYPES.get(name, np.object_))
        return PValue(self.source.place(call), literal=array)

    # Operators

    def _operator(self, expression: ast.BinOp | ast.Compare | ast.UnaryOp) -> PValue:
        kind: type[ast.AST]
        operands: list[ast.expr]
        if isinstance(expression, ast.Compare):
            if len(expression.ops) > 1:
                self.fail(expression, "several comparisons in one; write op.And of two")
            kind, operands = type(expression.ops[0]), [expression.left, expression.comparators[0]]
        elif isinstance(expression, ast.BinOp):
            kind, operands = type(expression.op), [expression.left, expression.right]
        else:
            kind, operands = type(expression.op), [expression.operand]
        if kind not in PYTHON_OPERATORS:
            self.fail(
                expression,
                f"{ast.unparse(expression)}: ONNX Script has no such operator; call the op instead",
            )
        self.use("", self.version_of("", expression), expression)
        (result,) = self.node(expression, [PYTHON_OPERATORS[kind]], operands, [], 1).outputs
        if kind is ast.Mod and result.node is not None and _is_float(result.node.inputs[1]):
            result.node.attributes["fmod"] = 1  # ONNX has no other remainder of floats
        if kind is ast.NotEq:
            negated = PNode(result.place, ("Not",), [result])
            negated.outputs.append(PValue(result.place, node=negated))
            return negated.outputs[0]
        return result

    # Nodes

    def node(
        self,
        at: ast.AST,
        keys: Sequence[str],
        arguments: Sequence[ast.expr],
        keywords: Sequence[ast.keyword],
        count: int,
    ) -> PNode:
        """A node of one of these ops with `count` outputs, checked against the schemas."""
        versions = [(key, self.version_of(split_key(key)[0], at)) for key in keys]
        for problem in (why_unknown(key, version) for key, version in versions):
            if problem:
                self.fail(at, problem)
        call = Call.of(versions)
        inputs: list[PValue | None] = []
        attributes: dict[str, AttributeValue | AttributeParameter] = {}
        try:
            for slot, argument in enumerate(arguments):
                where: ast.AST = argument
                call.check_position(slot)
                inputs.append(self.value(self.plain(argument)))
            for keyword in keywords:
                where = keyword.value
                name = self.keyword_name(keyword)
                if (place := call.slot(name)) is not None:
                    if place < len(inputs) and (place < len(arguments) or inputs[place] is not None):
                        self.fail(where, f"input {name} of {call.label} is given twice; remove one")
                    inputs.extend([None] * (place + 1 - len(inputs)))
                    inputs[place] = self.value(keyword.value)
                elif (value := self._attribute(call, name, keyword.value)) is not None:
                    attributes[name] = value
            where = at
            while inputs and inputs[-1] is None:
                inputs.pop()
            call.check_inputs([v is not None for v in inputs])
            call.check_outputs(count)
        except ValueError as e:
            self.fail(where, str(e))
        node = PNode(self.source.place(at), tuple(keys), inputs, attributes=attributes)
        node.outputs.extend(PValue(node.place, node=node, slot=slot) for slot in range(count))
        return node

    def _attribute(self, call: Call, name: str, expression: ast.expr) -> AttributeValue | AttributeParameter | None:
        wanted = call.attribute_type(name)
        value = self.attribute(expression)
        if isinstance(value, AttributeParameter):
            call.check_attribute_parameter(name, ATTRIBUTE_TYPES[value.type], value.name)
            return value
        try:
            return None if value is None else attribute_value(value, wanted)
        except ValueError as e:
            raise ValueError(f"attribute {name} of {call.label}: {e}") from None

    def attribute(self, expression: ast.expr) -> object:
        """The Python value of an attribute, or the attribute parameter that it is."""
        if isinstance(expression, ast.Name) and expression.id in self.attributes:
            self.unread.pop(expression.id, None)
            return self.attributes[expression.id]
        if not self.is_constant(expression):
            text = ast.unparse(expression)
            if isinstance(expression, ast.Name):
                self.fail(
                    expression,
                    f"{text} is a tensor, no attribute; annotate it with int, float, ...",
                )
            self.fail(expression, f"{text} cannot be an attribute; write a constant or the name of a parameter")
        return self._constant(expression, attribute=True)

    def plain(self, argument: ast.expr) -> ast.expr:
        """An argument that is not starred."""
        if isinstance(argument, ast.Starred):
            self.fail(argument, "* is not supported in a rule; write the inputs one by one")
        return argument

    def keyword_name(self, keyword: ast.keyword) -> str:
        """The name of a keyword argument."""
        if keyword.arg is None:
            self.fail(keyword.value, "** is not supported in a rule; write the attributes one by one")
        return keyword.arg

    # Opsets

    def use(self, domain: str, version: int, at: ast.AST) -> None:
        """Remember that a domain is used in this version; there can be only one."""
        if (other := self.reading.opsets.setdefault(domain, version)) != version:
            self.fail(
                at,
                f"{domain or 'ai.onnx'} is used in versions {other} and {version}; a model has one; use one",
            )

    def version_of(self, domain: str, at: ast.AST) -> int:
        """The version in which the function uses a domain: 1 for another one that it has no Opset of."""
        if domain in self.reading.opsets:
            return self.reading.opsets[domain]
        version = self.source.function.function_ir.opset_imports.get(domain)
        if version is None and domain == "":
            version = self.source.default_version
            if version is None:
                self.fail(at, "the opset version is not known; write @script(default_opset=...)")
        return version or 1

    def _callee(self, call: ast.Call) -> onnxscript.OnnxFunction[..., Any] | tuple[Opset, str] | None:
        """What a call calls, if that is a script function or an op."""
        function = call.func
        if isinstance(function, ast.Attribute) and isinstance(opset := self._resolve(function.value), Opset):
            return opset, function.attr
        found = self._resolve(function)
        if isinstance(found, onnxscript.OnnxFunction):
            return found
        return (found.opset, found.name) if isinstance(found, Op) else None

    def _resolve(self, expression: ast.expr) -> object:
        """What a dotted name is, outside of the function; None if it is nothing."""
        if isinstance(expression, ast.Name) and expression.id not in self.tensors | self.attributes:
            return self.source.names.get(expression.id)
        if isinstance(expression, ast.Attribute):
            return getattr(self._resolve(expression.value), expression.attr, None)
        return None

    def _no_callee(self, call: ast.Call) -> NoReturn:
        text = ast.unparse(call.func)
        if isinstance(call.func, ast.Name) and not self.source.sees(call.func.id):
            self.fail(call, f"{text} is not defined; call an op, such as op.{text}, or another script function")
        self.fail(call, f"{text} is no op and no script function; only those can be called with tensors")


def _is_float(value: PValue | None) -> bool:
    return value is not None and value.literal is not None and np.issubdtype(value.literal.dtype, np.floating)
