"""`rules.compare`: its figures against numpy on what onnx.reference and ONNX Runtime give, and where an error enters.

The chain below has three layers with quantizers between them. A test damages exactly one of its weights, so it is known
where the error enters, whatever the layers behind make of it.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

import rewriter
import rules
from rewriter import ModelError, cli
from rules.comparison import Comparison, Figures
from rules.comparison.graph import Graph
from rules.comparison.inputs import inputs_of, random_feeds
from rules.comparison.layers import Matched, fed
from rules.comparison.run import grouped
from rules.running import Runnable
from tests import sessions
from tests.real_models import inputs as real_inputs
from tests.real_models import needs_shared, table

EXAMPLE = "examples/digits_qdq.onnx"
CHAIN = """<ir_version: 9, opset_import: ["" : 19]>
chain (float[N,6] x) => (float[N,5] y) <
    float x_s = {0.05}, int8 x_z = {0}, float h0_s = {0.1}, uint8 h0_z = {0}, float h1_s = {0.2}, uint8 h1_z = {0},
    float y_s = {0.25}, int8 y_z = {3}> {
    x_q = QuantizeLinear(x, x_s, x_z)
    x_dq = DequantizeLinear(x_q, x_s, x_z)
    g0 = Gemm(x_dq, w0)
    h0 = Relu(g0)
    h0_q = QuantizeLinear(h0, h0_s, h0_z)
    h0_dq = DequantizeLinear(h0_q, h0_s, h0_z)
    g1 = Gemm(h0_dq, w1)
    h1 = Relu(g1)
    h1_q = QuantizeLinear(h1, h1_s, h1_z)
    h1_dq = DequantizeLinear(h1_q, h1_s, h1_z)
    g2 = Gemm(h1_dq, w2)
    y_q = QuantizeLinear(g2, y_s, y_z)
    y = DequantizeLinear(y_q, y_s, y_z)
}"""
SHAPES = {"w0": (6, 16), "w1": (16, 16), "w2": (16, 5)}


def parsed(text: str, **tensors: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(t), name) for name, t in tensors.items())
    return model


def chain(damaged: str = "", by: float = 0.0) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    if damaged:
        weights[damaged][0, 0] += np.float32(by)
        weights[damaged][3, 2] -= np.float32(by)
    return parsed(CHAIN, **weights)


def chain_inputs(seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(n, 6)).astype(np.float32)} for n in (7, 2)]


def values(model: onnx.ModelProto, names: list[str], feeds: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What onnx.reference gives for these values, all samples one after the other."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in names)
    evaluator: Any = ReferenceEvaluator(copy)
    runs = [evaluator.run(None, dict(feed)) for feed in feeds]
    return {name: np.concatenate([each[k] for each in runs]).astype(np.float64) for k, name in enumerate(names)}


def snr(a: np.ndarray, b: np.ndarray) -> float:
    noise = np.square(a - b).sum()
    return float(10 * np.log10(np.square(a).sum() / noise)) if noise else math.inf


def close(found: Figures, a: np.ndarray, b: np.ndarray, step: float | None) -> None:
    """Up to what another order of float32 sums does."""
    assert found.snr == pytest.approx(snr(a, b), rel=1e-3)
    assert found.cosine == pytest.approx(float((a * b).sum() / np.sqrt(np.square(a).sum() * np.square(b).sum())))
    largest = np.abs(a - b).max()
    assert found.max_difference == pytest.approx(largest, rel=1e-4, abs=1e-6)
    assert found.max_steps == (None if step is None else pytest.approx(largest / step, rel=1e-4, abs=1e-5))


# -- the figures, and where the error enters -------------------------------------------------------


@pytest.mark.parametrize("by", [2.0, 0.02])
@pytest.mark.parametrize("k", range(3))
def test_the_layer_that_was_damaged_is_named(k: int, by: float) -> None:
    a, b, feeds = chain(), chain(f"w{k}", by), chain_inputs()
    found = rules.compare(a, b, feeds)
    assert found.samples == 2
    assert found.seed is None
    names = [one.name for one in found.layers]
    assert names == ["x_dq", "g0", "h0", "h0_dq", "g1", "h1", "h1_dq", "g2", "y"]
    wanted, got = values(a, names, feeds), values(b, names, feeds)
    steps = {
        "x_dq": 0.05,
        "g0": 0.1,
        "h0": 0.1,
        "h0_dq": 0.1,
        "g1": 0.2,
        "h1": 0.2,
        "h1_dq": 0.2,
        "g2": 0.25,
        "y": 0.25,
    }
    for one in found.layers:
        close(one.figures, wanted[one.name], got[one.name], steps[one.name])
        assert one.alone is not None
        assert (one.alone.snr == math.inf) == (one.name != f"g{k}")
    assert found.enters is not None
    assert found.enters.name == f"g{k}"
    assert found.enters.alone == found.enters.figures
    assert found.enters.inputs_snr == math.inf
    text = f"The error enters at g{k} (Gemm): on the inputs that it has in A it gives {found.enters.figures.snr:.1f} dB"
    assert found.where.startswith(text)
    (output,) = found.outputs
    close(output.plain, wanted["y"], got["y"], 0.25)
    assert output.plain.top1 == (wanted["y"].argmax(1) == got["y"].argmax(1)).mean()
    assert output.optimized is not None


def test_an_error_that_a_quantizer_makes_larger_enters_before_it() -> None:
    """What is rounded to another code is off by a whole step: that is no error of the quantizer."""
    many = {"x": np.random.default_rng(2).normal(size=(1000, 6)).astype(np.float32)}
    found = rules.compare(chain(), chain("w0", 0.002), [many])
    by_name = {one.name: one.figures.snr or 0.0 for one in found.layers}
    assert by_name["h0_dq"] < by_name["g0"] - 5
    assert found.enters is not None
    assert found.enters.name == "g0"


def test_of_two_the_worse_is_named_and_the_first_is_told() -> None:
    b = chain("w1", 2.0)
    b.graph.initializer.remove(next(t for t in b.graph.initializer if t.name == "w0"))
    b.graph.initializer.append(next(t for t in chain("w0", 0.1).graph.initializer if t.name == "w0"))
    found = rules.compare(chain(), b, chain_inputs())
    assert found.enters is not None
    assert found.enters.name == "g1"
    layers = {one.name: one for one in found.layers}
    alone, held = layers["g1"].alone, values(chain(), ["h0_dq", "g1"], chain_inputs())
    (w1,) = (numpy_helper.to_array(t) for t in b.graph.initializer if t.name == "w1")
    assert alone is not None
    close(alone, held["g1"], held["h0_dq"] @ w1.astype(np.float64), 0.2)
    assert found.where.startswith("The error enters mostly at g1 (Gemm)")
    assert found.where.endswith("The first layer that differs is g0.")
    assert found.enters.inputs_snr == layers["h0_dq"].figures.snr


def test_a_quantizer_that_was_changed_is_named() -> None:
    b = chain()
    next(t for t in b.graph.initializer if t.name == "h1_s").CopyFrom(
        numpy_helper.from_array(np.array(0.17, np.float32), "h1_s")
    )
    found = rules.compare(chain(), b, chain_inputs())
    assert found.enters is not None
    assert found.enters.name == "h1_dq"


@pytest.mark.parametrize("model", ["chain", "digits"])
def test_a_model_beside_itself(model: str) -> None:
    held = chain() if model == "chain" else onnx.load(EXAMPLE)
    before = held.SerializeToString()
    found = rules.compare(held, held)
    assert held.SerializeToString() == before
    assert found.seed == 0
    for one in found.outputs:
        assert one.plain == Figures(math.inf, 1.0, 0.0, 0.0, 1.0)
    assert len(found.layers) >= 9
    assert all(one.figures.snr == math.inf for one in found.layers)
    assert found.enters is None
    assert found.where == "Nowhere: every layer of B gives what that of A gives."


def test_the_optimized_one_is_that_of_a_default_session() -> None:
    model = onnx.load(EXAMPLE)
    feeds = [{"image": np.random.default_rng(k).uniform(0, 16, (3, 1, 8, 8)).astype(np.float32)} for k in range(2)]
    (output,) = rules.compare(model, model, feeds).outputs
    level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    a = np.concatenate([sessions.run(model, feed)[0] for feed in feeds]).astype(np.float64)
    b = np.concatenate([sessions.run(model, feed, level)[0] for feed in feeds]).astype(np.float64)
    assert output.optimized is not None
    assert output.optimized.snr == pytest.approx(snr(a, b))
    assert output.optimized.top1 == (a.argmax(1) == b.argmax(1)).mean()


def test_layers_do_not_depend_on_how_many_are_watched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rules.compare(chain(), chain("w1", 0.5), chain_inputs())
    monkeypatch.setattr("rules.comparison.run.AT_ONCE", 7)
    some = [Matched(name, "", "", None, None, False, None) for name in "abcde"]
    sizes = dict(zip("abcde", (3, 4, 1, 9, 2), strict=True))
    assert ["".join(one.name for one in group) for group in grouped(some, sizes)] == ["ab", "c", "d", "e"]
    assert rules.compare(chain(), chain("w1", 0.5), chain_inputs()) == whole


BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, bool c) => (float[2,3] y, float[3,2] z) {
    h = Mul(x, w)
    y = If(c) <then_branch = t () => (float[2,3] p) { p = Neg(h) }, else_branch = e () => (float[2,3] q) {
        q = If(c) <then_branch = tt () => (float[2,3] r) { r = Abs(h) },
                   else_branch = ee () => (float[2,3] s) { s = Exp(h) }> }>
    t = Transpose(h)
    z = Neg(t)
}"""


