"""The source of one script function: its syntax tree, the names it can see, and where each line is.

A rule is read from its text and not from what onnxscript's converter made of it, because the converter has
dropped by then what an author needs to hear about: lines, surplus inputs, the slot of an input given by
keyword. The text is the one that was captured at decoration, so that a file edited since cannot shift the
lines; `co_firstlineno` is the line of the first decorator, which is also where that text begins, in files and
in notebook cells alike.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onnxscript import OnnxFunction
from onnxscript.values import Opset

from rewriter.errors import RuleError
from rewriter.pattern.graph import Place


@dataclass(frozen=True)
class Source:
    """One script function as text."""

    function: OnnxFunction[..., Any]
    tree: ast.FunctionDef
    names: dict[str, object]
    """What the function sees from outside: globals, then the variables of enclosing functions."""

    @classmethod
    def of(cls, function: OnnxFunction[..., Any]) -> Source:
        """The source of this function."""
        tree = ast.parse(function.source).body[0]
        assert isinstance(tree, ast.FunctionDef)
        plain = function.function
        names: dict[str, object] = dict(plain.__globals__)
        for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # assigned later than the function was defined, and not yet
                continue
        return cls(function, tree, names)

    def place(self, node: ast.AST) -> Place:
        """Where a piece of the tree stands in its file."""
        code = self.function.function.__code__
        return Place(code.co_filename, code.co_firstlineno + getattr(node, "lineno", 1) - 1)

    def error(self, node: ast.AST, problem: str) -> RuleError:
        """The error to raise for this piece of the tree; `problem` says what is wrong and what to do."""
        return RuleError(f"{self.place(node)}: rule script {self.function.name}: {problem}")

    def sees(self, name: str) -> bool:
        """Whether the function sees this name from outside."""
        return name in self.names or hasattr(builtins, name)

    def evaluate(self, expression: ast.expr) -> object:
        """The Python value of an expression without local names."""
        code = compile(ast.Expression(expression), self.place(expression).file, "eval")
        try:
            return eval(code, dict(self.names))
        except Exception as e:
            text = ast.unparse(expression)
            raise self.error(
                expression,
                f"{text} cannot be evaluated: {e}; constants are computed when the rule is defined",
            ) from e

    @cached_property
    def default_version(self) -> int | None:
        """The version of ai.onnx that operators and `P.Op` use; None where the function says none."""
        version = self.function.function_ir.opset_imports.get("")
        if version is not None:
            return version
        for decorator in self.tree.decorator_list:
            for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
                if keyword.arg == "default_opset":
                    opset = self.evaluate(keyword.value)
                    return opset.version if isinstance(opset, Opset) else None
        return None
