"""The report on a unit: figures read from the files again, bytes of real tensors, bounds beside ONNX Runtime's outputs.

Nothing is compared with our own arithmetic. Weights and codes are read from the models by `backend_units`; what a bound
says is put to the test with the very input that is worst for the unit, which is found by running it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import rewriter
import rules
from rewriter import cli
from rules.quantization import channel_errors
from tests import backend_units, sessions
from tests.backend_units import Linear, Operand, units
from tests.qdq_models import build
from tests.qdq_unit import OPTIONS, Unit, draw, repair
from tests.rules import one_unit

Doubles = npt.NDArray[np.float64]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "digits_qdq.onnx"
WEIGHTS: list[dict[str, Any]] = [
    {},
    {"rounding": "nearest"},
    {"symmetric": False},
    {"weight_type": "uint8"},
    {"granularity": "tensor"},
    {"reduce_range": True},
    {"weight_type": "int4", "scale_search": "mse"},
    {"weight_type": "int16"},
    {"granularity": "block", "block_size": 2},
    {"bias": False},
]


def plain(**options: Any) -> Unit:
    """One unit whose input is codes and which fills its output's range."""
    options = {"opset": 21, **options}
    return repair(Unit(place="main", chain=1, quantized_input=True, output="float", **options))


def random_units(count: int, seed: int, **fixed: Any) -> list[tuple[Unit, onnx.ModelProto]]:
    rng = np.random.default_rng(seed)
    always: dict[str, Any] = {
        "place": "main",
        "chain": 1,
        "beside": "",
        "share": "",
        "quantized_input": True,
        "output": "float",
    }
    drawn = [draw(rng, **{**always, "weight_form": "float", **fixed}) for _ in range(count)]
    return [(unit, build(unit, rng)) for unit in drawn]


def reported(model: onnx.ModelProto, **options: Any) -> tuple[onnx.ModelProto, rules.UnitReport]:
    result = rewriter.run(model, rules.WeightBias(**options))
    (report,) = rules.unit_reports(result.report)
    return result.model, report


# -- the figures -----------------------------------------------------------------------------------


def dequantized(held: Linear) -> npt.NDArray[np.floating[Any]]:
    """As ONNX DequantizeLinear has it: the difference of the codes, times the scale, in the scale's type."""
    assert held.codes is not None
    assert held.scale is not None
    zero = np.zeros(held.scale.shape, np.int64) if held.zero_point is None else held.zero_point.astype(np.int64)
    steps = held.codes.astype(np.int64) - spread(zero, held)
    return np.asarray(steps.astype(held.scale.dtype) * spread(held.scale, held))


def spread(values: npt.NDArray[Any], held: Linear) -> npt.NDArray[Any]:
    assert held.codes is not None
    if values.ndim == 0 or held.axis is None:
        return values.reshape(())
    if held.block_size:
        return np.repeat(values, held.block_size, held.axis).take(range(held.codes.shape[held.axis]), held.axis)
    return values.reshape([-1 if i == held.axis else 1 for i in range(held.codes.ndim)])


def fractions(values: npt.NDArray[Any]) -> list[Fraction]:
    return [Fraction(float(v)) for v in values.reshape(-1)]


def number(value: Operand) -> npt.NDArray[Any]:
    assert value is not None
    return dequantized(value) if isinstance(value, Linear) else value


