"""The options of `WeightBias` about which units, and in what form: selection, non-fusing units, zero points.

What becomes of a unit is read by `backend_units`, judged by the checks of `backend_checks` (written from the reference)
and by sessions: a zero point is worth nothing if the unit no longer fuses or gives other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import rewriter
import rules
from rewriter import cli
from tests import sessions
from tests.backend_checker import ROWS
from tests.backend_units import Linear, Unit, units
from tests.qdq_models import build
from tests.qdq_unit import Unit as Form

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.floating[Any]]
OURS_ALONE = ("WeightBiasQuantization",)
SHAPES = {"Conv": (8, 4, 3, 3), "ConvTranspose": (4, 8, 3, 3), "Gemm": (36, 8), "MatMul": (36, 8), "MatMulAdd": (36, 8)}
NAMES = ("/stem/conv", "/head/conv[0]", "/head/fc", "MatMul_3")


def chain() -> onnx.ModelProto:
    """x -> /stem/conv -> /head/conv[0] -> Flatten -> /head/fc (Gemm) -> MatMul_3, each between Q and DQ."""
    rng = np.random.default_rng(0)
    weights = {"w0": (4, 3, 1, 1), "w1": (4, 4, 1, 1), "w2": (16, 5), "w3": (5, 3), "b0": (4,), "b2": (5,)}
    tensors = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in weights.items()]
    tensors += [
        numpy_helper.from_array(np.array(0.05, np.float32), "s"),
        numpy_helper.from_array(np.array(128, np.uint8), "z"),
    ]
    nodes: list[onnx.NodeProto] = []

    def pair(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"]))
        return f"{name}_d"

    nodes.append(helper.make_node("Conv", [pair("x"), "w0", "b0"], ["c0"], name=NAMES[0]))
    nodes.append(helper.make_node("Conv", [pair("c0"), "w1"], ["c1"], name=NAMES[1]))
    nodes.append(helper.make_node("Flatten", [pair("c1")], ["f"], name="/head/flatten"))
    nodes.append(helper.make_node("Gemm", [pair("f"), "w2", "b2"], ["g"], name=NAMES[2]))
    nodes.append(helper.make_node("MatMul", [pair("g"), "w3"], ["m"], name=NAMES[3]))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", [1, 3, 2, 2]), ("m_d", [1, 3]))
    )
    pair("m")
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def done(model: onnx.ModelProto, **options: Any) -> tuple[set[str], dict[str, str]]:
    """The nodes that were completed, and the reasons for those that were not."""
    result = rewriter.run(model, rules.WeightBias(**options))
    onnx.checker.check_model(result.model, full_check=True)
    completed = {
        node.name for node in result.model.graph.node if node.name in NAMES and is_complete(node, result.model)
    }
    return completed, {one.node: one.reason for one in result.report.declined}


def is_complete(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    makers = {output: each.op_type for each in model.graph.node for output in each.output}
    return all(makers.get(name) == "DequantizeLinear" for name in node.input if name)


# -- which nodes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, NAMES),
        ({"include": ("Conv",)}, NAMES[:2]),
        ({"include": ("/head/*",)}, NAMES[1:3]),
        ({"include": ("Gemm", "/stem/*")}, (NAMES[0], NAMES[2])),
        ({"include": "Conv"}, NAMES[:2]),
        ({"include": ["MatMul"]}, NAMES[3:]),
        ({"include": ("Mat*",)}, NAMES[3:]),
        ({"include": ("/head/conv[0]",)}, (NAMES[1],)),
        ({"include": ("/head/conv?0?",)}, (NAMES[1],)),
        ({"include": ("conv",)}, ()),
        ({"exclude": ("Conv",)}, NAMES[2:]),
        ({"exclude": ("/head/*", "MatMul_3")}, NAMES[:1]),
        ({"include": ("Conv", "Gemm"), "exclude": ("/head/*",)}, NAMES[:1]),
    ],
    ids=str,
)
def test_which_nodes(options: dict[str, Any], wanted: Sequence[str]) -> None:
    completed, reasons = done(chain(), **options)
    assert completed == set(wanted)
    assert set(reasons) == set(NAMES) - completed


def test_the_reason_names_the_pattern() -> None:
    _, reasons = done(chain(), include=("Conv", "/head/*"), exclude=("Gemm", "*[[]0]"))
    assert reasons == {
        "/head/conv[0]": "excluded by '*[[]0]'",
        "/head/fc": "excluded by 'Gemm'",
        "MatMul_3": "not included by 'Conv', '/head/*'",
    }


def test_what_is_left_out_stays_as_it_was() -> None:
    model = chain()
    after = rewriter.apply(model, rules.WeightBias(exclude=("*",)))
    assert after is model


def test_what_is_complete_is_not_said_to_be_left_out() -> None:
    complete = rewriter.apply(chain(), rules.weight_bias)
    assert done(complete, exclude=("*",))[1] == {}


def test_a_bias_beside_a_quantized_weight_is_left_out_too() -> None:
    model = rewriter.apply(chain(), rules.WeightBias(bias=False))
    completed, reasons = done(model, exclude=("Conv",))
    assert NAMES[0] not in completed
    assert NAMES[2] in completed
    assert reasons == {NAMES[0]: "excluded by 'Conv'"}


def test_onnxruntimes_scheme_heeds_them() -> None:
    completed, reasons = done(chain(), scheme="onnxruntime", exclude=("/head/*",))
    assert completed == {NAMES[0]}  # it takes no MatMul
    assert set(reasons) == {NAMES[1], NAMES[2]}


def test_options_are_values() -> None:
    given, same = rules.WeightBias(include=["Conv"]), rules.WeightBias(include=("Conv",))  # type: ignore[arg-type]
    assert given == same
    assert hash(given) == hash(same)
    assert given != rules.weight_bias


@pytest.mark.parametrize("wrong", [3, None, ("Conv", 3), ("",), (None,)])
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_what_is_no_pattern(option: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} takes names or op types"):
        rules.WeightBias(**{option: wrong})


def test_an_unknown_answer_to_non_fusing_units() -> None:
    with pytest.raises(ValueError, match="unknown non_fusing 'skip'; there are decline, quantize"):
        rules.WeightBias(non_fusing="skip")


# -- from the command line -------------------------------------------------------------------------


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    onnx.save(chain(), path)
    return path


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (("include=Conv, /head/fc",), NAMES[:3]),
        (("exclude=/head/*", "exclude=MatMul"), NAMES[:1]),
        (("symmetric=none", "include=Gemm"), NAMES[2:3]),
        (("symmetric=true", "non_fusing=quantize"), NAMES),
    ],
    ids=str,
)
@pytest.mark.parametrize("chosen", [("--rules", "weight_bias"), ("--backend", "generic")], ids=lambda c: c[0])
def test_on_the_command_line(
    chosen: Sequence[str], settings: Sequence[str], wanted: Sequence[str], file: Path, tmp_path: Path
) -> None:
    options = [word for one in settings for word in ("--set", one)]
    assert invoke("apply", file, tmp_path / "o.onnx", *chosen, *options).exit_code == 0
    after = onnx.load(tmp_path / "o.onnx")
    assert {n.name for n in after.graph.node if n.name in NAMES and is_complete(n, after)} == set(wanted)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rules", "weight_bias", "--set", "symmetric=perhaps"), "expected true or false or none, got 'perhaps'"),
        (("--rules", "weight_bias", "--set", "block_size=none"), "expected a number (int), got 'none'"),
        (("--backend", "qnn", "--set", "exclud=Conv"), "did you mean 'exclude'"),
        (("--rules", "weight_bias", "--set", "include= ,"), "expected one or more values"),
        (("--backend", "qnn", "--set", "symmetric=false"), "qnn takes weights with zero point 0 only"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line(arguments: Sequence[str], words: str, file: Path) -> None:
    result = invoke("apply", file, *arguments)
    assert result.exit_code == cli.USAGE
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_options_are_listed_as_they_are_set() -> None:
    lines = invoke("rules").stdout.splitlines()
    assert "    --set include=" in lines
    assert "    --set symmetric=None" in lines


# -- units that do not fuse ------------------------------------------------------------------------

FACTS = ("activations", "zero_act", "positive_act", "uint8_kernel", "redundant_post", "no_conv", "row_bias", "unsigned")
"""Checks of what a unit is, beside those of the form that it was given."""

DECLINED = {
    "onnxruntime": Form(op="ConvTranspose"),
    "qnn": Form(op="Gemm", x_type="int8"),
    "tensorrt": Form(op="Conv", x_type="uint8"),
    "openvino": Form(op="ConvTranspose", x_type="uint16", opset=21),
    "nnapi": Form(op="MatMulAdd", x_type="int8"),
    "xnnpack": Form(op="Gemm", x_type="uint8"),
    "tflite": Form(op="ConvTranspose", x_type="uint8"),
}


@pytest.mark.parametrize("backend", DECLINED)
def test_units_that_do_not_fuse_are_quantized_for_their_size(backend: str) -> None:
    """In the form that the backend takes: granularity, type and zero points of the weight, the bias' own form."""
    model = build(DECLINED[backend], np.random.default_rng(0))
    kept = rewriter.run(model, rules.WeightBias(backend=backend))
    (declined,) = kept.report.declined
    assert kept.model is model
    result = rewriter.run(model, rules.WeightBias(backend=backend, non_fusing="quantize"))
    assert not result.report.declined
    (unit,) = units(result.model)
    assert unit.quantized
    form = [c for c in ROWS[backend].checks if not c.__qualname__.startswith(FACTS)]
    assert len(form) >= 2
    assert [broken for check in form for broken in check(unit)] == []
    (report,) = rules.unit_reports(result.report)
    assert report.is_integer is False
    assert report.reason == declined.reason
    assert f"no integer kernel: {declined.reason}" in str(report)


