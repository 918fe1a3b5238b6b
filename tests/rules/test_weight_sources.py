"""Where a weight may come from: constants behind other nodes, from an outer graph, from a file beside the model.

What a chain of nodes makes of its constants is computed by onnx's reference, and the quantized weight has to be within
its bound of that. The model's outputs stay within the proved bound of what the model gave. Nodes and tensors that
nothing reads any more are gone, and what something else reads stays as it was, to the bit.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rewriter
import rules
from tests import sessions
from tests.backend_units import Linear, units
from tests.qdq_models import Body
from tests.rules.one_unit import One, allowed, model, steps
from tests.sessions import Array, Feeds

Floats = npt.NDArray[np.float32]
Source = Callable[[Body, Floats], object]

SHAPES = {"Conv": (4, 3, 3, 3), "ConvTranspose": (3, 4, 3, 3), "Gemm": (6, 4), "MatMul": (6, 4)}
OPS = tuple(SHAPES)


# -- chains of nodes that give "w" ---------------------------------------------------------------------


def squeezed(body: Body, w: Floats) -> None:
    body.node("Squeeze", [body.constant("w0", w[None]), body.constant("axes", np.array([0]))], "w")


def unsqueezed(body: Body, w: Floats) -> None:
    body.node("Squeeze", [body.constant("w0", w[:, None]), body.constant("axes", np.array([1]))], "w1")
    body.node("Unsqueeze", ["w1", body.constant("more", np.array([0]))], "w2")
    body.node("Squeeze", ["w2", "more"], "w")


def multiplied(body: Body, w: Floats) -> None:
    body.node("Mul", [body.constant("w0", w), body.constant("factor", np.array(0.3, np.float32))], "w")


def scaled_rows(body: Body, w: Floats) -> None:
    """What a folded batch normalization leaves."""
    rows = np.linspace(0.1, 3, w.shape[0], dtype=np.float32).reshape(-1, *[1] * (w.ndim - 1))
    body.node("Mul", [body.constant("factor", rows), body.constant("w0", w)], "w")


def of_one_value(body: Body, w: Floats) -> None:
    value = numpy_helper.from_array(np.array([0.37], np.float32))
    body.node("ConstantOfShape", [body.constant("w0", np.array(w.shape))], "w", value=value)


def of_zeros(body: Body, w: Floats) -> None:
    body.node("ConstantOfShape", [body.constant("w0", np.array(w.shape))], "w")


def parameters(body: Body, w: Floats) -> list[str]:
    step = np.array(np.abs(w).max() / 127, np.float32)
    return [body.constant("w_scale", step), body.constant("w_zp", np.array(0, np.int8))]


def quantized_and_back(body: Body, w: Floats) -> None:
    names = parameters(body, w)
    body.node("QuantizeLinear", [body.constant("w0", w), *names], "w_codes")
    body.node("DequantizeLinear", ["w_codes", *names], "w")


def quantized_and_transposed(body: Body, w: Floats) -> None:
    names = parameters(body, w)
    body.node("QuantizeLinear", [body.constant("w0", np.ascontiguousarray(w.T)), *names], "w_codes")
    body.node("DequantizeLinear", ["w_codes", *names], "w_back")
    body.node("Transpose", ["w_back"], "w")


def dequantized_and_multiplied(body: Body, w: Floats) -> None:
    names = parameters(body, w)
    codes = np.rint(w / np.abs(w).max() * 127).astype(np.int8)
    body.node("DequantizeLinear", [body.constant("w0", codes), *names], "w_back")
    body.node("Mul", ["w_back", body.constant("factor", np.array(1.7, np.float32))], "w")


def all_at_once(body: Body, w: Floats) -> None:
    body.node("Cast", [body.constant("w0", w.astype(np.float64).reshape(-1))], "w1", to=TensorProto.FLOAT)
    body.node("Reshape", ["w1", body.constant("shape", np.array(w.shape[::-1]))], "w2")
    body.node("Transpose", ["w2"], "w3")
    body.node("Mul", ["w3", body.constant("factor", np.array(0.3, np.float32))], "w4")
    body.node("Identity", ["w4"], "w")


SOURCES: dict[str, Source] = {
    "Constant": lambda body, w: body.constant("w", w, "constant"),
    "Identity": lambda body, w: body.constant("w", w, "identity"),
    "Cast": lambda body, w: body.constant("w", w, "cast"),
    "Transpose": lambda body, w: body.constant("w", w, "transpose"),
    "Reshape": lambda body, w: body.constant("w", w, "reshape"),
    "Squeeze": squeezed,
    "Unsqueeze": unsqueezed,
    "Mul": multiplied,
    "Mul of each row": scaled_rows,
    "ConstantOfShape": of_one_value,
    "ConstantOfShape, zeros": of_zeros,
    "Q, DQ": quantized_and_back,
    "Q, DQ, Transpose": quantized_and_transposed,
    "DQ, Mul": dequantized_and_multiplied,
    "all at once": all_at_once,
}

every_op = pytest.mark.parametrize("op", OPS)
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


def computed(body: Body) -> Floats:
    """What the chain gives, by the reference."""
    output = helper.make_tensor_value_info("w", TensorProto.FLOAT, None)
    graph = helper.make_graph(body.nodes, "chain", [], [output], body.initializers)
    chain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (w,) = ReferenceEvaluator(chain).run(None, {})
    return np.asarray(w, np.float32)


# -- models --------------------------------------------------------------------------------------------


def drawn(op: str) -> tuple[Floats, Floats | None]:
    rng = np.random.default_rng(OPS.index(op))
    w = (rng.normal(size=SHAPES[op]) * 0.3).astype(np.float32)
    return w, None if op == "MatMul" else rng.normal(size=4).astype(np.float32)


class Case:
    """A unit whose weight comes from a source: the model, and the same with the weight that the source gives."""

    def __init__(self, op: str, source: Source) -> None:
        w, b = drawn(op)
        self.chain = Body()
        source(self.chain, w)
        self.w = computed(self.chain)
        self.one = One(op, self.w, b, opset=21, ir=10)
        self.plain = model(self.one)
        self.model = onnx.ModelProto.FromString(self.plain.SerializeToString())
        graph = self.model.graph
        kept = [tensor for tensor in self.plain.graph.initializer if tensor.name != "w"]
        nodes = [*self.chain.nodes, *self.plain.graph.node]
        del graph.node[:], graph.initializer[:]
        graph.node.extend(nodes)
        graph.initializer.extend([*self.chain.initializers, *kept])

    def feeds(self) -> Feeds:
        return {"x": self.one.x()}

    def check(self, result: onnx.ModelProto) -> None:
        """The weight and the output are within their bounds of what the source gives."""
        onnx.checker.check_model(result, full_check=True)
        (unit,) = units(result)
        weight = unit.weight
        assert isinstance(weight, Linear)
        assert weight.codes is not None
        assert weight.scale is not None
        assert weight.zero_point is not None
        shape = [-1 if i == weight.axis else 1 for i in range(self.w.ndim)] if weight.axis is not None else []
        step = weight.scale.astype(np.float64).reshape(shape)
        values = (weight.codes.astype(np.float64) - weight.zero_point.astype(np.float64).reshape(shape)) * step
        assert (np.abs(values - self.w) <= step * 1.001).all()
        distance = steps(sessions.run(self.model, self.feeds()), sessions.run(result, self.feeds()))
        assert (distance <= allowed(self.one, self.plain, result)).all()

    def leftovers(self, result: onnx.ModelProto) -> set[str]:
        """What is still there of the chain. The parameters of a DequantizeLinear before the operator may be."""
        chain = {*(t.name for t in self.chain.initializers), *(o for node in self.chain.nodes for o in node.output)}
        held = {*(t.name for t in result.graph.initializer), *(o for node in result.graph.node for o in node.output)}
        return chain & held


@every_source
@every_op
def test_a_constant_behind_nodes(op: str, source: Source) -> None:
    case = Case(op, source)
    result = rewriter.apply(case.model, rules.weight_bias)
    case.check(result)
    kept = {"w", "w_scale", "w_zp"} if source is quantized_and_back else set()
    assert case.leftovers(result) == kept
    assert not [t.name for t in result.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 1]
    assert rewriter.apply(result, rules.weight_bias) is result


@every_source
@every_op
def test_a_weight_that_something_else_reads(op: str, source: Source) -> None:
    case = Case(op, source)
    case.model.graph.node.append(helper.make_node("Neg", ["w"], ["side"], name="side"))
    case.model.graph.output.append(helper.make_tensor_value_info("side", TensorProto.FLOAT, case.w.shape))
    kept_as_it_was(case, -case.w, whole=source is not quantized_and_back)


@every_source
@every_op
def test_a_weight_that_is_a_graph_output(op: str, source: Source) -> None:
    case = Case(op, source)
    case.model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, case.w.shape))
    kept_as_it_was(case, case.w, whole=source is not quantized_and_back)


def kept_as_it_was(case: Case, expected: Floats, whole: bool) -> None:
    result = rewriter.apply(case.model, rules.weight_bias)
    assert list(result.graph.output) == list(case.model.graph.output)
    case.check(result)
    (_, float_output) = sessions.run(result, case.feeds())
    assert float_output.tobytes() == expected.tobytes()
    if whole:  # else the codes are stored, which gives the same floats
        assert case.leftovers(result) == case.leftovers(case.model)


# -- other graphs --------------------------------------------------------------------------------------


def in_branch(case: Case) -> Feeds:
    """The unit moves into an If, its constants and their nodes stay outside."""
    graph = case.model.graph
    (y,) = graph.output
    zeros = helper.make_node("Constant", [], ["no"], value=numpy_helper.from_array(np.zeros((), np.uint8)))
    otherwise = helper.make_graph([zeros], "else", [], [helper.make_tensor_value_info("no", TensorProto.UINT8, [])])
    node = helper.make_node("If", ["cond"], ["out"], then_branch=moved(case, "then", [], [y]), else_branch=otherwise)
    graph.input.append(helper.make_tensor_value_info("cond", TensorProto.BOOL, []))
    enclosed(case, node, rank(y))
    return {**case.feeds(), "cond": np.array(True)}


def in_loop(case: Case) -> Feeds:
    """The unit moves into a Loop that runs once."""
    graph = case.model.graph
    (y,) = graph.output
    scalar = {name: helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "go_on")}
    count = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    body = moved(case, "step", [count, scalar["go"]], [scalar["go_on"], y])
    body.node.append(helper.make_node("Identity", ["go"], ["go_on"]))
    graph.initializer.append(numpy_helper.from_array(np.array(1), "trips"))
    enclosed(case, helper.make_node("Loop", ["trips", ""], ["out"], body=body), 1 + rank(y))
    return case.feeds()


def rank(info: onnx.ValueInfoProto) -> int:
    return len(info.type.tensor_type.shape.dim)


def moved(
    case: Case, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    return helper.make_graph(case.plain.graph.node, name, inputs, outputs)


def enclosed(case: Case, node: onnx.NodeProto, rank: int) -> None:
    """The model's graph becomes the chain, and the node that holds the unit."""
    graph = case.model.graph
    del graph.node[:], graph.output[:]
    graph.node.extend([*case.chain.nodes, node])
    graph.output.append(helper.make_tensor_value_info("out", TensorProto.UINT8, [None] * rank))