@pytest.mark.parametrize("options", WEIGHTS, ids=str)
def test_figures_of_the_weight_and_the_bias(options: dict[str, Any]) -> None:
    fixed = {"opset": 21, "bias_form": "float", "x_type": "uint8", "y_type": "", "domain": ""}
    factors = random_units(2, 7, **fixed, op="Gemm", alpha=1.7, beta=3.0, bias="N")
    for unit, model in random_units(12, 5, **fixed) + factors:
        after, report = reported(model, **options)
        (old,), (new,) = units(model), units(after)
        assert isinstance(new.weight, Linear)
        w, back = fractions(number(old.weight)), fractions(dequantized(new.weight))
        alpha = Fraction(old.alpha) / Fraction(new.alpha)
        signal = sum((alpha * v) ** 2 for v in w)
        noise = sum((alpha * v - b) ** 2 for v, b in zip(w, back, strict=True))
        assert report.snr is not None
        assert 10 ** (report.snr / 10) == pytest.approx(float(signal / noise) if noise else np.inf, rel=1e-6)
        scales = new.weight.scale
        assert scales is not None
        assert report.scale_range == (float(scales.min()), float(scales.max()))
        if isinstance(new.bias, Linear) and unit.bias != "none":
            beta = Fraction(old.beta) / Fraction(new.beta)
            assert new.bias.codes is not None
            assert new.bias.scale is not None
            before = np.broadcast_to(number(old.bias), new.bias.codes.shape)
            step = np.broadcast_to(spread(new.bias.scale, new.bias), new.bias.codes.shape)
            off = [
                abs(beta * b - int(c) * s) / s
                for b, c, s in zip(fractions(before), new.bias.codes.reshape(-1), fractions(step), strict=True)
            ]
            assert report.bias_error == pytest.approx(float(max(off)), abs=1e-6)
        else:
            assert report.bias_error is None


@pytest.mark.parametrize("options", WEIGHTS, ids=str)
@pytest.mark.parametrize("source", ["initializer", "constant", "transpose"])
def test_bytes_are_those_of_the_tensors(options: dict[str, Any], source: str) -> None:
    """What is new in the file, and what is gone from it."""
    fixed = {"opset": 21, "bias_form": "float", "x_type": "uint8", "y_type": "", "domain": "", "source": source}
    for _, model in random_units(5, 6, **fixed):
        after, report = reported(model, **options)
        before, behind = stored(model), stored(after)
        assert report.bytes_before == sum(n for name, n in before.items() if name not in behind)
        assert report.bytes_after == sum(n for name, n in behind.items() if name not in before)


def stored(model: onnx.ModelProto) -> dict[str, int]:
    """The bytes of all stored constants but shapes."""
    tensors = [(t.name, t) for t in model.graph.initializer]
    tensors += [(n.output[0], n.attribute[0].t) for n in model.graph.node if n.op_type == "Constant"]
    return {name: len(tensor.raw_data) for name, tensor in tensors if tensor.data_type != onnx.TensorProto.INT64}


def test_bytes_of_a_bias_that_was_quantized() -> None:
    for form in ("per tensor", "per channel"):
        model = build(plain(weight_form=form, bias_form="int32 of wrong scale"), np.random.default_rng(0))
        after, report = reported(model)
        assert report.weight is None
        before, behind = stored(model), stored(after)
        assert report.bytes_before == sum(n for name, n in before.items() if name not in behind)
        assert report.bytes_after == sum(n for name, n in behind.items() if name not in before)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("group", [1, 3])
def test_the_worst_channel_is_the_output_that_suffers_most(op: Any, group: int) -> None:
    """One channel is small beside the others under one scale: which one it is, the outputs show."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        model = build(plain(op=op, group=group, bias="none"), rng)
        tensor = next(t for t in model.graph.initializer if t.name == "u0_w")
        w = rng.uniform(0.5, 1, tensor.dims).astype(np.float32)
        if op == "ConvTranspose":  # output channels are numbered group by group
            deep = w.shape[0] // group
            w[seed % group * deep : (seed % group + 1) * deep, -1] *= np.float32(0.01)
        else:
            np.moveaxis(w, 0 if op == "Conv" else 1, 0)[-1] *= np.float32(0.01)
        tensor.CopyFrom(numpy_helper.from_array(w, "u0_w"))
        after, report = reported(model, granularity="tensor", rounding="nearest")
        x = sessions.feeds(model, rng)["x"]
        y, error = outputs(model, report, x), outputs(model, report, x) - outputs(after, report, x)
        over = tuple(i for i in range(y.ndim) if i != (1 if w.ndim > 2 else y.ndim - 1))
        lost = np.square(error).sum(axis=over) / np.square(y).sum(axis=over)
        assert report.worst_channel is not None
        assert report.worst_channel[0] == np.argmax(lost)
        assert report.snr is not None
        assert report.worst_channel[1] <= report.snr


# -- bounds ----------------------------------------------------------------------------------------


def codes_of(model: onnx.ModelProto) -> tuple[str, list[int], np.dtype[Any]]:
    """The model's input, which is codes."""
    (x,) = [i for i in model.graph.input if i.name == "x"]
    shape = [d.dim_value for d in x.type.tensor_type.shape.dim]
    return x.name, shape, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(x.type.tensor_type.elem_type))


