"""What `read_script` says to an author who made a mistake: every kind, with the exact file and line.

The rules are text, written to a file of their own, because a linter would refuse half of them. `# <-` is on
the line that the message must name. onnxscript's converter refuses some of them itself, with other words; so
they are decorated without it (`raw`), and what is tested is our reader alone.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from rewriter.errors import RuleError
from rewriter.reading import read_script

HEAD = """
import math
import inspect
import textwrap
from typing import Annotated, Optional, Sequence
from onnxscript import OnnxFunction, script
from onnxscript.onnx_opset import opset18, opset21 as op
from onnxscript.values import Opset
from onnxscript._internal.irbuilder import IRFunction
from rewriter.pattern import Const, Dims, Many, Maybe, P, Tensor

ml = Opset("ai.onnx.ml", 3)

def raw(default_opset=None):
    def transform(f):
        source = textwrap.dedent(inspect.getsource(f))
        return OnnxFunction(Opset("this", 1), f, IRFunction(f.__name__, "this"), source, {})
    return transform

def plain(x):
    return x

@raw()
def gelu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return op.Elu(x, alpha=alpha)

@raw()
def two(x: Tensor) -> Tensor:
    return op.Relu(x), op.Neg(x)

@raw()
def marked(x: Annotated[Tensor, Const]) -> Tensor:
    return op.Relu(x)

@raw()
def wrong_inside(x: Tensor) -> Tensor:
    return op.Reluu(x)