def test_units_that_fuse_are_said_to() -> None:
    model = build(Form(), np.random.default_rng(0))
    for backend, is_integer in (("onnxruntime", True), ("generic", None)):
        result = rewriter.run(model, rules.WeightBias(backend=backend, non_fusing="quantize"))
        (report,) = rules.unit_reports(result.report)
        assert report.is_integer is is_integer
        assert ("integer kernel" in str(report)) == bool(is_integer)


@pytest.mark.parametrize("bias", ["N", "none"])
@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_a_unit_whose_bias_stays_float_is_no_integer_kernel(op: Any, bias: Any) -> None:
    model = build(Form(op=op, bias=bias), np.random.default_rng(0))
    options: dict[str, Any] = {"backend": "onnxruntime", "bias": False}
    result = rewriter.run(model, rules.WeightBias(**options, non_fusing="quantize"))
    (report,) = rules.unit_reports(result.report)
    fused = sessions.integer_kernels(sessions.optimized(result.model, disabled=OURS_ALONE))
    assert report.is_integer == bool(fused) == (bias == "none")
    declined = rewriter.run(model, rules.WeightBias(**options)).report.declined
    assert ["bias=False leaves this one float" in one.reason for one in declined] == [True] * (bias != "none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "qnn", "weight_type": "uint8"}, "qnn takes int8 weights, not uint8"),
        ({"backend": "onnxruntime", "weight_type": "int4"}, "onnxruntime takes int8 or uint8 weights, not int4"),
        ({"backend": "tflite", "granularity": "block", "block_size": 4}, "no integer kernels for weights in blocks"),
        ({"backend": "xnnpack", "symmetric": False}, "xnnpack takes weights with zero point 0 only"),
    ],
    ids=str,
)
def test_what_a_backend_does_not_take_at_all(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rules.WeightBias(**options)


# -- zero points -----------------------------------------------------------------------------------


def one(op: str, w: Floats, x_type: str = "uint8") -> onnx.ModelProto:
    """x -> Q -> DQ -> op(w, b) -> Q -> DQ, with scales that fit.

    x takes the lower half of its codes: x86 without VNNI saturates else, which is a fault of its own.
    """
    rng = np.random.default_rng(1)
    name = op.removesuffix("Add")
    channels = w.shape[1] if name == "ConvTranspose" or w.ndim == 2 else w.shape[0]
    shape = (1, w.shape[0] if name == "ConvTranspose" else w.shape[1], 6, 6) if w.ndim == 4 else (6, w.shape[0])
    x = rng.uniform(-1, 0, shape).astype(np.float32)
    low = np.array(0 if x_type == "uint8" else -128, x_type)
    inputs = ["x_d", "w", "b"] if name in ("Conv", "ConvTranspose", "Gemm") else ["x_d", "w"]
    body = [helper.make_node(name, inputs, ["y" if op != "MatMulAdd" else "m"], name="core")]
    if op == "MatMulAdd":
        body.append(helper.make_node("Add", ["m", "b"], ["y"]))
    bias = np.asarray(rng.normal(size=channels), np.float32)
    tensors: dict[str, Array] = {"w": w, "b": bias, "x_s": np.array(2 / 255, np.float32)}
    tensors["x_z"] = np.array(int(low) + 128, x_type)

    def made(nodes: Sequence[onnx.NodeProto], constants: dict[str, Array], end: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            nodes,
            "one",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(end, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, key) for key, value in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    start = [
        helper.make_node("QuantizeLinear", ["x", "x_s", "x_z"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "x_s", "x_z"], ["x_d"]),
    ]
    (y,) = sessions.run(made([*start, *body], tensors, "y"), {"x": x})
    least, most = min(0.0, float(y.min())), max(0.0, float(y.max()))
    step = (most - least) / 255
    tensors["y_s"] = np.array(step, np.float32)
    tensors["y_z"] = np.array(round(int(low) - least / step), x_type)
    ends = [
        helper.make_node("QuantizeLinear", ["y", "y_s", "y_z"], ["y_q"]),
        helper.make_node("DequantizeLinear", ["y_q", "y_s", "y_z"], ["out"]),
    ]
    return made([*start, *body, *ends], tensors, "out")


def skewed(op: str) -> Floats:
    return np.random.default_rng(2).uniform(-0.05, 0.3, SHAPES[op]).astype(np.float32)


def on_grid(op: str) -> Floats:
    """On a uint8 grid per tensor, most codes on one side of the zero point."""
    codes = np.random.default_rng(3).integers(0, 256, SHAPES[op]) - 40
    codes.reshape(-1)[:2] = -40, 215
    return (codes * np.float32(0.002)).astype(np.float32)


def weight(model: onnx.ModelProto) -> Linear:
    (unit,) = units(model)
    return linear(unit)


def linear(unit: Unit) -> Linear:
    assert isinstance(unit.weight, Linear)
    return unit.weight


def values(held: Linear) -> Floats:
    assert held.codes is not None
    assert held.scale is not None
    assert held.zero_point is not None
    shape = [-1 if i == held.axis else 1 for i in range(held.codes.ndim)] if held.scale.ndim else []
    codes = held.codes.astype(np.int32) - held.zero_point.astype(np.int32).reshape(shape)
    return np.asarray(codes.astype(np.float32) * held.scale.astype(np.float32).reshape(shape))


def moved(held: Linear) -> bool:
    return held.zero_point is not None and bool(held.zero_point.astype(np.int32).any())


@pytest.mark.parametrize("x_type", ["uint8", "int8"])
@pytest.mark.parametrize("weight_type", ["int8", "uint8"])
@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul", "MatMulAdd"])
def test_skewed_weights_on_onnxruntime(op: str, weight_type: str, x_type: str) -> None:
    """They get zero points, fuse, give the numbers of the float path, and are nearer to the float unit."""
    model = one(op, skewed(op), x_type)
    options: dict[str, Any] = {"backend": "onnxruntime", "weight_type": weight_type, "rounding": "nearest"}
    free = rewriter.apply(model, rules.WeightBias(**options))
    fixed = rewriter.apply(model, rules.WeightBias(**options, symmetric=True))
    held = weight(free)
    assert held.scale is not None
    assert held.zero_point is not None
    assert held.dtype == weight_type
    assert np.all(np.abs(held.zero_point.astype(int) - (0 if weight_type == "int8" else 128)) > 30)
    assert held.scale.shape == (() if op == "Conv" else (8,))  # Conv has run with equal zero points only
    assert sessions.integer_kernels(sessions.optimized(free, disabled=OURS_ALONE)) == 1
    feeds = {"x": np.random.default_rng(4).uniform(-1, 0, [d.dim_value for d in shape_of(model)]).astype(np.float32)}
    step = float(next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "y_s"))
    kernel, path = sessions.run(free, feeds, sessions.EXTENDED)[0], sessions.run(free, feeds)[0]
    assert np.abs(kernel.astype(float) - path.astype(float)).max() <= 1.01 * step
    w = skewed(op).astype(np.float64)
    error, before = (np.square(values(weight(each)) - w).sum() for each in (free, fixed))
    assert error < before / 2


def shape_of(model: onnx.ModelProto) -> Any:
    return model.graph.input[0].type.tensor_type.shape.dim


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
def test_skewed_weights_stay_symmetric_where_nothing_is_proven(op: str) -> None:
    for backend in ("generic", "openvino"):
        held = weight(rewriter.apply(one(op, skewed(op)), rules.WeightBias(backend=backend)))
        assert not moved(held)
        assert held.scale is not None
        assert held.scale.shape == (8,)


@pytest.mark.parametrize("backend", ["generic", "onnxruntime"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul", "MatMulAdd"])
def test_asymmetric_grids_are_recovered(op: str, backend: str) -> None:
    w = on_grid(op)
    non_fusing = "quantize" if op == "ConvTranspose" else "decline"
    free = rewriter.apply(one(op, w), rules.WeightBias(backend=backend, non_fusing=non_fusing))
    np.testing.assert_allclose(values(weight(free)), w, rtol=3e-7, atol=0)
    fixed = rewriter.apply(one(op, w), rules.WeightBias(backend=backend, non_fusing=non_fusing, symmetric=True))
    assert not moved(weight(fixed))
    assert np.abs(values(weight(fixed)) - w).max() > 1e-4


@pytest.mark.parametrize("backend", ["qnn", "tensorrt", "openvino", "nnapi", "xnnpack", "tflite"])
def test_backends_without_zero_points_get_none(backend: str) -> None:
    for w in (skewed("Conv"), on_grid("Conv")):
        after = rewriter.apply(one("Conv", w), rules.WeightBias(backend=backend, non_fusing="quantize"))
        assert not moved(weight(after))
    with pytest.raises(ValueError, match=f"{backend} takes weights with zero point 0 only"):
        rules.WeightBias(backend=backend, symmetric=False)


def test_asymmetric_weights_on_request() -> None:
    """Whatever the weights; on onnxruntime a Conv has one zero point for all."""
    plain = np.random.default_rng(5).normal(size=SHAPES["Conv"]).astype(np.float32)
    for backend, shape in (("generic", (8,)), ("onnxruntime", ())):
        held = weight(rewriter.apply(one("Conv", plain), rules.WeightBias(backend=backend, symmetric=False)))
        assert moved(held)
        assert held.scale is not None
        assert held.scale.shape == shape


def test_one_scale_on_request_stays_one() -> None:
    option = rules.WeightBias(backend="onnxruntime", granularity="tensor")
    held = weight(rewriter.apply(one("Gemm", skewed("Gemm")), option))
    assert moved(held)
    assert held.scale is not None
    assert held.scale.shape == ()


@pytest.mark.parametrize("search", ["minmax", "mse", "grid"])
def test_other_searches_do_as_they_are_told(search: str) -> None:
    for w in (skewed("Gemm"), on_grid("Gemm")):
        option = rules.WeightBias(backend="onnxruntime", scale_search=search)
        assert not moved(weight(rewriter.apply(one("Gemm", w), option)))
