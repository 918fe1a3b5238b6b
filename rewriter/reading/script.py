"""`read_script`: one `@script()` function into a `PatternGraph`.

This module has the statements: what is assigned, what is returned, what is never used. A rule says each thing
once, so a name is assigned once, everything assigned is used, and a value has one name: names tie nodes of
the source to nodes of the target, and a name with two meanings would tie the wrong ones. Calls of other
script functions are read in their place; names inside of them are theirs, and tie nothing.
"""

from __future__ import annotations

import ast
from typing import Any

import onnxscript

from rewriter.pattern.graph import AttributeParameter, AttributeValue, PatternGraph, PValue
from rewriter.pattern.markers import Many, Marker, Maybe
from rewriter.reading.agreement import check_agreement
from rewriter.reading.expressions import ExpressionReader, Reading, Role
from rewriter.reading.parameters import ATTRIBUTE_TYPES, Parameter, read_annotation, read_parameters
from rewriter.reading.source import Source
from rewriter.schemas import attribute_value


def read_script(function: onnxscript.OnnxFunction[..., Any], role: Role) -> PatternGraph:
    """Read one side of a rule. Every mistake in it is a `RuleError` that names its file and line."""
    source = Source.of(function)
    body = _Body(source, Reading(role, calls=[function]), inlined=False)
    parameters: dict[str, PValue] = {}
    attributes: dict[str, AttributeParameter] = {}
    for p in read_parameters(source):
        if p.attribute is not None:
            attributes[p.name] = p.attribute
            body.bind_attribute(p, p.attribute)
        else:
            value = PValue(source.place(p.node), name=p.name, parameter=True, markers=p.markers)
            parameters[p.name] = value
            body.bind_tensor(p, value)
    outputs = body.read()
    graph = PatternGraph(function.name, source.place(source.tree), parameters, attributes, outputs, body.reading.opsets)
    check_agreement(source, graph)
    return graph