"""

counter = itertools.count()


def load(folder: Path, text: str) -> Any:
    """The module with this text."""
    name = f"mistakes_{next(counter)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def check(folder: Path, role: Literal["source", "target"], rule: str, words: str) -> None:
    """Reading `rule` must fail on the line marked `# <-` with these words."""
    head = "@raw(default_opset=op)\n" if not rule.startswith("@") else ""
    module = load(folder, HEAD + head + rule)
    lines = (HEAD + head + rule).splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "# <-" in text)
    with pytest.raises(RuleError) as error:
        read_script(module.f, role)
    message = str(error.value)
    assert message.startswith(f"{module.__file__}:{line}: rule script f: "), message
    assert words in message


def body(*lines: str, parameters: str = "x: Tensor") -> str:
    """A rule with these statements."""
    return "\n".join([f"def f({parameters}):", *(f"    {line}" for line in lines), ""])


CALLS = {
    "unknown op": ("op.Reluu(x)", "ai.onnx has no op Reluu; did you mean Relu?"),
    "unknown op of another known domain": ("ml.Scalr(x)", "ai.onnx.ml has no op Scalr; did you mean Scaler?"),
    "deprecated op": ("op.Upsample(x, x)", "deprecated since opset 10"),
    "unknown attribute": (
        "op.Softmax(x, axes=1)",
        "Softmax has no attribute axes (since opset 13); did you mean axis?",
    ),
    "attribute of another type": (
        "op.Softmax(x, axis=1.5)",
        "attribute axis of Softmax: expected INT, got 1.5",
    ),
    "graph attribute": ("op.If(x, then_branch=3)", "GRAPH cannot be written in a rule"),
    "surplus inputs": ("op.Relu(x, x)", "Relu has 1 input, this is number 2; remove it"),
    "attribute as an input": ("op.Softmax(x, 1)", "give an attribute by name (such as axis=...)"),
    "missing input": ("op.Conv(x)", "Conv requires its input W (number 2); give it"),
    "None for a required input": ("op.Conv(x, None, x)", "Conv requires its input W"),
    "None in a variadic input": ("op.Concat(x, None, x, axis=0)", "none of its inputs can be None"),
    "no variadic input": ("op.Concat(axis=0)", "Concat requires its input inputs"),
    "input given twice": ("op.Clip(x, 0.0, min=1.0)", "input min of Clip is given twice"),
    "too few outputs": (
        "op.TopK(x, x)",
        "TopK has 2 outputs; write Values, Indices = ..., with _ for unused",
    ),
    "undefined name": ("op.Relu(xx)", "xx is not defined; did you mean x?"),
    "undefined function": ("relu(x)", "relu is not defined; call an op, such as op.relu"),
    "plain function": ("plain(x)", "plain is no op and no script function"),
    "no tensor": ("op.Relu(plain)", "plain is neither a tensor nor a constant"),
    "tensor as an attribute": (
        "op.Softmax(x, axis=x)",
        "x is a tensor, no attribute; annotate it with int, float",
    ),
    "expression as an attribute": (
        "op.Softmax(x, axis=-op.Size(x))",
        "cannot be an attribute; write a constant",
    ),
    "bad constant": ("op.Mul(x, math.sqrt(-1))", "math.sqrt(-1) cannot be evaluated: math domain error"),
    "quotient of integers": ("op.Mul(x, 1 / 2)", "1 / 2 divides integers, which ONNX does with truncation"),
    "empty list": ("op.Reshape(x, [])", "an empty list has no element type"),
    "star": ("op.Concat(*[x], axis=0)", "* is not supported"),
    "two stars": ("op.Softmax(x, **{'axis': 1})", "** is not supported"),
    "indexing": ("x[0]", "write op.Slice or op.Gather"),
    "and": ("x and x", "write op.And or op.Or"),
    "ternary": ("x if x else op.Relu(x)", "a rule has no branches"),
    "lambda": ("lambda: x", "this expression has no meaning in ONNX"),
    "operator": ("x // x", "ONNX Script has no such operator"),
    "two comparisons": ("x < x < x", "several comparisons in one"),
    "two opset versions": ("op.Relu(opset18.Neg(x))", "ai.onnx is used in versions 21 and 18"),
    "empty constant": ("op.Add(x, op.Constant())", "op.Constant needs exactly one attribute"),
    "unknown pattern operator": ("P.Coer(op.Relu(x))", "no pattern operator P.Coer; did you mean P.Core?"),
    "pattern operator like no other": ("P.Zzz(x)", "there are AnyOf, Op, Chain, OnlyUse, Core"),
    "P.Op without types": ("P.Op(x)", 'P.Op needs its op types; write types=["Relu", "Clip"]'),
    "P.Op with a string": ("P.Op(x, types='Relu')", "types of P.Op must be a list of op types"),
    "P.Op with no types": ("P.Op(x, types=[])", "types of P.Op must be a list of op types"),
    "P.Op of an unknown op": ("P.Op(x, types=['Relu', 'Reluu'])", "did you mean Relu?"),
    "P.Op with dots": ("P.Op(x, types=['com.microsoft.Gelu'])", "two colons, com.microsoft::Gelu"),
    "P.Op of a later opset": ("P.Op(x, types=['Swish', 'Relu'])", "Swish does not exist at opset 21"),
    "P.Op with an attribute of one": (
        "P.Op(x, types=['Elu', 'Relu'], alpha=1.0)",
        "Relu has no attribute alpha",
    ),
    "P.Op with an attribute of two types": (
        "P.Op(x, types=['Cast', 'RNN'], to=1)",
        "RNN has no attribute to",
    ),
    "P.Op without inputs": ("P.Op(types=['Relu', 'Conv'])", "Relu requires its input X"),
    "P.Op with surplus inputs": (
        "P.Op(x, x, types=['Relu', 'Neg'])",
        "Relu/Neg has 1 input, this is number 2",
    ),
    "P.Chain without ops": ("P.Chain(x)", "P.Chain needs its op types"),
    "P.Chain of two": (
        "P.Chain(x, x, ops=['Relu'])",
        "P.Chain takes exactly one value; write P.Chain(v, ops=[...])",
    ),
    "P.Chain with an attribute": ("P.Chain(x, ops=['Relu'], axis=1)", "P.Chain takes exactly one value"),
    "P.Chain of None": ("P.Chain(None, ops=['Relu'])", "None can only be an input of an op"),
    "P.AnyOf of one": ("P.AnyOf(op.Relu(x))", "P.AnyOf takes two or more values"),
    "P.AnyOf with a keyword": ("P.AnyOf(op.Relu(x), x, y=x)", "P.AnyOf takes two or more values"),
    "P.Core of nothing": ("P.Core()", "P.Core takes exactly one value; write P.Core(v)"),
    "P.Core of a parameter": ("P.Core(x)", "P.Core says something about the output of a node"),
    "two cores": ("P.Core(op.Relu(P.Core(op.Neg(x))))", "P.Core can occur only once in a source"),
    "surplus argument of a script": ("gelu(x, 1.0, x)", "gelu has 2 parameters; remove this"),
    "missing argument of a script": ("gelu()", "x of gelu is missing; give it"),
    "unknown argument of a script": ("gelu(x, beta=1.0)", "beta of gelu is not one of its parameters"),
    "argument of a script given twice": ("gelu(x, x=x)", "x of gelu is given twice"),
    "attribute of a script": ("gelu(x, alpha='a')", "alpha of gelu: expected FLOAT, got 'a'"),
    "two values for one": ("op.Relu(two(x))", "two gives 2 values, here it must be 1"),
    "markers in a called script": ("marked(x)", "x of marked has markers, which a called function cannot"),
    "recursion": ("f(x)", "f calls itself; a rule has no recursion"),
}


@pytest.mark.parametrize("name", CALLS)
def test_expressions(tmp_path: Path, name: str) -> None:
    expression, words = CALLS[name]
    check(tmp_path, "source", body("y = op.Abs(x)", f"z = {expression}  # <-", "return op.Add(y, z)"), words)


STATEMENTS = {
    "reassignment": (["y = op.Relu(x)", "y = op.Neg(y)  # <-", "return y"], "y is assigned already (line "),
    "shadowed parameter": (
        ["x = op.Relu(x)  # <-", "return x"],
        "x is a parameter; give the new value a name",
    ),
    "dead code": (["y = op.Relu(x)  # <-", "return op.Neg(x)"], "y is assigned and never used"),
    "unused output": (
        ["a, b = op.Split(x, num_outputs=2)  # <-", "return op.Neg(a)"],
        "b is assigned and never used",
    ),
    "statement after return": (["return op.Relu(x)", "y = op.Neg(x)  # <-"], "nothing can follow the return"),
    "no return": (["# <-"], "it returns nothing"),
    "empty return": (["return  # <-"], "it returns nothing"),
    "if": (["if x:  # <-", "    y = op.Relu(x)", "return x"], "a rule has no branches"),
    "for": (["for i in range(2):  # <-", "    y = op.Relu(x)", "return x"], "a rule has no loops"),
    "while": (["while x:  # <-", "    y = op.Relu(x)", "return x"], "a rule has no loops"),
    "augmented assignment": (["y = op.Relu(x)", "y += x  # <-", "return y"], "write a new one"),
    "nested function": (["def g(): return x  # <-", "return g()"], "FunctionDef has no meaning in a rule"),
    "unused call": (["op.Relu(x)  # <-", "return op.Neg(x)"], "the value of this is never used"),
    "alias of a parameter": (["y = x  # <-", "return op.Relu(y)"], "y is another name for x"),
    "alias": (["y = op.Relu(x)", "z = y  # <-", "return op.Add(z, y)"], "z is another name for y"),
    "alias by a wrapper": (
        ["y = op.Relu(x)", "z = P.Core(y)  # <-", "return op.Neg(z)"],
        "z is another name for y",
    ),
    "chained assignment": (["y = z = op.Relu(x)  # <-", "return op.Add(y, z)"], "one name for each value"),
    "attribute assignment": (["x.y = op.Relu(x)  # <-", "return x"], "only a plain name can be assigned"),
    "unpacking": (["a, b = x  # <-", "return op.Add(a, b)"], "only the outputs of a call can be taken apart"),
    "unequal tuples": (["a, b = x,  # <-", "return op.Add(a, b)"], "1 values for 2 names"),
    "too many outputs": (["a, b = op.Relu(x)  # <-", "return op.Add(a, b)"], "Relu has 1 output, not 2"),
    "unpacked choice": (
        ["a, b = P.AnyOf(x, x)  # <-", "return op.Add(a, b)"],
        "gives 1 values, here it must be 2",
    ),
    "assigned None": (["y = None  # <-", "return op.Clip(x, y)"], "None can only be an input"),
    "returned parameter": (
        ["y = op.Relu(x)", "return y, x  # <-"],
        "x is no output of a node; a source returns",
    ),
    "returned literal": (["return 1.0  # <-"], "1.0 is no output of a node"),
    "possibly a parameter": (["return P.AnyOf(op.Relu(x), x)  # <-"], "is no output of a node"),
    "returned twice": (["y = op.Relu(x)", "return y, y  # <-"], "y is returned twice"),
    "second line": (["return op.Relu(", "    op.Neg(", "        op.Reluu(x)  # <-", "))"], "no op Reluu"),
    "keyword on its own line": (["return op.Softmax(", "    x,", "    axis='a',  # <-", ")"], "expected INT"),
    "markers that only parameters have": (
        ["y: Annotated[Tensor, Maybe] = op.Relu(x)  # <-", "return op.Neg(y)"],
        "Maybe and Many are for parameters",
    ),
    "error after a docstring": (['"""Two', 'lines."""', "return op.Reluu(x)  # <-"], "no op Reluu"),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements(tmp_path: Path, name: str) -> None:
    lines, words = STATEMENTS[name]
    if lines == ["# <-"]:
        check(tmp_path, "source", "def f(x: Tensor):  # <-\n    'nothing'\n", words)
    else:
        check(tmp_path, "source", body(*lines), words)


PARAMETERS = {
    "unused": ("y: Tensor", "parameter y is never used"),
    "unused attribute": ("axis: int", "parameter axis is never used"),
    "no marker": ("y: Annotated[Tensor, 3]", "y: 3 is no marker"),
    "bare marker": ("y: Const", "y: a marker goes inside of Annotated"),
    "bare marker with options": ("y: Dims('M')", "y: a marker goes inside of Annotated"),
    "strange annotation": ("y: dict", "is no tensor and no attribute"),
    "markers of an attribute": ("y: Annotated[int, Const]", "y: markers are for tensors"),
    "default of a tensor": ("y: Tensor = 1.0", "y: a tensor's only default is None"),
    "default of an attribute": ("y: int = 1.5", "the default of y: expected INT, got 1.5"),
    "star": ("*y", "y must be a plain parameter"),
    "keyword only": ("*, y: int", "y must be a plain parameter"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(tmp_path: Path, name: str) -> None:
    text, words = PARAMETERS[name]
    rule = f"def f(\n    x: Tensor,\n    {text},  # <-\n):\n    return op.Relu(x)\n"
    check(tmp_path, "source", rule, words)


USES = {
    "attribute parameter as a tensor": ("op.Mul(x, a)", "attribute parameter a is used as a tensor"),
    "attribute parameter of another type": (
        "op.Softmax(x, axis=a)",
        "axis of Softmax is INT, but parameter a is FLOAT",
    ),
    "expression of an attribute parameter": (
        "op.Elu(x, alpha=a + 1)",
        "write a constant or the name of a parameter",
    ),
    "constant of an attribute parameter": (
        "op.Add(x, op.Constant(value_float=a))",
        "op.Constant of attribute parameter",
    ),
    "types from an attribute parameter": ("P.Op(x, types=a)", "types of P.Op must be a list"),
}


@pytest.mark.parametrize("name", USES)
def test_uses_of_attribute_parameters(tmp_path: Path, name: str) -> None:
    expression, words = USES[name]
    check(tmp_path, "target", body(f"return {expression}  # <-", parameters="x: Tensor, a: float"), words)


def test_types_of_attribute_parameters_in_calls(tmp_path: Path) -> None:
    check(
        tmp_path,
        "source",
        body("return gelu(x, a)  # <-", parameters="x: Tensor, a: int"),
        "is of another type than a",
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["return P.AnyOf(op.Relu(x), op.Neg(x))  # <-"], "P.AnyOf in a target"),
        (["y = op.Relu(x)  # <-", "return op.Neg(x)"], "y is assigned and never used"),
        (["y: Annotated[Tensor, Const] = op.Relu(x)  # <-", "return y"], "only a source asks them"),
    ],
)
def test_targets(tmp_path: Path, lines: list[str], words: str) -> None:
    check(tmp_path, "target", body(*lines), words)


def test_unused_parameter_of_a_target(tmp_path: Path) -> None:
    check(
        tmp_path,
        "target",
        "def f(\n    x: Tensor,\n    b: Tensor,  # <-\n):\n    return x\n",
        "b is never used",
    )


def test_no_default_opset(tmp_path: Path) -> None:
    rule = "@raw()\n" + body("return P.Op(x, types=['Relu', 'Neg'])  # <-")
    check(tmp_path, "source", rule, "write @script(default_opset=...)")


def test_a_mistake_in_a_called_script_is_named_there(tmp_path: Path) -> None:
    module = load(tmp_path, HEAD + "@raw()\n" + body("return wrong_inside(x)"))
    line = HEAD.splitlines().index("    return op.Reluu(x)") + 1
    with pytest.raises(RuleError, match=rf"{module.__file__}:{line}: rule script wrong_inside: .*Reluu"):
        read_script(module.f, "source")


def test_op_of_a_later_opset(tmp_path: Path) -> None:
    words = "Gelu does not exist at opset 18 of ai.onnx; it came with opset 20"
    check(tmp_path, "source", body("return opset18.Gelu(x)  # <-"), words)


def test_lines_hold_inside_of_a_class_and_a_function(tmp_path: Path) -> None:
    rule = """
