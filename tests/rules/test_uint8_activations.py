"""`rules.activations` on small models: every op that passes codes along, every form of Q and DQ, every place.

Each model runs before and after in ONNX Runtime at ORT_DISABLE_ALL, and every output is the same to the bit: the
claim is that no real value changes. `made_types` then says which codes became uint8.
"""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import rewriter
from rewriter import Result
from rules.activations import Uint8Activations
from tests import rewriting, sessions

RULES = Uint8Activations()
INT8, UINT8, FLOAT = TensorProto.INT8, TensorProto.UINT8, TensorProto.FLOAT
NAMES = {INT8: "int8", UINT8: "uint8", TensorProto.INT16: "int16"}

# Between Q and DQ: the op's line (codes `q` in, codes `r` out), its opset, and initializers. x is float[2, 4, 6, 6].
PASSING: dict[str, tuple[str, int, dict[str, Any]]] = {
    "Identity": ("r = Identity(q)", 13, {}),
    "Reshape": ("r = Reshape(q, s)", 13, {"s": [4, -1]}),
    "Flatten": ("r = Flatten(q)", 13, {}),
    "Unsqueeze and Squeeze": ("p = Unsqueeze(q, s)\n r = Squeeze(p, s)", 13, {"s": [0]}),
    "Unsqueeze and Squeeze 11": ("p = Unsqueeze <axes = [0]> (q)\n r = Squeeze <axes = [0]> (p)", 11, {}),
    "Transpose": ("r = Transpose <perm = [0, 2, 3, 1]> (q)", 13, {}),
    "Expand": ("r = Expand(q, s)", 13, {"s": [2, 2, 4, 6, 6]}),
    "Tile": ("r = Tile(q, s)", 13, {"s": [1, 1, 2, 1]}),
    "Slice": ("r = Slice(q, s, e)", 13, {"s": [0, 1], "e": [2, 3]}),
    "Slice 10": ("r = Slice(q, s, e)", 10, {"s": [0, 1], "e": [2, 3]}),
    "Split": ("r, p = Split <axis = 1, num_outputs = 2> (q)", 18, {}),
    "Split of three, rejoined": ("a, b = Split <axis = 1> (q, s)\n r = Concat <axis = 1> (b, a)", 13, {"s": [1, 3]}),
    "Gather": ("r = Gather <axis = 1> (q, s)", 13, {"s": [2, 0]}),
    "GatherElements": ("r = GatherElements(q, s)", 13, {"s": [[[[0]]]]}),
    "GatherND": ("r = GatherND(q, s)", 13, {"s": [[0, 1], [1, 3]]}),
    "Compress": ("r = Compress <axis = 1> (q, c)", 13, {"c": np.array([True, False, True, True])}),
    "ReverseSequence": ("r = ReverseSequence <batch_axis = 0, time_axis = 1> (q, s)", 13, {"s": [2, 4]}),
    "DepthToSpace": ("r = DepthToSpace <blocksize = 2> (q)", 13, {}),
    "SpaceToDepth": ("r = SpaceToDepth <blocksize = 2> (q)", 13, {}),
    "MaxPool": ("r = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (q)", 12, {}),
    "ReduceMax": ("r = ReduceMax <axes = [2, 3]> (q)", 13, {}),
    "ReduceMin": ("r = ReduceMin(q, s)", 18, {"s": [1]}),
    "Resize": (
        "r = Resize <mode = \"nearest\", coordinate_transformation_mode = \"asymmetric\"> (q, , f)", 13,
        {"f": np.array([1, 1, 2, 2], np.float32)},
    ),
    "Pad": ("r = Pad(q, s, v)", 13, {"s": [0, 0, 1, 1, 0, 0, 1, 1], "v": np.array(-7, np.int8)}),
    "Pad with unstated zeros": ("r = Pad(q, s)", 13, {"s": [0, 0, 1, 1, 0, 0, 1, 1]}),
    "Pad with the codes' edge": ("r = Pad <mode = \"edge\"> (q, s)", 13, {"s": [0, 0, 1, 1, 0, 0, 1, 1]}),
    "Concat with constant codes": ("r = Concat <axis = 0> (q, k)", 13, {"k": np.full((1, 4, 6, 6), -99, np.int8)}),
    "ScatterND": ("r = ScatterND(q, s, k)", 13, {"s": [[0, 1]], "k": np.full((1, 6, 6), -3, np.int8)}),
    "ScatterElements": (
        "r = ScatterElements(q, s, k)", 13, {"s": [[[[0]]]], "k": np.array([[[[-3]]]], np.int8)}
    ),
    "Shape beside it": ("s = Shape(q)\n p = Reshape(q, s)\n r = Transpose(p)", 13, {}),
}  # fmt: skip


def float_model(
    body: str, opset: int = 13, constants: dict[str, Any] | None = None, zero_point: int | None = 5, **options: Any
) -> onnx.ModelProto:
    """x -> Q -> body -> DQ -> y, and then the constants as initializers."""
    zp = "" if zero_point is None else ", zp"
    text = f"""g (float[2,4,6,6] x) => (float[] y) {{
        q = QuantizeLinear(x, s0{zp})
        {body}
        y = DequantizeLinear(r, s0{zp}) }}"""
    arrays: dict[str, Any] = {"s0": np.array(0.01, np.float32), **(constants or {})}
    if zero_point is not None:
        arrays["zp"] = np.array(zero_point, np.int8)
    return with_constants(text, arrays, opset, **options)


