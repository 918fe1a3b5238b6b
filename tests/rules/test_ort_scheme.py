"""`scheme="onnxruntime"` gives what ONNX Runtime's WeightBiasQuantization gives: for the same nodes, the same
bits.

Whoever relies on what ONNX Runtime does at session load gets that very file, so the comparison is exact, in
payload, type and shape, and a unit that only one side quantizes fails too. The other side is ONNX Runtime
itself, running that one optimizer and constant folding. Our result goes through the same folding, so that
constants are stored alike in both.

Besides real files and generated units there is one model per rule of that optimizer: what it looks at when
it takes or skips a node, and values that its arithmetic does not expect.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import helper, numpy_helper

import rewriter
import rules
from tests import oracle, real_models
from tests.ort_optimizer import optimize_with_only, weight_bias_quantization
from tests.qdq_models import build
from tests.qdq_unit import OPTIONS, Place, Unit, WeightForm, draw, repair, units

SCHEME = rules.WeightBias(scheme="onnxruntime")

Array = npt.NDArray[Any]
Edit = Callable[[onnx.ModelProto], None]


def folded(model: onnx.ModelProto) -> dict[str, oracle.Described]:
    return oracle.units(optimize_with_only(model, "ConstantFolding"))


def quantized(before: dict[str, oracle.Described], after: dict[str, oracle.Described]) -> int:
    """How many units changed."""
    return sum(before[name] != after[name] for name in before)


def compare(model: onnx.ModelProto) -> int:
    """Fails where the two results differ; else the number of units that both quantized."""
    theirs = oracle.units(weight_bias_quantization(model))
    differences = oracle.differences(folded(rewriter.apply(model, SCHEME)), theirs)
    assert not differences, "\n".join(differences)
    return quantized(folded(model), theirs)


def loads(model: onnx.ModelProto, unit: Unit) -> bool:
    """Whether ONNX Runtime can load what its optimizer makes of the unit.

    It always can from opset 13 on. Before 11 there is no Round, and before 13 no axis in the DequantizeLinear
    of ai.onnx, which it uses whatever the unit's own domain.
    """
    try:
        weight_bias_quantization(model)
    except Exception:
        assert unit.opset < 11 or (unit.opset < 13 and unit.per_channel), unit
        return False
    return True


@real_models.needs_shared
@pytest.mark.parametrize("row", real_models.table(), ids=lambda row: row.name)
def test_real_files(row: real_models.Row) -> None:
    assert compare(onnx.load(row.path)) > 0


@pytest.mark.parametrize("seed", range(5))
def test_generated_units(seed: int) -> None:
    """Over 500 models in all: near to what is quantized, each away from it in a few of the options."""
    rng = np.random.default_rng(seed)
    compared: Counter[str] = Counter()
    for _ in range(150):
        unit = draw(rng, change=0.2)
        model = build(unit, rng)
        if loads(model, unit):
            compared["models"] += 1
            compared["quantized"] += compare(model)
    assert compared["models"] >= 120
    assert compared["quantized"] >= 40


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(units())
def test_any_unit(unit: Unit) -> None:
    model = build(unit, np.random.default_rng(0))
    if loads(model, unit):
        compare(model)


@pytest.mark.parametrize("place", OPTIONS["place"])
@pytest.mark.parametrize("weight_form", OPTIONS["weight_form"])
def test_every_place(place: Place, weight_form: WeightForm) -> None:
    unit = repair(Unit(op="Gemm", place=place, weight_form=weight_form))
    # A float weight of an outer scope is none of the graph's own initializers, and so is skipped.
    expected = 0 if place.endswith("outside") and weight_form == "float" else 1
    assert compare(build(unit, np.random.default_rng(0))) == expected


TAKEN = {
    "bare": Unit(),
    "no bias": Unit(bias="none"),
    "graph output too": Unit(output="also graph output"),
    "Relu": Unit(post=("Relu",)),
    "Clip that Q does not make redundant": Unit(post=("Clip",), redundant=False),
    "Relu, Relu, Clip": Unit(post=("Relu", "Relu", "Clip")),
    "graph output and Relu": Unit(post=("Relu",), output="also graph output"),
    "ConvTranspose, grouped": Unit(op="ConvTranspose", group=2),
    "alpha and beta": Unit(op="Gemm", alpha=0.5, beta=3.0, trans_b=True),
    "16-bit activations": Unit(x_type="int16", opset=21),
    "x and y of different type": Unit(x_type="uint8", y_type="int8"),
    "scales of shape [1]": Unit(scale_shape=(1,)),
    "quantized weight, scale of shape [1]": Unit(scale_shape=(1,), weight_form="per tensor"),
    "quantized weight, per tensor": Unit(weight_form="per tensor", weight_type="uint8", weight_zero_point=5),
    "quantized weight, per channel": Unit(weight_form="per channel"),
    "quantized Gemm weight, negative axis": Unit(op="Gemm", weight_form="per channel, negative axis"),
    "quantized Conv weight, negative axis": Unit(weight_form="per channel, negative axis"),
    "quantized ConvTranspose weight, per channel": Unit(op="ConvTranspose", weight_form="per channel"),
    "weight behind Transpose": Unit(source="transpose"),
    "weight in Constant": Unit(source="constant"),
    "IR version 3": Unit(ir=3),
    "com.microsoft Q/DQ": Unit(domain="com.microsoft"),
    "opset 11": Unit(opset=11),
    "shared weight": Unit(chain=2, share="weight"),
    "shared bias": Unit(chain=2, share="bias"),
}

SKIPPED = {
    "MatMul": Unit(op="MatMul", bias="none"),
    "MatMul, Add": Unit(op="MatMulAdd"),
    "no Q": Unit(output="no q"),
    "second consumer": Unit(output="second consumer"),
    "bias of shape [1,N]": Unit(op="Gemm", bias="1N"),
    "bias of shape [M,1]": Unit(op="Gemm", bias="M1"),
    "bias of shape [M,N]": Unit(op="Gemm", bias="MN"),
    "scalar bias": Unit(op="Gemm", bias="scalar"),
    "run-time bias": Unit(bias_form="input"),
    "quantized weight and bias": Unit(weight_form="per tensor", bias_form="int32"),
    "quantized weight, bias of wrong scale": Unit(weight_form="per tensor", bias_form="int32 of wrong scale"),
    "quantized weight, no bias": Unit(weight_form="per channel", bias="none"),
}


@pytest.mark.parametrize("unit", TAKEN.values(), ids=TAKEN)
def test_taken(unit: Unit) -> None:
    assert repair(unit) == unit
    assert compare(build(unit, np.random.default_rng(0))) == unit.chain


@pytest.mark.parametrize("unit", SKIPPED.values(), ids=SKIPPED)
def test_skipped(unit: Unit) -> None:
    assert repair(unit) == unit
    assert compare(build(unit, np.random.default_rng(0))) == 0


def _tensor(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    return found


def _node(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in model.graph.node if output in node.output)
    return found


def _set(name: str, change: Callable[[Array], Array]) -> Edit:
    """Changes the values of an initializer."""

    def edit(model: onnx.ModelProto) -> None:
        tensor = _tensor(model, name)
        old = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(old.copy()), old.dtype), name))

    return edit


def _put(value: float) -> Callable[[Array], Array]:
    """One element becomes this value."""

    def change(array: Array) -> Array:
        array.flat[-1] = value
        return array

    return change


def _all(*edits: Edit) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        for one in edits:
            one(model)

    return edit


def _overridable(name: str) -> Edit:
    """The initializer becomes the default of a graph input."""

    def edit(model: onnx.ModelProto) -> None:
        tensor = _tensor(model, name)
        model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))

    return edit


def _attributes(output: str, **attributes: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        node = _node(model, output)
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())

    return edit


def _one_step_per_bias_step(bias: Callable[[Array], Array]) -> Edit:
    """A bias scale of 1, so that the bias' codes are its values."""
    return _all(_set("u0_w", lambda w: w * 0 + 255), _set("x_scale", np.ones_like), _set("u0_b", bias))