def test_a_layer_alone_is_cut_out() -> None:
    model = fed(Graph(chain()), ["g1", "h1"], {"h0_dq": 1, "g1": 1, "h1": 1})
    assert [node.output[0] for node in model.graph.node] == ["g1", "h1"]
    assert [one.name for one in model.graph.input] == ["h0_dq.reference", "g1.reference"]
    assert [one.name for one in model.graph.initializer] == ["w1"]


@pytest.mark.parametrize("c", [True, False])
def test_what_a_body_reads_is_fed_too(c: bool) -> None:
    one, two = (parsed(BRANCHES, w=np.float32(w)) for w in (1.0, 1.1))
    feeds = [{"x": np.ones((2, 3), np.float32), "c": np.array(c)}]
    found = rules.compare(one, two, feeds)
    assert not found.notes
    assert [(n.name, n.adds) for n in found.layers] == [("h", True), ("y", False), ("z", False)]
    assert all(n.figures.snr not in (math.inf, None) for n in found.layers)


def test_a_relu_that_is_left_to_the_quantizer_is_no_error() -> None:
    """ONNX Runtime's quantizer drops the Relu and leaves its name to what stood before it."""
    a = small("float[4] x", "float[4] y", "h = Neg(x) r = Relu(h) y = Abs(r)")
    quantized = "r = Neg(x) q = QuantizeLinear(r, s, z) d = DequantizeLinear(q, s, z) y = Abs(d)"
    b = small("float[4] x", "float[4] y", quantized)
    constants: dict[str, np.ndarray] = {"s": np.array(0.5, np.float32), "z": np.array(0, np.uint8)}
    b.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    found = rules.compare(a, b, {"x": np.array([-3.25, 0.5, 7, -1], np.float32)})
    assert [(one.name, one.adds) for one in found.layers] == [("r", False), ("y", True)]
    assert found.layers[1].figures.max_difference == 0.25
    b.graph.output.add(name="r")
    a.graph.output.add(name="r")
    for model in (a, b):
        model.graph.output[1].type.CopyFrom(model.graph.output[0].type)
    assert rules.compare(a, b, {"x": np.array([-3.25, 0.5, 7, -1], np.float32)}).layers[0].figures.max_difference == 7