def with_constants(text: str, arrays: dict[str, Any], opset: int = 13, **options: Any) -> onnx.ModelProto:
    model = rewriting.parse(text, opset, **options)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    for output in model.graph.output:
        if not output.type.tensor_type.HasField("shape"):  # the checker wants one: that of what comes out
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output[0]
            known = inferred.type.tensor_type.shape.dim
            output.type.tensor_type.shape.dim.extend(known or [onnx.TensorShapeProto.Dimension()] * 4)
    return model


def made_types(model: onnx.ModelProto) -> dict[str, str]:
    """The element type of every value that some node of the main graph makes, where it is of 8 or 16 bits."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    infos = [*inferred.graph.value_info, *inferred.graph.output]
    return {i.name: NAMES[k] for i in infos if (k := i.type.tensor_type.elem_type) in NAMES}


def check(model: onnx.ModelProto, rules: Uint8Activations = RULES) -> Result[onnx.ModelProto]:
    """All that `rewriting.check` asks, the same from an onnx_ir.Model, and that an optimizing session loads it."""
    result = rewriting.check(model, rules)
    other = rewriter.apply(ir.from_proto(model), rules)
    assert rewriting.show(ir.to_proto(other)) == rewriting.show(result.model)
    onnx.checker.check_model(ir.to_proto(other), full_check=True)
    sessions.session(result.model, sessions.EXTENDED)
    return result


def reasons(result: Result[onnx.ModelProto]) -> list[str]:
    return [declined.reason for declined in result.report.declined]


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_codes_along(name: str) -> None:
    body, opset, constants = PASSING[name]
    result = check(float_model(body, opset, constants))
    assert set(made_types(result.model).values()) == {"uint8"}
    assert result.report.counts == {"quantizer": 1}
    assert not reasons(result)


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_the_larger_and_the_smaller_of_two_codes(name: str) -> None:
    """ONNX Runtime has no such kernel for 8 bits, so onnx's reference runs it."""
    model = float_model(f"r = {name}(q, k)", 21, {"k": np.array(-7, np.int8)})
    result = rewriting.run(model, RULES)
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype(np.float32)
    before, after = (onnx.reference.ReferenceEvaluator(m).run(None, {"x": x}) for m in (model, result.model))
    np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
    assert set(made_types(result.model).values()) == {"uint8"}


@pytest.mark.parametrize(
    ("body", "opset", "why"),
    [
        ("r = Relu(q)", 14, "go to Relu"),
        ("m = Cast <to = 1> (q)\n r = Cast <to = 3> (m)", 13, "Cast"),
        ("m = Cast <to = 6> (q)\n r = Identity(q)", 13, "go to Cast"),
        ("p = Cast <to = 3> (x)\n r = Concat <axis = 0> (q, p)", 13, "come from Cast"),
        ('r = Resize <mode = "linear"> (q, , f)', 13, "go to Resize"),
        ("r = Trilu(q)", 14, "go to Trilu"),
        ('r = ScatterElements <reduction = "add"> (q, i, k)', 18, "go to ScatterElements"),
        ("r = QLinearConv(q, s0, zp, w, s0, zp, s0, zp)", 13, "go to QLinearConv"),
    ],
)
def test_what_needs_int8_keeps_it(body: str, opset: int, why: str) -> None:
    constants: dict[str, Any] = {
        "f": np.array([1, 1, 2, 2], np.float32), "i": [[[[0]]]], "k": np.array([[[[3]]]], np.int8),
        "w": np.ones((2, 4, 1, 1), np.int8),
    }  # fmt: skip
    read = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    model = float_model(body, opset, {k: v for k, v in constants.items() if k in read})
    result = rewriting.run(model, RULES)
    assert not result.changed
    assert why in reasons(result)[0]


# -- the forms of Q and DQ ------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", range(10, 28))
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("ir_version", [4, 8])
def test_every_opset_and_domain(opset: int, domain: str, ir_version: int) -> None:
    model = float_model("r = Transpose(q)", opset, ir_version=ir_version if opset < 25 else 10)
    for node in model.graph.node:
        node.domain = domain if node.op_type.endswith("Linear") else ""
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    result = check(model)
    assert [n.domain for n in result.model.graph.node] == [n.domain for n in model.graph.node]
    zero_points = {t.name: t for t in result.model.graph.initializer}
    assert set(zero_points) == {"s0", "zp_uint8"}
    assert numpy_helper.to_array(zero_points["zp_uint8"]) == 133


def test_ir_version_3_lists_initializers_as_inputs() -> None:
    model = float_model("r = Transpose(q)", 10, ir_version=3)
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
    )
    result = rewriter.run(model, RULES)
    onnx.checker.check_model(result.model, full_check=True)
    assert [i.name for i in result.model.graph.input] == ["x", "s0", "zp_uint8"]
    feeds = sessions.feeds(model, np.random.default_rng(0))
    rewriting.compare(sessions.run(model, feeds), sessions.run(result.model, feeds))
    assert not rewriter.run(result.model, RULES).changed