class C:
    def make():
        @raw()
        def f(x):
            return op.Reluu(x)  # <-
        return f
f = C.make()
"""
    check(tmp_path, "source", "@staticmethod\ndef other(): pass\n" + rule, "did you mean Relu?")


def test_an_annotation_that_cannot_be_evaluated(tmp_path: Path) -> None:
    module = load(tmp_path, HEAD + "@raw()\n" + body("return op.Relu(x)"))
    module.f.function.__annotations__["x"] = "Tensr"
    with pytest.raises(RuleError, match="the annotation of x cannot be evaluated: name 'Tensr' is not defined"):
        read_script(module.f, "source")


CONVERTED = HEAD[: HEAD.index("@raw")]


def test_postponed_annotations(tmp_path: Path) -> None:
    rule = """
@script(default_opset=op)
def f(x: Annotated[Tensor, Const], axis: int = 1):
    return op.Softmax(x, axis=axis)
"""
    module = load(tmp_path, "from __future__ import annotations\n" + CONVERTED + rule)
    graph = read_script(module.f, "source")
    assert [type(m).__name__ for m in graph.parameters["x"].markers] == ["Const"]
    assert graph.attribute_parameters["axis"].default == 1


@pytest.mark.filterwarnings("ignore:Version conflict")
def test_two_versions_of_a_custom_domain(tmp_path: Path) -> None:
    rule = "a, b = Opset('a', 1), Opset('a', 2)\n\n@script(default_opset=op)\n"
    module = load(tmp_path, CONVERTED + rule + body("y = a.F(x)", "return b.F(y)"))
    with pytest.raises(RuleError, match="a is used in versions 1 and 2; a model has one"):
        read_script(module.f, "source")