PLACES = {"If": in_branch, "Loop": in_loop}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@every_op
def test_a_weight_from_an_outer_graph(op: str, place: Callable[[Case], Feeds]) -> None:
    """Stored there, and behind nodes there."""
    for source in (lambda body, w: body.constant("w", w), all_at_once):
        case = Case(op, source)
        feeds = place(case)
        result = rewriter.apply(case.model, rules.weight_bias)
        assert case.leftovers(result) == set()
        before, after = sessions.run(case.model, feeds), sessions.run(result, feeds)
        assert (steps(before, after) <= allowed(case.one, case.plain, result)).all()
        (unit,) = units(result)
        assert unit.quantized


# -- external data -------------------------------------------------------------------------------------


@every_source
@every_op
def test_a_weight_in_a_file_of_its_own(op: str, source: Source, tmp_path: Path) -> None:
    case = Case(op, source)
    path, target = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    written = onnx.ModelProto.FromString(case.model.SerializeToString())  # what is saved so loses its tensors
    onnx.save(written, path, save_as_external_data=True, location="weights", size_threshold=0)
    rewriter.apply(path, rules.weight_bias, target)
    case.check(onnx.load(target))
    expected = rewriter.apply(case.model, rules.weight_bias)
    assert arrays(onnx.load(target)) == arrays(expected)


def arrays(held: onnx.ModelProto) -> dict[str, tuple[str, bytes]]:
    found: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in held.graph.initializer}
    return {name: (array.dtype.name, array.tobytes()) for name, array in found.items()}
