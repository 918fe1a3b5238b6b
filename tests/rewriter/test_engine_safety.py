"""What an edit may never do: rewire the wrong operand, span scopes, mix element types, blame a rule for a bad model.

Each test is of a kind of fault that was found by attacking the engine, on models that are valid.
"""

from typing import Annotated, Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnxscript import opset17 as op
from onnxscript import script

import rewriter
from rewriter import ModelError, RuleError, rewrite, rule
from rewriter.pattern import Const, DType, P, Tensor
from tests.rewriting import check

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEAD}\n{text}")


@script(default_opset=op)
def exp_plus_negative(x: Tensor, b: Tensor) -> Tensor:
    e = op.Exp(x)
    s = op.Add(e, op.Neg(b))
    return op.Tanh(s)


@script(default_opset=op)
def exp_plus_absolute(x: Tensor, b: Tensor) -> Tensor:
    e = op.Exp(x)
    s = op.Add(e, op.Abs(b))
    return op.Tanh(s)


@pytest.mark.parametrize("operands", ["e, n", "n, e"])
def test_a_kept_commuted_node_is_rewired_where_its_operand_stands(operands: str) -> None:
    model = parse(
        f"g (float[2] x, float[2] b) => (float[2] y) {{ e = Exp(x) n = Neg(b) s = Add({operands}) y = Tanh(s) }}"
    )
    result = rewriter.apply(model, rewrite(exp_plus_negative, exp_plus_absolute))
    add = next(n for n in result.graph.node if n.op_type == "Add")
    assert "e" in add.input
    assert "n" not in add.input
    assert add.input[operands.split(", ").index("e")] == "e"
    onnx.checker.check_model(result, full_check=True)


@script(default_opset=op)
def two_of_one(x: Tensor) -> tuple[Tensor, Tensor]:
    return op.Exp(x), op.Abs(x)


@script(default_opset=op)
def two_swapped(x: Tensor) -> tuple[Tensor, Tensor]:
    return op.Abs(op.Relu(x)), op.Exp(op.Relu(x))


ACROSS = {
    "main and then": """g (float[2] x, bool c) => (float[2] y, float[2] z) {
        z = Abs(x)
        y = If(c) <then_branch = t () => (float[2] p) { p = Exp(x) }, else_branch = e () => (float[2] q) { q = Neg(x) }>
    }""",
    "then and else": """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] p) { p = Exp(x) }, else_branch = e () => (float[2] q) { q = Abs(x) }>
    }""",
}


@pytest.mark.parametrize("text", ACROSS.values(), ids=ACROSS)
def test_one_rewrite_never_spans_two_scopes(text: str) -> None:
    model = parse(text)
    result = rewriter.run(model, rewrite(two_of_one, two_swapped))
    assert result.model is model
    assert "scope" in result.report.declined[0].reason


@script(default_opset=op)
def x_times_relu(x: Tensor) -> Tensor:
    return x * op.Relu(x)


@script(default_opset=op)
def x_times_max(x: Tensor) -> Tensor:
    return x * op.Max(x + 0.0, 0.0)


@pytest.mark.parametrize("kind", ["float", "float16", "double"])
def test_numbers_of_a_target_take_the_type_of_what_stands_beside_them(kind: str) -> None:
    model = parse(f"g ({kind}[2] x) => ({kind}[2] y) {{ r = Relu(x) y = Mul(x, r) }}")
    check(model, rewrite(x_times_relu, x_times_max))


@script(default_opset=op)
def relu(x: Tensor) -> Tensor:
    return op.Relu(x)


@script(default_opset=op)
def max_with(x: Tensor, zero: Tensor) -> Tensor:
    return op.Max(x, zero)


def relu_as_max(value: Any) -> rewriter.Rule:
    @rule(relu, max_with)
    def as_max(m: rewriter.Match) -> dict[str, Any]:
        return {"zero": value}

    return as_max


def test_a_constant_of_another_element_type_is_an_error_of_the_rule() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(RuleError, match=r"as_max.*test_engine_safety.py.*float and double"):
        rewriter.apply(model, relu_as_max(np.zeros(1)))
    with pytest.raises(RuleError, match="Python objects"):
        rewriter.apply(model, relu_as_max(np.array([object()])))
    check(model, relu_as_max(np.zeros(1, np.float32)))


@script(default_opset=op)
def gemm(x: Tensor, w: Annotated[Tensor, Const], alpha: float) -> Tensor:
    return op.Gemm(x, w, alpha=alpha)


@rule(gemm)
def reads_alpha(m: rewriter.Match) -> None:
    assert m.attribute("alpha") > 100


def test_a_model_whose_attribute_has_a_wrong_type_is_blamed_itself() -> None:
    model = parse("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = Gemm(x, w) }")
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("alpha", "much"))
    with pytest.raises(ModelError, match=r"node '\w+': attribute 'alpha' of Gemm"):
        rewriter.apply(model, reads_alpha)