class _Body(ExpressionReader):
    """Reads the statements of one function, once its parameters are bound."""

    def __init__(self, source: Source, reading: Reading, inlined: bool) -> None:
        super().__init__(source, reading)
        self.inlined = inlined
        self.lines: dict[str, int] = {}
        self.parameters: set[str] = set()

    def bind_tensor(self, parameter: Parameter, value: PValue | None) -> None:
        """Give a tensor parameter its value; None is an absent one."""
        self.tensors[parameter.name] = value
        self._declare(parameter)

    def bind_attribute(self, parameter: Parameter, value: AttributeParameter | AttributeValue | None) -> None:
        """Give an attribute parameter its value; None is an absent one."""
        self.attributes[parameter.name] = value
        self._declare(parameter)

    def _declare(self, parameter: Parameter) -> None:
        self.parameters.add(parameter.name)
        self.unread[parameter.name] = parameter.node

    # Statements

    def read(self) -> list[PValue]:
        """The values that the function returns."""
        outputs: list[PValue] | None = None
        for statement in self.source.tree.body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring, or a comment in the form of one
            if outputs is not None:
                self.fail(statement, "nothing can follow the return; remove it")
            if isinstance(statement, ast.Return):
                outputs = self._return(statement)
            else:
                self._statement(statement)
        if outputs is None:
            self.fail(self.source.tree, "it returns nothing; return the outputs of the last nodes")
        for name, node in self.unread.items():
            if name in self.parameters:
                self.fail(node, f"parameter {name} is never used; remove it")
            self.fail(node, f"{name} is assigned and never used; remove it (or write _ for an unused output)")
        return outputs

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, statement.value)
            self._mark(statement)
        elif isinstance(statement, ast.Assign):
            if len(statement.targets) > 1:
                self.fail(statement, "one name for each value; write x = ... once")
            self._assign(statement.targets[0], statement.value)
        elif isinstance(statement, ast.Expr):
            self.fail(statement, "the value of this is never used; assign it, or remove it")
        elif isinstance(statement, ast.If):
            self.fail(statement, "a rule has no branches; write P.AnyOf, two rules, or decide in the callback")
        elif isinstance(statement, ast.For | ast.While):
            self.fail(statement, "a rule has no loops; write the nodes one by one, or P.Chain")
        elif isinstance(statement, ast.AugAssign):
            self.fail(statement, "a name is assigned once; write a new one, y = x + ...")
        else:
            kind = type(statement).__name__
            self.fail(statement, f"{kind} has no meaning in a rule; it has assignments and one return")

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if not isinstance(target, ast.Tuple | ast.List):
            self._name(target, self.present(value))
            return
        if isinstance(value, ast.Tuple):
            if len(value.elts) != len(target.elts):
                self.fail(value, f"{len(value.elts)} values for {len(target.elts)} names")
            values: list[PValue | None] = [self.present(v) for v in value.elts]
        elif isinstance(value, ast.Call):
            values = self.values(value, len(target.elts))
        else:
            self.fail(value, "only the outputs of a call can be taken apart; write a, b = op.Split(...)")
        for t, v in zip(target.elts, values, strict=True):
            if v is None:
                self.fail(value, "None cannot be assigned; leave the input out where it is used")
            self._name(t, v)

    def _name(self, target: ast.expr, value: PValue) -> None:
        """Bind a name to a value; outside of called functions, the name is the value's and ties."""
        if not isinstance(target, ast.Name):
            self.fail(target, f"{ast.unparse(target)}: only a plain name can be assigned")
        name = target.id
        if name == "_":
            return
        if name in self.parameters:
            self.fail(target, f"{name} is a parameter; give the new value a name of its own")
        if name in self.tensors:
            self.fail(
                target,
                f"{name} is assigned already (line {self.lines[name]}); give the new value another name",
            )
        other = next((n for n, v in self.tensors.items() if v is value), None)
        if other is not None:
            self.fail(target, f"{name} is another name for {other}; a value has one, so use that")
        self.tensors[name] = value
        self.unread[name] = target
        self.lines[name] = self.source.place(target).line
        if not self.inlined:
            _give_name(value, name)

    def _mark(self, statement: ast.AnnAssign) -> None:
        """Markers on a variable ask the same of an inner value as they do of a parameter."""
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        annotation = self.source.evaluate(statement.annotation)
        _, markers = read_annotation(self.source, statement.annotation, name, annotation)
        if not markers:
            return
        if self.reading.role == "target" or self.inlined:
            self.fail(
                statement.annotation,
                f"{name}: markers are questions, and only a source asks them; remove them",
            )
        if any(isinstance(m, Maybe | Many) for m in markers):
            self.fail(statement.annotation, f"{name}: Maybe and Many are for parameters; remove them here")
        value = self.tensors[name]
        assert value is not None
        value.markers += tuple(markers)

    def _return(self, statement: ast.Return) -> list[PValue]:
        if statement.value is None:
            self.fail(statement, "it returns nothing; return the outputs of the last nodes")
        several = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
        outputs: list[PValue] = []
        for expression in several:
            value = self.present(expression)
            if self.reading.role == "source" and not self.inlined:
                if not _computed(value):
                    self.fail(
                        expression,
                        f"{ast.unparse(expression)} is no output of a node; a source returns those",
                    )
                if any(value is o for o in outputs):
                    self.fail(expression, f"{ast.unparse(expression)} is returned twice; return it once")
            outputs.append(value)
        return outputs

    # Calls of other script functions

    def call_script(self, function: onnxscript.OnnxFunction[..., Any], call: ast.Call) -> list[PValue | None]:
        """The values that another script function returns for these arguments."""
        if any(function is f for f in self.reading.calls):
            self.fail(call, f"{function.name} calls itself; a rule has no recursion")
        source = Source.of(function)
        body = _Body(source, self.reading, inlined=True)
        parameters = read_parameters(source)
        if len(call.args) > len(parameters):
            self.fail(call.args[len(parameters)], f"{function.name} has {len(parameters)} parameters; remove this")
        given = {p.name: self.plain(a) for p, a in zip(parameters, call.args, strict=False)}
        for keyword in call.keywords:
            name = self.keyword_name(keyword)
            if name in given or all(name != p.name for p in parameters):
                problem = "is given twice" if name in given else "is not one of its parameters"
                self.fail(keyword.value, f"{name} of {function.name} {problem}; remove it")
            given[name] = keyword.value
        for p in parameters:
            self._pass(body, p, given.get(p.name), call)
        self.reading.calls.append(function)
        outputs = body.read()
        self.reading.calls.pop()
        return [*outputs]

    def _pass(self, body: _Body, parameter: Parameter, given: ast.expr | None, call: ast.Call) -> None:
        name = f"{parameter.name} of {body.source.function.name}"
        if given is None and not parameter.has_default and not _optional(parameter.markers):
            self.fail(call, f"{name} is missing; give it")
        if parameter.attribute is None:
            if any(not isinstance(m, Maybe) for m in parameter.markers):
                self.fail(call, f"{name} has markers, which a called function cannot; move them to the rule's own")
            body.bind_tensor(parameter, None if given is None else self.value(given))
            return
        value = parameter.attribute.default if given is None else self.attribute(given)
        if isinstance(value, AttributeParameter):
            if ATTRIBUTE_TYPES[value.type] != ATTRIBUTE_TYPES[parameter.attribute.type]:
                self.fail(given or call, f"{name} is of another type than {value.name}; change an annotation")
            body.bind_attribute(parameter, value)
            return
        try:
            wanted = ATTRIBUTE_TYPES[parameter.attribute.type]
            body.bind_attribute(parameter, None if value is None else attribute_value(value, wanted))
        except ValueError as e:
            self.fail(given or call, f"{name}: {e}")


def _optional(markers: tuple[Marker, ...]) -> bool:
    return any(isinstance(m, Maybe) for m in markers)


def _give_name(value: PValue, name: str) -> None:
    """The value gets the name, and so does each of its alternatives whose node has none."""
    value.name = name
    for choice in value.choices:
        if choice.choices and choice.name is None:
            _give_name(choice, name)
        elif choice.node is not None and choice.node.name is None:
            choice.name = name


def _computed(value: PValue) -> bool:
    """Whether the value, in every alternative, is the output of a node."""
    return all(map(_computed, value.choices)) if value.choices else value.node is not None