def test_codes_are_compared_as_what_they_stand_for() -> None:
    """The same values by int8 and uint8 codes; the DequantizeLinear is called otherwise, so the codes are the layer."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) <float s = {{0.5}}, {0} z = {{{1}}}> {{
        q = QuantizeLinear(x, s, z)
        {2} = DequantizeLinear(q, s, z)
        y = Neg({2})
    }}"""
    a, b = parsed(text.format("int8", -10, "one")), parsed(text.format("uint8", 118, "two"))
    feeds = [{"x": np.array([-3, 0.4, 7, 50], np.float32)}]
    found = rules.compare(a, b, feeds)
    assert [(one.name, one.figures.snr, one.figures.max_steps) for one in found.layers] == [
        ("q", math.inf, 0),
        ("y", math.inf, None),
    ]
    shifted = rules.compare(a, parsed(text.format("uint8", 228, "two")), feeds)
    top = np.array([-3, 0.5, 7, 50]), np.array([-3, 0.5, 7, 13.5])  # 255 - 228 steps
    assert shifted.layers[0].figures.snr == pytest.approx(snr(*top))
    assert shifted.layers[0].figures.max_steps == 73
    assert shifted.enters == shifted.layers[0]


def test_int8_activations_that_became_uint8_are_the_same() -> None:
    model = chain()
    changed = rewriter.apply(model, rules.uint8_activations)
    found = rules.compare(model, changed, chain_inputs())
    assert found.outputs[0].plain.snr == math.inf
    assert found.enters is None