def test_an_attribute_of_the_functions_caller_is_declined() -> None:
    text = """g (float[2,2] x) => (float[2,2] y) { y = local.f <a = 2.0> (x) }
        <domain: "local", opset_import: ["" : 17]>
        f <a> (x) => (y) { w = Constant<value = float[2,2] {1, 2, 3, 4}>() y = Gemm<alpha: float = @a>(x, w) }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "local" : 1]>\n{text}')
    result = rewriter.run(model, reads_alpha)
    assert "depends on the function's caller" in result.report.declined[0].reason


def test_an_op_type_that_is_no_text_is_an_error_of_the_model() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    data = model.SerializeToString().replace(b"Relu", b"Re\xff\xfe")
    broken = onnx.ModelProto.FromString(data)
    with pytest.raises(ModelError, match="no valid text"):
        rewriter.apply(broken, rewrite(x_times_relu, x_times_max))


@script(default_opset=op)
def apart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return op.Relu(x), op.Neg(y)


def test_a_pattern_in_two_pieces_is_an_error_when_it_is_defined() -> None:
    with pytest.raises(RuleError, match=r"test_engine_safety.py:\d+: node 'Neg' shares no value"):
        rewrite(apart, apart)


def test_mistakes_in_what_a_rule_is_made_of() -> None:
    def plain(x: Any) -> Any:
        return x

    with pytest.raises(RuleError, match="no @script"):
        rewrite(plain, relu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no element type 'FLOAT33'"):
        DType("FLOAT33")


@script(default_opset=op)
def elu_of_a_sixth(x: Tensor) -> Tensor:
    return op.Elu(x, alpha=1 / 6)


def test_a_division_in_an_attribute_is_pythons() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Elu<alpha = 0.16666667>(x) }")
    assert len(list(rewriter.find(model, elu_of_a_sixth))) == 1


@script(default_opset=op)
def core_then_exp(x: Tensor) -> Tensor:
    return op.Exp(P.Core(op.Relu(x)))


def test_reasons_speak_of_the_model_and_not_of_the_pattern() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { r = Relu(x) y = Abs(r) z = Neg(r) }")

    @rule(core_then_exp)
    def never(m: rewriter.Match) -> None:
        raise AssertionError

    (declined,) = rewriter.run(model, never).report.declined
    assert "Exp is expected" in declined.reason


def by_hand(edit: Any, measure: Any = None) -> rewriter.Rule:
    """A rule on Neg whose callback edits by hand."""

    @rule(negative, measure=measure)
    def handmade(m: rewriter.Match) -> None:
        edit(m)

    return handmade


@script(default_opset=op)
def negative(x: Tensor) -> Tensor:
    n = op.Neg(x)
    return n


WRONG_EDITS: dict[str, tuple[Any, str]] = {
    "without an end": (lambda m: m.edit.replace(m.output("n"), m.edit.node("Abs", [m["x"]])), "chase each other"),
    "onto itself": (lambda m: m.edit.replace(m.output("n"), m.output("n")), "without making one"),
    "of an input": (lambda m: m.edit.replace(m["x"], m.edit.node("Abs", [m["x"]])), "produced by no node"),
    "twice": (
        lambda m: [m.edit.replace(m.output("n"), m.edit.node("Abs", [m["x"]])) for _ in range(2)],
        "replaced twice",
    ),
    "for nobody": (lambda m: m.edit.node("Abs", [m["x"]]), "nothing uses the new Abs"),
    "without an attribute": (
        lambda m: m.edit.replace(m.output("n"), m.edit.node("Cast", [m["x"]])),
        "lacks its attribute to",
    ),
    "of too many outputs": (
        lambda m: m.edit.replace(m.output("n"), m.edit.node("Abs", [m["x"]], outputs=3)),
        "at most 1 outputs, not 3",
    ),
    "of text": (lambda m: m.edit.replace(m.output("n"), np.array(["a"])), "Python objects or text"),
    "of a list": (lambda m: m.edit.replace(m.output("n"), [m["x"]]), "is no operand"),
}


@pytest.mark.parametrize(("edit", "words"), WRONG_EDITS.values(), ids=WRONG_EDITS)
def test_wrong_edits_are_errors_of_the_rule(edit: Any, words: str) -> None:
    model = parse("g (float[2] x) => (float[2] y) { n = Neg(x) y = Exp(n) }")
    before = model.SerializeToString()
    with pytest.raises(RuleError, match=words) as raised:
        rewriter.apply(model, by_hand(edit))
    assert "handmade" in str(raised.value)
    assert "test_engine_safety.py" in str(raised.value) or "chase" in words
    assert model.SerializeToString() == before


def test_a_measure_that_fails_is_an_error_of_the_rule() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")

    def edit(m: rewriter.Match) -> None:
        m.edit.replace(m.output("n"), m.edit.node("Abs", [m["x"]]))
        m.edit.remove(m.root)

    with pytest.raises(RuleError, match="its measure raised ZeroDivisionError"):
        rewriter.apply(model, by_hand(edit, measure=lambda m: 1 // 0))


def test_rule_sets_add_to_rule_sets_only() -> None:
    one: Any = rewrite(x_times_relu, x_times_max)
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 3
    with pytest.raises(TypeError, match="unsupported operand"):
        one >> "more"