@pytest.mark.parametrize("shape", [(), (1,), (4,)])
def test_an_absent_zero_point(shape: tuple[int, ...]) -> None:
    """Q says its type by `output_dtype`; DQ takes that of its codes."""
    model = float_model("r = Identity(q)", 21, {"s0": np.full(shape, 0.03, np.float32)}, zero_point=None)
    q = model.graph.node[0]
    q.attribute.append(helper.make_attribute("output_dtype", INT8))
    result = check(model)
    q = result.model.graph.node[0]
    assert made_types(result.model) == {"q": "uint8", "r": "uint8"}
    assert {a.name: a.i for a in q.attribute} == {"output_dtype": UINT8}
    made = next(t for t in result.model.graph.initializer if t.name == q.input[2])
    np.testing.assert_array_equal(numpy_helper.to_array(made), np.full(shape, 128, np.uint8))


def test_a_stated_output_type_follows() -> None:
    model = float_model("r = Identity(q)", 21)
    model.graph.node[0].attribute.append(helper.make_attribute("output_dtype", INT8))
    result = check(model)
    assert result.model.graph.node[0].attribute[0].i == UINT8


def test_quantize_without_zero_point_is_uint8_already() -> None:
    model = float_model("r = Identity(q)", 13, zero_point=None)
    assert not check(model).changed


@pytest.mark.parametrize("axis", [1, -3])
@pytest.mark.parametrize("absent", [False, True])
def test_per_axis_activations(axis: int, absent: bool) -> None:
    constants: dict[str, Any] = {"s0": np.array([0.01, 0.02, 0.5, 3], np.float32)}
    if not absent:
        constants["zp"] = np.array([-128, 0, 7, 127], np.int8)
    model = float_model("r = Identity(q)", 21, constants, zero_point=None if absent else 0)
    del model.graph.initializer[:]
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for node in (model.graph.node[0], model.graph.node[2]):
        node.attribute.append(helper.make_attribute("axis", axis))
    model.graph.node[0].attribute.append(helper.make_attribute("output_dtype", INT8))
    result = check(model)
    made = next(t for t in result.model.graph.initializer if t.name == result.model.graph.node[0].input[2])
    expected = [128] * 4 if absent else [0, 128, 135, 255]
    np.testing.assert_array_equal(numpy_helper.to_array(made), np.array(expected, np.uint8))


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.uint8])
def test_other_types_stay(dtype: type) -> None:
    model = float_model("r = Identity(q)", 21)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array(5, dtype), "zp"))
    result = check(model)
    assert not result.changed
    assert not reasons(result)


def test_a_scale_of_run_time() -> None:
    text = "g (float[2] x, float s) => (float[2] y) { q = QuantizeLinear(x, s, zp)\n y = DequantizeLinear(q, s, zp) }"
    result = check(with_constants(text, {"zp": np.array(-3, np.int8)}))
    assert made_types(result.model) == {"q": "uint8"}


def test_a_zero_point_that_the_caller_can_override() -> None:
    text = "g (float[2] x, int8 zp) => (float[2] y) { q = QuantizeLinear(x, s, zp)\n y = DequantizeLinear(q, s, zp) }"
    model = with_constants(text, {"s": np.float32(0.1), "zp": np.array(-3, np.int8)})
    result = check(model)
    assert not result.changed
    assert reasons(result) == ["the zero point 'zp' is no constant: the caller can override it"]


def test_several_readers_and_makers_with_parameters_of_their_own() -> None:
    text = """g (float[2,3] x, float[2,3] z) => (float[4,3] y, float[3,4] v, float[4,3] w) {
        a = QuantizeLinear(x, s1, z1)
        b = QuantizeLinear(z, s2, z2)
        c = Concat <axis = 0> (a, b)
        y = DequantizeLinear(c, s1, z1)
        t = Transpose(c)
        v = DequantizeLinear(t, s2, z2)
        w = DequantizeLinear(c, s2) }"""
    arrays = {
        "s1": np.float32(0.1),
        "s2": np.float32(0.02),
        "z1": np.array(-128, np.int8),
        "z2": np.array(127, np.int8),
    }
    result = check(with_constants(text, arrays))
    assert result.report.counts == {"quantizer": 1}
    assert set(made_types(result.model).values()) == {"uint8"}
    assert dict(result.report.rewrites[0].notes) == {"tensors": 4, "conversions": 0}


def test_declared_types_follow() -> None:
    model = float_model("r = Transpose(q)")
    model.graph.value_info.extend(
        helper.make_tensor_value_info(name, INT8, shape) for name, shape in (("q", [2, 4, 6, 6]), ("r", [6, 6, 4, 2]))
    )
    result = check(model)
    assert [(i.name, i.type.tensor_type.elem_type) for i in result.model.graph.value_info] == [
        ("q", UINT8),
        ("r", UINT8),
    ]