@needs_shared
@pytest.mark.parametrize(
    "row", [r for r in table() if r.name in ("digits_cnn.real", "tiny_ad_fp32")], ids=lambda r: r.name
)
def test_real_models(row: Any) -> None:
    """The outputs by numpy on sessions; each unit alone by `measure`, which cuts out one after the other."""
    model, feeds = onnx.load(row.path), real_inputs(row)
    result = rewriter.run(model, rules.weight_bias)
    found = rules.compare(row.path, result.model, feeds)
    a, b = ([sessions.run(m, feed) for feed in feeds] for m in (model, result.model))
    for k, output in enumerate(found.outputs):
        wanted, got = (np.concatenate([run[k] for run in runs]).astype(np.float64) for runs in (a, b))
        assert output.plain.snr == pytest.approx(snr(wanted, got), abs=1e-6)
    layers = {one.name: one for one in found.layers}
    units = rules.measure(model, result, feeds)
    assert len(units) == row.fused
    for unit in units:
        alone, measured = layers[unit.output].alone, unit.measured
        assert alone is not None
        assert measured is not None
        assert alone.snr == pytest.approx(measured.snr)
        assert alone.max_difference == pytest.approx(measured.error)
    assert {one.name for one in found.layers if one.adds} == {
        u.output for u in units if u.measured and u.measured.error
    }
    assert found.enters is not None
    assert found.enters.name == min(units, key=lambda u: u.measured.snr if u.measured else 0).output


# -- every kind of model ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ir", "path", "external", "large"])
def test_every_kind_of_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[Any] = [chain(), chain("w2", 0.3)]
    expected = rules.compare(models[0], models[1], chain_inputs())
    for k, one in enumerate(models):
        if kind == "ir":
            models[k] = ir.from_proto(one)
        elif kind != "large":
            models[k] = tmp_path / str(k) / "model.onnx"
            models[k].parent.mkdir()
            onnx.save(one, models[k], save_as_external_data=kind == "external", location="m.bin", size_threshold=0)
    if kind == "large":
        monkeypatch.setattr("rules.running.LARGEST", 10)
        held = Runnable(models[0])
        folder = held.folder
        assert folder is not None
        assert (folder / "model.data").is_file()
        del held
        assert not folder.exists()
    assert rules.compare(models[0], models[1], chain_inputs()) == expected