def _no_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.ClearField("name")


def _no_zero_point(model: onnx.ModelProto) -> None:
    _node(model, "u0_w").input.pop()


def _scale_of_x_per_row(model: onnx.ModelProto) -> None:
    rows = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    for name in ("x_scale", "x_zp"):
        _set(name, lambda old: np.tile(old, rows))(model)
    for output in ("x_q", "u0_x"):
        _attributes(output, axis=0)(model)


def _one_block(model: onnx.ModelProto) -> None:
    """The same scales, said as one block along the rows."""
    rows = _tensor(model, "u0_wq").dims[0]
    for name in ("u0_w_scale", "u0_w_zp"):
        _set(name, lambda old: old.reshape(1, -1))(model)
    _attributes("u0_w", axis=0, block_size=rows)(model)


def _relu_used_twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["u0_post0"], ["second"]))
    model.graph.output.append(helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, None))


def _abs_before_q(model: onnx.ModelProto) -> None:
    _node(model, "u0_q").input[0] = "u0_abs"
    nodes = list(model.graph.node)
    nodes.insert(nodes.index(_node(model, "u0_y")) + 1, helper.make_node("Abs", ["u0_y"], ["u0_abs"]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


CONV, GEMM = Unit(), Unit(op="Gemm")
QUANTIZED, CHANNELS = Unit(weight_form="per tensor"), Unit(op="Gemm", weight_form="per channel", opset=21)
SQUARE = Unit(op="Gemm", weight_form="per channel", chain=2, share="bias")

ODD: dict[str, tuple[Unit, Edit, int]] = {  # what is built, how it is edited, and how many units ONNX Runtime takes
    "NaN in the weight": (CONV, _set("u0_w", _put(np.nan)), 1),
    "NaN everywhere in the weight": (CONV, _set("u0_w", lambda w: w * np.nan), 1),
    "infinity in the weight": (CONV, _set("u0_w", _put(np.inf)), 1),
    "minus infinity in the weight": (CONV, _set("u0_w", _put(-np.inf)), 1),
    "huge weights": (CONV, _set("u0_w", lambda w: np.where(w > 0, 3e38, -3e38)), 1),
    "tiny weights": (CONV, _set("u0_w", lambda w: w * np.float32(1e-30)), 1),
    "subnormal weights": (CONV, _set("u0_w", lambda w: w * np.float32(1e-39)), 1),
    "zero weights": (CONV, _set("u0_w", np.zeros_like), 1),
    "positive weights": (CONV, _set("u0_w", np.abs), 1),
    "negative weights": (CONV, _set("u0_w", lambda w: -np.abs(w)), 1),
    "equal weights": (CONV, _set("u0_w", lambda w: np.full_like(w, 0.3)), 1),
    "NaN in the bias": (CONV, _set("u0_b", _put(np.nan)), 1),
    "infinity in the bias": (CONV, _set("u0_b", _put(np.inf)), 1),
    "overflowing bias": (CONV, _set("u0_b", lambda b: b * np.float32(1e9)), 1),
    "overflowing positive bias": (CONV, _set("u0_b", lambda b: np.full_like(b, 1e9)), 1),
    "bias at the edge of int32": (CONV, _one_step_per_bias_step(_put(2**31 - 64)), 1),
    "bias just beyond int32": (CONV, _one_step_per_bias_step(_put(2**31)), 1),
    "ties of the bias": (CONV, _one_step_per_bias_step(lambda b: np.arange(b.size) - 1.5), 1),
    "zero scale of x": (CONV, _set("x_scale", np.zeros_like), 1),
    "negative scale of x": (CONV, _set("x_scale", lambda s: -s), 1),
    "no names": (Unit(chain=2), _no_names, 2),
    "scale of x per axis": (GEMM, _scale_of_x_per_row, 0),
    "weight without zero point": (QUANTIZED, _no_zero_point, 1),
    "NaN in a quantized weight's scale": (CHANNELS, _set("u0_w_scale", _put(np.nan)), 1),
    "scales along the wrong axis": (SQUARE, _attributes("u0_w", axis=0), 1),
    "block_size of 0": (CHANNELS, _attributes("u0_w", axis=1, block_size=0), 1),
    "blocks": (CHANNELS, _one_block, 0),
    "one bias for all channels": (GEMM, _set("u0_b", lambda b: b[:1]), 1),
    "one bias for all channels of a weight per channel": (CHANNELS, _set("u0_b", lambda b: b[:1]), 0),
    "second consumer behind Relu": (Unit(post=("Relu",)), _relu_used_twice, 0),
    "another op before Q": (CONV, _abs_before_q, 0),
}


@pytest.mark.parametrize(("unit", "edit", "taken"), ODD.values(), ids=ODD)
def test_odd(unit: Unit, edit: Edit, taken: int) -> None:
    model = build(unit, np.random.default_rng(0))
    edit(model)
    assert compare(model) == taken


REPLACEABLE: dict[str, Edit] = {
    "weight": _overridable("u0_w"),
    "bias": _overridable("u0_b"),
    "scale of x": _overridable("x_scale"),
}


@pytest.mark.parametrize("edit", REPLACEABLE.values(), ids=REPLACEABLE)
def test_what_the_caller_can_replace_stays_as_it_is(edit: Edit) -> None:
    """The one place to differ: ONNX Runtime quantizes these at run time, and so saves no integers."""
    model = build(CONV, np.random.default_rng(0))
    edit(model)
    (theirs,) = oracle.units(weight_bias_quantization(model)).values()
    assert oracle.Computed("DequantizeLinear") in (theirs.weight, theirs.bias)
    result = rewriter.run(model, SCHEME)
    assert result.model.SerializeToString() == model.SerializeToString()
    assert [decline.node for decline in result.report.declined] == ["u0_y_Conv"]