def outputs(model: onnx.ModelProto, report: rules.UnitReport, x: npt.NDArray[Any], **feeds: Any) -> Doubles:
    """The unit's output before Q."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.append(onnx.ValueInfoProto(name=report.output))
    return sessions.run(watched, {"x": x, **feeds})[0].astype(np.float64)


def rounding(model: onnx.ModelProto, report: rules.UnitReport, y: Doubles) -> float:
    """What the sums of both runs may be off in float32, each of K steps by 2^-24 of a part of what is summed in all."""
    (unit,) = units(model)
    w = np.abs(number(unit.weight).astype(np.float64))
    assert report.inputs is not None
    largest = max(abs(v) for v in report.inputs)
    return float(2.0**-23 * (w.size * w.max() * largest * abs(unit.alpha) + np.abs(y).max()))


def worst_input(
    before: onnx.ModelProto, after: onnx.ModelProto, report: rules.UnitReport
) -> tuple[npt.NDArray[Any], float]:
    """The codes at which some output differs most, and by how much: from what each input does to the difference."""
    _, shape, dtype = codes_of(before)
    info = np.iinfo(dtype)
    (old,) = units(before)
    zero = 0 if old.x.zero_point is None else int(old.x.zero_point.item())

    def difference(x: npt.NDArray[Any]) -> Doubles:
        return (outputs(before, report, x) - outputs(after, report, x)).reshape(-1)

    rest = np.full(shape, zero, dtype)
    base = difference(rest)
    moved = np.zeros((2, rest.size, base.size))
    for k, place in enumerate(np.ndindex(*shape)):
        for end, code in enumerate((info.min, info.max)):
            x = rest.copy()
            x[place] = code
            moved[end, k] = difference(x) - base
    best = rest, 0.0
    for sign in (1, -1):
        output = int((sign * moved).max(axis=0).clip(0).sum(axis=0).argmax())
        low, high = sign * moved[:, :, output]
        codes = np.where(np.maximum(low, high) <= 0, zero, np.where(high >= low, info.max, info.min))
        x = codes.reshape(shape).astype(dtype)
        best = max(best, (x, float(np.abs(difference(x)).max())), key=lambda found: found[1])
    return best


@pytest.mark.parametrize("op", OPTIONS["op"])
@pytest.mark.parametrize("options", [{}, {"rounding": "nearest", "symmetric": False}], ids=str)
def test_the_bound_is_met_by_some_input_and_passed_by_none(op: Any, options: dict[str, Any]) -> None:
    fixed: dict[str, Any] = {
        "bias": "none" if op != "MatMulAdd" else "N",
        "bias_form": "float",
        "opset": 21,
        "spatial": 1,
    }
    for unit, model in random_units(5, 11, op=op, trans_a=False, rank=2, batched=False, **fixed):
        after, report = reported(model, **options)
        x, measured = worst_input(model, after, report)
        slack = rounding(model, report, outputs(model, report, x))
        assert report.bound is not None
        assert report.bound_by_scale is not None
        assert measured <= report.bound + slack, unit
        bias = 0.0 if report.bias is None else float(report.bias.after.scale.max())
        assert measured >= report.bound * 0.98 - slack - bias, unit
        assert report.bound <= report.bound_by_scale * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_measured_error_never_exceeds_the_bound(seed: int) -> None:
    """Any unit, with options at random, on the input that it has and on the ends of its codes."""
    rng = np.random.default_rng([31, seed])
    for unit, model in random_units(12, 40 + seed, bias_form="float", domain=""):
        choices = WEIGHTS[:6] if unit.opset < 21 else WEIGHTS
        result = rewriter.run(model, rules.WeightBias(**choices[int(rng.integers(len(choices)))]))
        if result.report.declined:
            continue
        _, shape, dtype = codes_of(model)
        info = np.iinfo(dtype)
        feeds = [{"x": rng.integers(info.min, info.max, shape, dtype, endpoint=True)}]
        feeds += [{"x": np.full(shape, end, dtype)} for end in (info.min, info.max)]
        (report,) = rules.measure(model, result, feeds)
        assert report.measured is not None
        slack = rounding(model, report, outputs(model, report, **feeds[0]))
        assert report.bound is not None
        assert report.measured.error <= report.bound + slack, unit
        mine = max(float(np.abs(outputs(model, report, **f) - outputs(result.model, report, **f)).max()) for f in feeds)
        assert report.measured.error == pytest.approx(mine, abs=1e-12)


HOSTILE: dict[str, Callable[[np.random.Generator], npt.NDArray[Any]]] = {
    "outlier": lambda rng: np.where(rng.random((4, 6)) < 0.1, 1e4, rng.normal(size=(4, 6))),
    "channels far apart": lambda rng: rng.normal(size=(4, 6)) * np.exp2([[0], [20], [-20], [-10]]),
    "tiny": lambda rng: rng.normal(size=(4, 6)) * 1e-35,
    "huge": lambda rng: rng.normal(size=(4, 6)) * 1e30,
    "zeros": lambda rng: rng.normal(size=(4, 6)) * [[0], [1], [0], [1]],
    "one sign": lambda rng: np.abs(rng.normal(size=(4, 6))),
    "all equal": lambda rng: np.full((4, 6), 0.35),
    "one element": lambda rng: rng.normal(size=(1, 1)),
}


def exact_worst(w: npt.NDArray[Any], b: npt.NDArray[Any], new: backend_units.Unit) -> Fraction:
    """The largest |y - y'| of a Gemm with transB over all codes of x."""
    assert isinstance(new.weight, Linear)
    assert isinstance(new.bias, Linear)
    assert new.x.scale is not None
    assert new.x.zero_point is not None
    back, bias, kind = dequantized(new.weight), dequantized(new.bias), new.x.scale.dtype
    steps = np.array([0, 255]) - int(new.x.zero_point.item())
    low, high = fractions(np.multiply(steps.astype(kind), new.x.scale.reshape(1), dtype=kind))
    worst = Fraction(0)
    for c in range(len(w)):
        errors = [a - d for a, d in zip(fractions(w[c]), fractions(back[c]), strict=True)]
        off = Fraction(float(b[c])) - Fraction(float(bias[c]))
        most = sum((max(e * low, e * high) for e in errors), off)
        least = sum((min(e * low, e * high) for e in errors), off)
        worst = max(worst, most, -least)
    return worst


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("options", [{}, {"weight_type": "int4", "scale_search": "mse"}, {"symmetric": False}], ids=str)
def test_hostile_weights(kind: str, options: dict[str, Any]) -> None:
    """Exactly: for the worst codes, the sum of fractions of the float unit and of the codes' values."""
    rng = np.random.default_rng(len(kind))
    w = np.asarray(HOSTILE[kind](rng)).astype(np.float32)
    b = (rng.normal(size=len(w)) * np.abs(w).max()).astype(np.float32)
    model = build(plain(op="Gemm", trans_b=True, alpha=1.0, beta=1.0), rng)
    tensors = {t.name: t for t in model.graph.initializer}
    tensors["u0_w"].CopyFrom(numpy_helper.from_array(w, "u0_w"))
    tensors["u0_b"].CopyFrom(numpy_helper.from_array(b, "u0_b"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    after, report = reported(model, **options)
    (new,) = units(after)
    assert report.bound is not None
    assert report.bound_by_scale is not None
    worst = exact_worst(w, b, new)
    assert worst <= Fraction(report.bound) <= Fraction(report.bound_by_scale) * (1 + Fraction(1, 2**30))
    assert report.bound_in_steps == pytest.approx(report.bound / (report.y_scale or 0))
    assert json.loads(json.dumps(report.as_dict()))["node"] == report.node
    assert str(report)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bit_floats(kind: str) -> None:
    """The weight comes back in its own type, which rounds more than float32 does."""
    dtype: Any = np.float16 if kind == "float16" else ml_dtypes.bfloat16
    rng = np.random.default_rng(8)
    w = (rng.normal(size=(4, 6)) * [[1], [4], [0.3], [1]]).astype(dtype)
    b = rng.normal(size=4).astype(dtype)
    one = one_unit.One("Gemm", w, b, {"transB": 1}, float_type=kind, opset=21, x_scale=0.0625, y_scale=0.5)
    after, report = reported(one_unit.model(one))
    (new,) = units(after)
    assert isinstance(new.weight, Linear)
    back = dequantized(new.weight)
    assert back.dtype == dtype
    signal = sum(v * v for v in fractions(w))
    noise = sum((v - d) ** 2 for v, d in zip(fractions(w), fractions(back), strict=True))
    assert report.snr == pytest.approx(10 * np.log10(float(signal / noise)), abs=1e-9)
    assert report.bound is not None
    assert report.bound_by_scale is not None
    worst = exact_worst(w, b, new)
    assert worst <= Fraction(report.bound) <= worst * 2
    assert report.bound <= report.bound_by_scale


def test_a_bound_without_a_type_or_scale_is_none() -> None:
    model = build(plain(), np.random.default_rng(0))
    scale = next(n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear")
    model.graph.input.append(onnx.helper.make_tensor_value_info(scale, onnx.TensorProto.FLOAT, []))
    _, report = reported(model)
    assert report.bound is not None
    assert report.bound_in_steps is None
    assert "output" not in str(report)


def test_alpha_in_the_scale_of_a_quantized_weight_is_counted() -> None:
    for seed in range(6):
        unit = plain(op="Gemm", weight_form="per channel", bias_form="float", alpha=1.7)
        model = build(unit, np.random.default_rng(seed))
        after, report = reported(model)
        x, measured = worst_input(model, after, report)
        assert report.weight is None
        assert report.bound is not None
        assert measured <= report.bound + rounding(model, report, outputs(model, report, x))


def test_onnxruntimes_own_numbers_are_reported_as_they_are() -> None:
    """A bias that it overflows is a wrong sign, and is said to be off by 2^32 steps."""
    model = build(plain(op="Conv"), np.random.default_rng(0))
    tensor = next(t for t in model.graph.initializer if t.name == "u0_b")
    tensor.CopyFrom(numpy_helper.from_array(np.full(tensor.dims[0], 1e9, np.float32), "u0_b"))
    after, report = reported(model, scheme="onnxruntime")
    assert report.bias_error is not None
    assert report.bias_error > 2**31
    (unit,) = units(after)
    assert isinstance(unit.weight, Linear)
    assert report.snr is not None
    w, back = number(units(model)[0].weight).astype(np.float64), dequantized(unit.weight).astype(np.float64)
    assert report.snr == pytest.approx(10 * np.log10(np.square(w).sum() / np.square(w - back).sum()))


# -- what it costs, and where it shows -------------------------------------------------------------


def test_nothing_is_computed_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def dear(*_: Any, **__: Any) -> Any:
        raise AssertionError("computed")

    for name in ("channel_errors", "bias_errors", "clipping", "input_range"):
        monkeypatch.setattr(f"rules.quantization.{name}", dear)
    result = rewriter.run(onnx.load(EXAMPLE), rules.weight_bias)
    (first, *_) = rules.unit_reports(result.report)
    assert repr(first) == "UnitReport('conv0', 'Conv')"
    with pytest.raises(AssertionError, match="computed"):
        str(first)
    monkeypatch.setattr("rules.quantization.channel_errors", channel_errors)
    assert first.snr is not None


@pytest.mark.parametrize("kind", ["proto", "ir", "path", "external"])
def test_every_kind_of_model(kind: str, tmp_path: Path) -> None:
    """The figures are the same, also when the floats are no longer in the result; and so is what is measured."""
    model: Any = onnx.load(EXAMPLE)
    expected = [report.as_dict() for report in rules.unit_reports(rewriter.run(model, rules.weight_bias).report)]
    feeds = sessions.feeds(model, np.random.default_rng(0))
    if kind == "ir":
        model = ir.from_proto(model)
    elif kind != "proto":
        path = tmp_path / "in.onnx"
        onnx.save(model, path, save_as_external_data=kind == "external", location="in.bin", size_threshold=0)
        model = path
    result = rewriter.run(model, rules.weight_bias)
    assert [report.as_dict() for report in rules.unit_reports(result.report)] == expected
    measured = rules.measure(model, result, [feeds])
    assert len(measured) == 6
    for report in measured:
        assert report.measured is not None
        assert report.bound is not None
        assert 0 < report.measured.error <= report.bound
        assert "measured" in str(report)


def test_a_unit_is_measured_by_itself() -> None:
    """The second unit is exact: what the first one lost must not show there."""
    model = build(repair(Unit(op="Gemm", chain=2, opset=21, beta=1.0, bias="none")), np.random.default_rng(0))
    tensor = next(t for t in model.graph.initializer if t.name == "u1_w")
    codes = np.random.default_rng(1).integers(-127, 128, tensor.dims)
    codes[0] = 127
    tensor.CopyFrom(numpy_helper.from_array((codes * np.float32(0.25)).astype(np.float32), "u1_w"))
    result = rewriter.run(model, rules.weight_bias)
    first, second = rules.measure(model, result, [sessions.feeds(model, np.random.default_rng(2))])
    assert first.measured is not None
    assert first.measured.error > 0
    assert second.measured is not None
    assert (second.measured.error, second.measured.snr) == (0, np.inf)


def test_units_are_measured_behind_uint8_activations() -> None:
    model = build(repair(Unit(op="Conv", chain=2, x_type="int8", opset=21)), np.random.default_rng(0))
    result = rewriter.run(model, rules.for_backend("onnxruntime-x86"))
    found = rules.measure(model, result, [sessions.feeds(model, np.random.default_rng(1))])
    assert [report.is_integer for report in found] == [True, True]
    for report in found:
        assert report.measured is not None
        assert report.bound is not None
        assert 0 < report.measured.error <= report.bound * (1 + 1e-5)


def test_a_bias_of_run_time_and_a_unit_in_a_body() -> None:
    model = build(plain(bias_form="input"), np.random.default_rng(0))
    result = rewriter.run(model, rules.weight_bias)
    (report,) = rules.measure(model, result, [sessions.feeds(model, np.random.default_rng(1))])
    assert report.measured is not None
    assert report.bound is not None
    assert 0 < report.measured.error <= report.bound * (1 + 1e-5)
    model = build(repair(replace(Unit(), place="then")), np.random.default_rng(0))
    result = rewriter.run(model, rules.weight_bias)
    (report,) = rules.measure(model, result, [sessions.feeds(model, np.random.default_rng(1))])
    assert report.measured is None
    assert report.snr is not None


def test_without_a_unit_there_is_nothing_to_measure() -> None:
    model = rewriter.apply(build(plain(), np.random.default_rng(0)), rules.weight_bias)
    assert rules.measure(model, rewriter.run(model, rules.weight_bias), []) == []


def test_measuring_alone_needs_onnxruntime() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import onnx, rewriter, rules\n"
        f"model = onnx.load({str(EXAMPLE)!r})\n"
        "result = rewriter.run(model, rules.weight_bias)\n"
        "assert all(map(str, rules.unit_reports(result.report)))\n"
        "try: rules.measure(model, result, [])\n"
        "except ModuleNotFoundError as error: print(error.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.stderr) == ("onnxruntime\n", "")


def test_the_command_line_has_a_line_for_each_unit(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli.app, ["apply", str(EXAMPLE), str(tmp_path / "o.onnx"), "--backend", "onnxruntime"], env={"COLUMNS": "400"}
    )
    told = " ".join(done.stdout.split())  # a table folds its cells
    expected = rules.unit_reports(rewriter.run(onnx.load(EXAMPLE), rules.for_backend("onnxruntime")).report)
    assert len(expected) == told.count("integer kernel") == 6
    for report in expected:
        assert str(report) in told


def test_the_report_in_words() -> None:
    report = rewriter.run(onnx.load(EXAMPLE), rules.WeightBias(exclude=("gemm",))).report
    lines = str(report).splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("conv0 (conv): conv0.weight [8, 1, 3, 3] int8 per channel (axis 0)")
    assert lines[-1] == "left alone: excluded by 'gemm': gemm"