# -- what is fed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["several", "by sample", "float64", "mapping"])
def test_inputs_of_a_file(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(5).normal(size=(3, 2, 6)).astype(np.float32)
    expected = rules.compare(chain(), chain("w0", 0.5), [{"x": each} for each in x])
    assert expected.samples == 3
    arrays = {"x": x}
    if kind == "by sample":
        arrays = {f"{k}/x": each for k, each in enumerate(x)}
    elif kind == "float64":
        arrays = {"x": x.astype(np.float64)}
    given: Any = arrays
    if kind != "mapping":
        given = tmp_path / "data.npz"
        np.savez(given, **arrays)  # type: ignore[arg-type]  # a stub that takes the names for options
    assert rules.compare(chain(), chain("w0", 0.5), given) == expected
    assert rules.compare(chain(), chain("w0", 0.5), {"x": x[0]}) == rules.compare(
        chain(), chain("w0", 0.5), [{"x": x[0]}]
    )


def test_names_with_a_slash() -> None:
    model = small('float[2] "a/b"', body='y = Abs("a/b")')
    x = np.array([[1, 2], [3, 4]], np.float32)
    for given in ({"a/b": x}, {"0/a/b": x[0], "1/a/b": x[1]}):
        assert rules.compare(model, model, given).samples == 2


WRONG: dict[str, tuple[Any, str]] = {
    "missing": ({}, "there is no array for the input x"),
    "unknown": ({"x": np.zeros((1, 6)), "z": np.zeros(1)}, r"there is no input z; the inputs are x float32 \[N, 6\]"),
    "shape": ({"x": np.zeros((1, 7))}, r"float64 \[1, 7\] does not fit the input x float32 \[N, 6\]"),
    "rank": ({"x": np.zeros(6)}, "does not fit"),
    "complex": ({"x": np.zeros((1, 6), complex)}, "an array of complex128 cannot be fed"),
    "none": ([], "there is no sample"),
    "no sample": ({"x": np.zeros((0, 1, 6))}, "there is no sample"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_inputs_that_do_not_fit(kind: str) -> None:
    given, message = WRONG[kind]
    with pytest.raises(ValueError, match=message):
        rules.compare(chain(), chain(), given)


MANY = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,H,W] f, float[N,L] e, int64[N,L] k, int64[L] m, uint8[N] u, bool[3] b, float[1] q) => (float[1] y) <
    float[5,2] t = {1,2,3,4,5,6,7,8,9,0}, float s = {0.5}, uint8 z = {100}> {
    r = Gather(t, k)
    qq = QuantizeLinear(q, s, z)
    y = DequantizeLinear(qq, s, z)
}"""


def test_random_inputs_mean_something() -> None:
    graph = Graph(parsed(MANY))
    inputs = inputs_of(graph)
    graphs = Graph(parsed(MANY.replace("QuantizeLinear(q, s, z)", "Cast<to = 2>(q)"))), graph
    feeds = list(random_feeds(inputs, graphs, {"e": [2, 40]}, 40, 0))
    shapes = {name: value.shape for name, value in feeds[0].items()}
    assert shapes == {"f": (2, 2, 224, 224), "e": (2, 40), "k": (2, 40), "m": (40,), "u": (2,), "b": (3,), "q": (1,)}
    together = {name: np.concatenate([feed[name].reshape(-1) for feed in feeds]) for name in feeds[0] if name != "f"}
    assert set(together["k"]) == set(range(5))
    assert set(together["m"]) == {0, 1}
    assert set(together["b"]) == {False, True}
    assert together["u"].max() > 200
    assert -50 <= together["q"].min() < -30
    assert together["q"].max() <= 77.5
    assert together["q"].std() > 20
    again = list(random_feeds(inputs, graphs, {"e": [2, 40]}, 2, 0))
    assert all(np.array_equal(again[k][name], feeds[k][name]) for k in range(2) for name in inputs)
    assert not np.array_equal(feeds[0]["e"], feeds[1]["e"])
    assert not np.array_equal(next(random_feeds(inputs, graphs, {"e": [2, 40]}, 1, 1))["e"], feeds[0]["e"])
    with pytest.raises(ValueError, match="there is no input x to give a shape to"):
        next(random_feeds(inputs, graphs, {"x": [1]}, 1, 0))
    with pytest.raises(ValueError, match=r"the shape \[1, 3, 8, 8\] does not fit f float32 \[N, 2, H, W\]"):
        next(random_feeds(inputs, graphs, {"f": [1, 3, 8, 8]}, 1, 0))


def test_integers_must_keep_their_values() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (uint8[2] k) => (float[2] y) { y = Cast<to = 1>(k) }"""
    model = parsed(text)
    assert rules.compare(model, model, {"k": np.array([0, 255])}).outputs[0].plain.snr == math.inf
    for bad in (np.array([0, 256]), np.array([0.0, 1.0])):
        with pytest.raises(ValueError, match="cannot be fed to the input k uint8"):
            rules.compare(model, model, {"k": bad})


# -- models that do not fit, and values that are none ----------------------------------------------

SMALL = """<ir_version: 8, opset_import: ["" : 17]>
g ({}) => ({}) {{ {} }}"""


def small(given: str = "float[2] x", gives: str = "float[2] y", body: str = "y = Abs(x)") -> onnx.ModelProto:
    return parsed(SMALL.format(given, gives, body))


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (small("float[2] z", body="y = Abs(z)"), r"A has x float32 \[2\]; B has z float32 \[2\]"),
        (small("double[2] x", "double[2] y"), r"x float32 \[2\] in A, x float64 \[2\] in B"),
        (small("float[3] x", "float[3] y"), r"x float32 \[2\] in A, x float32 \[3\] in B"),
        (small("float[2,1] x", "float[2,1] y"), "the inputs differ"),
        (small(gives="float[2] z", body="z = Abs(x)"), "no output in common: A has y; B has z"),
    ],
)
def test_models_that_cannot_be_compared(b: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rules.compare(small(), b)


def test_outputs_that_only_one_has_or_that_have_another_shape_are_told() -> None:
    a = small(gives="float[2] y, float[2] z", body="y = Abs(x) z = Neg(x)")
    b = small(gives="float[n] y, float[2] v", body="y = Concat<axis=0>(x, x) v = Neg(x)")
    found = rules.compare(a, b)
    assert found.unmatched == [("z", "A"), ("v", "B")]
    (output,) = found.outputs
    assert output.plain.snr is None
    assert output.plain.note == "shape [2] in A, [4] in B"
    assert found.worst_snr == -math.inf
    assert "z: an output of A only" in str(found)
    assert found.where == "The error enters at y (Abs): shape [2] in A, [4] in B."
    assert found.as_dict()["worst_snr"] == "-Infinity"


def test_layers_that_do_not_run_alone_are_told() -> None:
    """The value in front has another shape in A, which B's layer does not take."""
    a = small(
        body="h = Concat<axis=0>(x, x) k = Abs(h) s = Constant<value_ints=[0]>() y = Gather(k, s)", gives="float[n] y"
    )
    b = small(body="h = Neg(x) k = Mul(h, x) s = Constant<value_ints=[0]>() y = Gather(k, s)", gives="float[n] y")
    found = rules.compare(a, b)
    assert [(one.name, one.alone) for one in found.layers] == [("h", None), ("k", None)]
    assert [note for note in found.notes if note.startswith("2 layers cannot be run alone: ONNX Runtime cannot run")]
    assert found.where == "No layer could be run alone, so where the error enters is unknown."


def test_what_is_not_finite_is_told() -> None:
    """Log of -1 is NaN and of 0 -infinity: equal in both they do no harm, else the SNR is -infinite."""
    log, other = small(body="y = Log(x)"), small(body="a = Abs(x) y = Log(a)")
    feeds = {"x": np.array([-1, 2], np.float32)}
    (output,) = rules.compare(log, log, feeds).outputs
    assert (output.plain.snr, output.plain.max_difference) == (math.inf, 0)
    assert output.plain.note == "1 elements of A are not finite, 1 elements of B are not finite"
    (output,) = rules.compare(other, log, feeds).outputs
    assert (output.plain.snr, output.plain.cosine, output.plain.max_difference) == (-math.inf, None, math.inf)
    assert output.plain.note == "1 elements of B are not finite"
    (output,) = rules.compare(other, log, {"x": np.array([0, 2], np.float32)}).outputs
    assert output.plain.snr == math.inf
    json.dumps(rules.compare(other, log, feeds).as_dict(), allow_nan=False)


def test_models_that_cannot_run(tmp_path: Path) -> None:
    unknown = small(body="y = NoSuch(x)")
    with pytest.raises(ModelError, match=r"ONNX Runtime does not take the model: .*NoSuch"):
        rules.compare(small(), unknown)
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match=re.escape(str(path))):
        rules.compare(path, small())
    with pytest.raises(ModelError, match=r"no.onnx"):
        rules.compare("no.onnx", small())
    uneven = small("float[N] x, float[M] z", body="y = Add(x, z)")
    with pytest.raises(ModelError, match=r"cannot run the model on x \[3\], z \[2\]"):
        rules.compare(uneven, uneven, shapes={"x": [3], "z": [2]})
    with pytest.raises(ValueError, match="the input x is no tensor of numbers"):
        rules.compare(small("string[2] x", "string[2] y", "y = Identity(x)"), small())


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    onnx.save(chain(), folder / "a.onnx")
    onnx.save(chain("w1", 1.5), folder / "b.onnx")
    onnx.save(small(), folder / "small.onnx")
    np.savez(folder / "x.npz", x=chain_inputs()[0]["x"])
    return {path.stem: str(path) for path in folder.iterdir()}


