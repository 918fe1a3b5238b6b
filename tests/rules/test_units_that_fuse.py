"""On ONNX Runtime, "this unit fuses" is what it really does: unit by unit, in both directions.

Over 2,000 generated units of every form, over 500 with int8 activations that become uint8 first, and all real files. A
session over what the rules made shows which units it runs as integer kernels, another over the same units completed
regardless shows which ones were missed.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.fusion import Judged, judge, loads_optimized, merged, named
from tests.qdq_models import Body, build
from tests.qdq_unit import OPSETS, OPTIONS, Unit, draw
from tests.real_models import Row, table

EACH = 50  # units in one model, at least
UNITS = {"onnxruntime": 1400, "onnxruntime-x86": 500}
MODELS = [(backend, seed) for backend, units in UNITS.items() for seed in range(units // EACH)]


def drawn(rng: np.random.Generator, **fixed: Any) -> list[Unit]:
    """Units of one opset and IR version."""
    fixed |= {"opset": int(rng.choice(OPSETS)), "ir": int(rng.choice([ir for ir in OPTIONS["ir"] if ir >= 4]))}
    units: list[Unit] = []
    while sum(unit.count for unit in units) < EACH + 15:  # some of which are none for any backend
        unit = draw(rng, **fixed)
        if loads_optimized(unit):
            units.append(unit)
    return units


@pytest.mark.parametrize(("backend", "seed"), MODELS)
def test_generated_units(backend: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(backend)])
    units = drawn(rng, **({"x_type": "int8"} if backend == "onnxruntime-x86" else {}))
    judged = judge(merged([build(unit, rng) for unit in units]), backend)
    assert len(judged) >= EACH
    assert {one.fuses for one in judged} == {True, False}
    wrong = [(one, units[place(one)]) for one in judged if not one.is_right]
    assert not wrong, "\n".join(map(str, wrong))


def place(judged: Judged) -> int:
    """Which of the merged models a unit belongs to."""
    return int(next(iter(judged.nodes)).split("_")[0].removeprefix("p"))


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
@pytest.mark.parametrize("backend", UNITS)
def test_real_files(row: Row, backend: str) -> None:
    judged = judge(named(onnx.load(row.path)), backend)
    assert len(judged) >= row.fused
    assert not [one for one in judged if not one.is_right]


# -- where the drawn units are too plain ---------------------------------------------------------------


def matmul(
    x_shape: Sequence[int],
    bias: Sequence[int] | None = None,
    acts: Sequence[tuple[str, float | None, float | None]] = (),
    *,
    zero: int | None = 100,
    dtype: str = "uint8",
    scale_shape: Sequence[int] = (),
    weight_is_quantized: bool = False,
    dequantized: bool = False,
) -> onnx.ModelProto:
    """x codes -> DQ -> MatMul [-> Add] -> acts -> Q [-> DQ]. zero: how far y's zero point is from the smallest code."""
    body, rng, smallest = Body(), np.random.default_rng(0), int(np.iinfo(dtype).min)

    def parameters(name: str, scale: float, zero: int | None, shape: Sequence[int] = ()) -> list[str]:
        names = [body.constant(f"{name}_scale", np.full(shape, scale, np.float32))]
        return names if zero is None else [*names, body.constant(f"{name}_zp", np.full(shape, smallest + zero, dtype))]

    body.node("DequantizeLinear", ["x", *parameters("x", 0.02, None if zero is None else 100)], "a")
    w = rng.normal(size=(x_shape[-1], 4)).astype(np.float32)
    if weight_is_quantized:
        codes = body.constant("w_codes", np.rint(w * 40).astype(np.int8))
        scale = body.constant("w_scale", np.array(0.025, np.float32))
        body.node("DequantizeLinear", [codes, scale, body.constant("w_zp", np.array(0, np.int8))], "w")
    else:
        body.constant("w", w)
    y = body.node("MatMul", ["a", "w"], "product")
    if bias is not None:
        y = body.node("Add", [y, body.constant("b", np.asarray(rng.normal(size=bias), np.float32))], "sum")
    for k, (op, *bounds) in enumerate(acts):
        held = [None if v is None else body.constant(f"bound{k}_{v}", np.array(v, np.float32)) for v in bounds]
        y = body.node(op, [y, *(name or "" for name in held if op == "Clip")], f"act{k}")
    of_y = parameters("y", 0.05, zero, scale_shape)
    body.node("QuantizeLinear", [y, *of_y], "y_codes")
    if dequantized:
        body.node("DequantizeLinear", ["y_codes", *of_y], "y")
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x_info = helper.make_tensor_value_info("x", elem, x_shape)
    y_info = helper.make_tensor_value_info(*(("y", TensorProto.FLOAT) if dequantized else ("y_codes", elem)), None)
    graph = helper.make_graph(body.nodes, "matmul", [x_info], [y_info], body.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def all_right(models: Sequence[onnx.ModelProto], described: Sequence[object]) -> None:
    judged = judge(merged(models), "onnxruntime")
    assert len(judged) == len(models)
    assert {one.fuses for one in judged} == {True, False}
    wrong = [(one, described[place(one)]) for one in judged if not one.is_right]
    assert not wrong, "\n".join(map(str, wrong))


RELU = ("Relu", None, None)
SHAPES = [(5,), (3, 5), (1, 5), (2, 3, 5)]
BIASES = [None, (), (4,), (1,), (1, 1), (3, 1), (1, 4), (3, 4), (1, 1, 4)]
KINDS: list[dict[str, Any]] = [
    {},
    {"weight_is_quantized": True},
    {"dtype": "int8"},
    {"dtype": "int8", "dequantized": True},
    {"zero": None},
]
ADDED = list(itertools.product(SHAPES, BIASES, [(), (RELU,)], KINDS))


def test_a_constant_of_any_shape_added_to_a_matmul() -> None:
    """Of some ONNX Runtime makes a Gemm, which can do less than a MatMul with an Add in float behind it."""
    all_right([matmul(x, b, relu, **kind) for x, b, relu, kind in ADDED], ADDED)


def clipped() -> Iterator[tuple[Any, ...]]:
    """Bounds on both sides of what the codes stand for, and of half a step inside of it; also none."""
    for zero, scale_shape in ((0, ()), (100, ()), (None, ()), (0, (1,)), (None, (1,))):
        yield [RELU], zero, scale_shape
        bottom, top = -0.05 * (zero or 0), 0.05 * (255 - (zero or 0))
        lows, highs = (None, bottom + 0.02, bottom + 0.03), (None, top + 1, top - 0.02, top - 0.03, 1.2e8)
        for low, high in itertools.product(lows, highs):
            clip = ("Clip", low, high)
            for acts in ([clip], [RELU, clip], [clip, RELU], [clip, clip]):
                yield acts, zero, scale_shape


CLIPPED = list(clipped())


def test_a_clip_around_the_range_of_the_codes() -> None:
    all_right([matmul((3, 5), None, acts, zero=zero, scale_shape=shape) for acts, zero, shape in CLIPPED], CLIPPED)


def test_how_many_units_there_are() -> None:
    """Each of the tests above counts its own."""
    assert UNITS["onnxruntime"] + len(ADDED) + len(CLIPPED) > 2000
    assert UNITS["onnxruntime-x86"] >= 500