def command(*arguments: str) -> Any:
    cli.add_commands()
    return CliRunner().invoke(cli.app, ["compare", *arguments])


def test_the_command_line(files: dict[str, str]) -> None:
    a, b = files["a"], files["b"]
    result = command(a, b)
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "enters here" in line]
    assert line.split()[:2] == ["g1", "Gemm"]
    assert "8 more layers add none" in result.stdout
    assert "4 random samples. The error enters at g1 (Gemm)" in " ".join(result.stdout.split())
    shown = command(a, b, "--all").stdout
    assert all(re.search(rf"^ +{name} ", shown, re.MULTILINE) for name in ("x_dq", "g0", "h1_dq"))
    given = command(a, b, "--inputs", files["x"])
    assert "1 given sample" in given.stdout


def test_the_json_is_that_of_the_python_call(files: dict[str, str]) -> None:
    result = command(files["a"], files["b"], "--json", "--seed", "3", "--samples", "2", "--shape", "x=5,6")
    found = json.loads(result.stdout)
    expected: Comparison = rules.compare(files["a"], files["b"], seed=3, samples=2, shapes={"x": [5, 6]})
    assert found == expected.as_dict()
    assert (found["schema"], found["version"]) == ("qdq-rewriter/comparison", 1)
    assert (found["samples"], found["seed"], found["enters"]) == (2, 3, "g1")
    assert found["outputs"][0]["plain"]["snr"] == expected.outputs[0].plain.snr
    assert found["layers"][0]["alone"]["snr"] == "Infinity"


def test_the_exit_status(files: dict[str, str]) -> None:
    a, b = files["a"], files["b"]
    low = rules.compare(a, b).worst_snr
    assert command(a, b, "--min-snr", f"{low - 0.1:.3f}").exit_code == 0
    below = command(a, b, "--min-snr", f"{low + 0.1:.3f}")
    assert below.exit_code == 4
    assert f"The lowest SNR of an output is {low:.1f} dB, below" in below.stdout
    assert command(a, b, "--min-snr", "500", "--json").exit_code == 4
    for arguments in ([a, "no.onnx"], [a, files["small"]], [a, b, "--inputs", a], [a, b, "--shape", "z=1"]):
        result = command(*arguments)
        assert result.exit_code == 1, arguments
        assert len(result.stderr.splitlines()) == 1
    for arguments in ([a], [a, b, "--shape", "x"], [a, b, "--shape", "x=1,q"], [a, b, "--samples", "0"]):
        assert command(*arguments).exit_code == 2, arguments
    assert command(a, b, "--shape", "x=1,6", "--inputs", files["x"]).exit_code == 2


def test_without_onnxruntime(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    result = command(files["a"], files["b"])
    assert result.exit_code == 1
    assert "pip install 'qdq-rewriter[verify]'" in result.stderr
