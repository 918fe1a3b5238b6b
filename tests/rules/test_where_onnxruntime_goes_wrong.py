"""Every row of "Where it goes wrong (measured) and what is right" in the reference on ONNX Runtime but the last.

(That, int8 activations which it moves, is `test_int8_that_moves`.)

Each test first asks for the right outcome of ours: an output within the proved bound plus one step of the
float unit's at ORT_DISABLE_ALL, or a decline with the row's reason. Then it shows that a session of ONNX
Runtime is still wrong there, so that the row keeps meaning something; where a newer release has mended it, the
test skips after our half has passed. Kernels of `ConvTranspose` have 3x3 pixels, as `one_unit` expects.
"""

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

import rewriter
import rules
from tests import oracle, sessions
from tests.backend_units import Linear, units
from tests.ort_optimizer import weight_bias_quantization
from tests.rules.one_unit import Coded, One, allowed, feeds, model, steps

Floats = npt.NDArray[np.float32]
OURS_ALONE = ("WeightBiasQuantization",)
SHAPES = {"Conv": (4, 3, 3, 3), "ConvTranspose": (5, 4, 3, 3), "Gemm": (6, 4), "MatMul": (6, 4), "MatMulAdd": (6, 4)}
WITH_BIAS = ("Conv", "ConvTranspose", "Gemm")
AXIS = {"Conv": 0}


def normal(*shape: int, size: float = 0.3, seed: int = 1) -> Floats:
    return (np.random.default_rng(seed).normal(size=shape) * size).astype(np.float32)


def weight(op: str, size: float = 0.3) -> Floats:
    return normal(*SHAPES[op], size=size)


def mended(what: str) -> None:
    pytest.skip(f"ONNX Runtime {ort.__version__} has mended this: {what}")


def within_the_bound(one: One, backend: str = "generic") -> onnx.ModelProto:
    """Our half: the unit is completed, and right in float and with integer kernels. Gives the result."""
    before = model(one)
    result = rewriter.run(before, rules.WeightBias(backend=backend))
    after = result.model
    onnx.checker.check_model(after, full_check=True)
    (unit,) = units(after)
    assert unit.quantized, result.report.declined
    reference, bound = sessions.run(before, feeds(one)), allowed(one, before, after)
    for level in (sessions.DISABLE_ALL, sessions.EXTENDED):
        session = sessions.session(after, level, disabled=OURS_ALONE)
        found = steps(reference, session.run(None, feeds(one)))
        assert (found <= bound).all(), f"{found.max()} steps, allowed {bound.max()}"
    return after


def declined(one: One, said: str, backend: str = "generic") -> str:
    """Our half, where nothing can be done: the file stays as it is, and a reason says this."""
    before = model(one)
    result = rewriter.run(before, rules.WeightBias(backend=backend))
    reasons = [decline.reason for decline in result.report.declined]
    assert result.model == before
    assert len(reasons) == 1
    assert re.search(said, reasons[0]), reasons
    return reasons[0]


def ort_is_wrong(one: One, by: float, **more: npt.NDArray[np.generic]) -> None:
    """Their half: a session as everybody makes it is at least so many output steps off."""
    made, given = model(one), feeds(one, **more)
    off = steps(sessions.run(made, given), sessions.run(made, given, sessions.EXTENDED)).max()
    if off < by:
        mended(f"{off} output steps")


def loads(made: onnx.ModelProto) -> bool:
    try:
        sessions.session(made, sessions.EXTENDED)
    except Exception:  # its own classes, of which none is public
        return False
    return True


def quantizes_in_vain(one: One) -> bool:
    """Whether ONNX Runtime quantizes the weight although the unit becomes no integer kernel."""
    made = model(one)
    (unit,) = oracle.units(weight_bias_quantization(made)).values()
    kernels = sessions.integer_kernels(sessions.optimized(made))
    return isinstance(unit.weight, oracle.Dequantized) and kernels == 0


# | int32 bias overflow |


@pytest.mark.parametrize("op", WITH_BIAS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("channels", ["all", "one"])
def test_bias_overflow_of_tiny_weights(op: str, sign: int, channels: str) -> None:
    w, b = weight(op, 1e-9), np.array([1.0, 0.5, 0.25, 0.7], np.float32) * np.float32(sign)
    if channels == "one":
        wide = np.moveaxis(w, AXIS.get(op, 1), 0)
        wide[1:] *= np.float32(1e8)
        b[1:] = 0.01
        one = One(op, w, b)
        within_the_bound(one)
        return  # one scale for the tensor is large enough there
    within_the_bound(One(op, w, b))
    ort_is_wrong(One(op, w, b), 10)


@pytest.mark.parametrize("op", WITH_BIAS)
@pytest.mark.parametrize("sign", [1, -1])
def test_bias_of_1e9(op: str, sign: int) -> None:
    one = One(op, weight(op), np.array([1e9, 3e8, 1.0, -2e8], np.float32) * np.float32(sign))
    within_the_bound(one)
    ort_is_wrong(one, 10)


# | Inf, or +-3e38, in W; NaN in W or B |


@pytest.mark.parametrize("op", [*WITH_BIAS, "MatMulAdd"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("tensor", ["w", "b"])
def test_infinity_and_nan(op: str, value: float, tensor: str) -> None:
    w, b = weight(op), normal(4)
    bad = {"w": w, "b": b}[tensor]
    index = (1, 2, *[0] * (w.ndim - 2)) if tensor == "w" else (2,)
    bad[index] = value
    bad[(-1,) * bad.ndim] = np.nan  # a later one
    one = One(op, w, b, y_scale=0.05)
    reason = declined(one, rf"\b{tensor}\b.*{', ?'.join(map(str, index))}")
    assert re.search("nan|inf|finite", reason, re.IGNORECASE)
    if op == "MatMulAdd" or (tensor == "b" and op == "ConvTranspose"):
        return
    (theirs,) = oracle.units(weight_bias_quantization(model(one))).values()
    if not isinstance(theirs.weight, oracle.Dequantized):
        mended("the weight is left alone")


@pytest.mark.parametrize("op", WITH_BIAS)
@pytest.mark.parametrize("signs", [(3e38, -3e38), (3e38, 0.0), (-3e38, 0.0)])
def test_weights_of_3e38(op: str, signs: tuple[float, float]) -> None:
    """Finite weights are declined, or completed within the bound."""
    w = weight(op)
    w.flat[0], w.flat[-1] = signs
    one = One(op, w, None, x_scale=1e-4)
    result = rewriter.run(model(one), rules.weight_bias)
    if result.report.rewrites:
        within_the_bound(one)
    else:
        declined(one, r"\bw\b")
    if 0.0 not in signs:  # max - min overflows
        (theirs,) = oracle.units(weight_bias_quantization(model(one))).values()
        assert isinstance(theirs.weight, oracle.Dequantized)
        assert isinstance(theirs.weight.scale, oracle.Stored)
        if np.isfinite(theirs.weight.scale.array.astype(np.float64)).all():
            mended("the scale is finite")


# | all-zero W or channel |


@pytest.mark.parametrize("op", WITH_BIAS)
@pytest.mark.parametrize("zero", ["all", "one channel"])
def test_zero_weights(op: str, zero: str) -> None:
    w = weight(op)
    channel = np.moveaxis(w, AXIS.get(op, 1), 0)
    channel[... if zero == "all" else 0] = 0
    one = One(op, w, np.array([0.3, -0.2, 0.1, 0.25], np.float32), x_scale=0.5)
    (unit,) = units(within_the_bound(one))
    assert isinstance(unit.weight, Linear)
    assert unit.weight.codes is not None
    assert (unit.weight.codes[w == 0] == 0).all()
    if zero == "all":
        ort_is_wrong(one, 10)


# | fp16 bias scale underflow |


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_float16_bias_scale_underflow(op: str) -> None:
    """x_scale * w_scale = 2e-8 is below the smallest float16. Half a step of it cannot be seen in the output."""
    codes = np.random.default_rng(3).integers(-127, 127, SHAPES[op], np.int8, endpoint=True)
    w = Coded(codes, np.array(1e-4, np.float16), np.array(0, np.int8))
    b = (normal(4, size=0.002)).astype(np.float16)
    one = One(op, w, b, x_scale=2e-4, float_type="float16", opset=21, ir=10)
    before = model(one)
    result = rewriter.run(before, rules.weight_bias)
    onnx.checker.check_model(result.model, full_check=True)
    if not result.report.rewrites:
        declined(one, "float16")
    found = steps(sessions.run(before, feeds(one)), sessions.run(result.model, feeds(one)))
    assert found.max() <= 2
    ort_is_wrong(one, 10)


# | W is also a graph input |


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
def test_a_weight_that_the_caller_can_replace(op: str) -> None:
    one = One(op, weight(op), None, w_is_input=True)
    declined(one, "constant|caller|overrid|graph input")
    if op != "MatMul":
        ort_is_wrong(one, 10, w=weight(op) * np.float32(-2))


# | opset 10 with bias; opset >= 23 with mixed scale types |


@pytest.mark.parametrize("op", WITH_BIAS)
def test_opset_10_with_a_bias(op: str) -> None:
    one = One(op, weight(op), normal(4), opset=10)
    after = within_the_bound(one)
    assert not {"Round", "Div"} & {node.op_type for node in after.graph.node}
    assert loads(after)
    if loads(model(one)):
        mended("the session loads")


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_opset_23_with_mixed_scale_types(op: str) -> None:
    """No session loads the file even as it is but at ORT_DISABLE_ALL, so onnx's own evaluator is the judge."""
    one = One(op, weight(op), normal(4), opset=23, ir=11, scale_type="float16", y_scale=0.05)
    before = model(one)
    result = rewriter.run(before, rules.weight_bias)
    onnx.checker.check_model(result.model, full_check=True)
    (unit,) = units(result.model)
    assert unit.quantized, result.report.declined
    assert not {"Round", "Div"} & {node.op_type for node in result.model.graph.node}
    outputs = [
        [np.asarray(y) for y in ReferenceEvaluator(each).run(None, feeds(one))] for each in (before, result.model)
    ]
    bound = allowed(replace(one, x_scale=float(np.float16(one.x_scale))), before, result.model)
    assert (steps(*outputs) <= bound).all()
    assert loads(result.model)
    if loads(before):
        mended("the session loads")


# | 16-bit x, x and y of different type, ...: quantized although nothing fuses |

IN_VAIN = {
    "16-bit": One("Conv", weight("Conv"), normal(4), x_type="uint16", y_type="uint16", x_scale=1e-4, opset=21, ir=10),
    "different types": One("Conv", weight("Conv"), normal(4), y_type="int8"),
    "int8 graph input": One("Conv", weight("Conv"), normal(4), x_type="int8", y_type="int8"),
    "Clip": One("Conv", weight("Conv"), normal(4), post=["Clip"]),
    "ConvTranspose": One("ConvTranspose", weight("ConvTranspose"), normal(4)),
    "graph output": One("Conv", weight("Conv"), normal(4), twin=True),
}
SAID = {
    "16-bit": "16",
    "different types": "int8",
    "int8 graph input": "int8",
    "Clip": "Clip",
    "ConvTranspose": "ConvTranspose",
    "graph output": "graph output",
}


@pytest.mark.parametrize("name", IN_VAIN)
def test_what_would_not_fuse_is_left_alone(name: str) -> None:
    declined(IN_VAIN[name], SAID[name], "onnxruntime")
    if not quantizes_in_vain(IN_VAIN[name]):
        mended("it fuses, or is left alone")


@pytest.mark.parametrize("attributes", [{"alpha": 0.5}, {"beta": 3.0}, {"alpha": 1.7, "beta": 0.25}])
def test_alpha_and_beta_are_folded_so_that_it_fuses(attributes: dict[str, float]) -> None:
    one = One("Gemm", weight("Gemm"), normal(4), attributes)
    after = within_the_bound(one, "onnxruntime")
    assert sessions.integer_kernels(sessions.optimized(after, disabled=OURS_ALONE)) == 1
    if not quantizes_in_vain(one):
        mended("it fuses, or is left alone")


# | bias scalar / [1,N] / [M,N]; bias dynamic; bias already quantized; W in an outer scope |

INT32 = Coded(np.array([500, -300, 200, 100], np.int32), np.array(1e-3, np.float32))
SKIPPED = {
    "scalar": One("Gemm", weight("Gemm"), np.array(0.3, np.float32)),
    "[1,N]": One("Gemm", weight("Gemm"), normal(1, 4)),
    "[M,1]": One("Gemm", weight("Gemm"), normal(16, 1)),
    "[M,N]": One("Gemm", weight("Gemm"), normal(16, 4)),
    "dynamic, Gemm": One("Gemm", weight("Gemm"), (4,)),
    "dynamic, Conv": One("Conv", weight("Conv"), (4,)),
    "quantized, Gemm": One("Gemm", weight("Gemm"), INT32),
    "quantized, Conv": One("Conv", weight("Conv"), INT32),
    "outer scope, Gemm": One("Gemm", weight("Gemm"), None, in_branch=True),
    "outer scope, Conv": One("Conv", weight("Conv"), normal(4), in_branch=True),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_what_can_be_quantized_is(name: str) -> None:
    one = SKIPPED[name]
    (unit,) = units(within_the_bound(one))
    assert isinstance(unit.bias, Linear) or one.b is None or isinstance(one.b, tuple)
    (theirs,) = oracle.units(weight_bias_quantization(model(one))).values()
    if isinstance(theirs.weight, oracle.Dequantized):
        mended("the weight is quantized")


# | Gemm fused with a wrong bias scale or zero point; Conv below its tolerance; weight DQ on the wrong axis |


def coded(op: str, scale: float = 0.01) -> Coded:
    codes = np.random.default_rng(5).integers(-127, 127, SHAPES[op], np.int8, endpoint=True)
    return Coded(codes, np.array(scale, np.float32), np.array(0, np.int8))


@pytest.mark.parametrize("factor", [1.5, 5.0, 0.3])
@pytest.mark.parametrize("backend", ["generic", "onnxruntime"])
def test_a_wrong_bias_scale_of_gemm(factor: float, backend: str) -> None:
    b = Coded(np.array([20000, -10000, 5000, 9000], np.int32), np.array(0.02 * 0.01 * factor, np.float32))
    one = One("Gemm", coded("Gemm"), b)
    within_the_bound(one, backend)
    ort_is_wrong(one, 10)


def test_a_bias_zero_point_of_gemm() -> None:
    """DequantizeLinear of int32 takes none, so no session runs the file as it is: its meaning is computed."""
    b = Coded(
        np.array([20000, -10000, 5000, 9000], np.int32), np.array(0.02 * 0.01, np.float32), np.array(8000, np.int32)
    )
    one, w = One("Gemm", coded("Gemm"), b, y_scale=0.08), coded("Gemm").codes
    result = rewriter.run(model(one), rules.weight_bias)
    x = (one.x().astype(np.float64) - one.zero) * float(np.float32(0.02))
    y = x @ (w.astype(np.float64) * float(np.float32(0.01))) + (b.codes.astype(np.float64) - 8000) * float(b.scale)
    right = np.clip(np.rint(y / float(np.float32(one.y_scale))) + 128, 0, 255)
    (unit,) = units(result.model)
    if isinstance(unit.bias, Linear) and not unit.bias.explicit:
        for level in (sessions.DISABLE_ALL, sessions.EXTENDED):
            assert steps([right], sessions.run(result.model, feeds(one), level)).max() <= 1
    else:
        declined(one, "zero point")
    try:
        theirs = sessions.run(model(one), feeds(one), sessions.EXTENDED)
    except Exception:  # its own classes, of which none is public
        mended("the session refuses the file")
    if steps([right], theirs).max() < 10:
        mended("the zero point counts")


@pytest.mark.parametrize("backend", ["generic", "onnxruntime"])
def test_a_wrong_bias_scale_of_conv_below_the_tolerance(backend: str) -> None:
    b = Coded(np.array([20000, -10000, 5000, 9000], np.int32), np.array(6e-7, np.float32))
    one = One("Conv", coded("Conv", 1e-4), b, x_scale=1e-3)
    within_the_bound(one, backend)
    ort_is_wrong(one, 10)


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_a_weight_on_the_wrong_axis_is_reported(op: str) -> None:
    shape = (4, 4, 3, 3) if op == "Conv" else (4, 4)
    axis = 1 - AXIS.get(op, 1)
    codes = np.random.default_rng(5).integers(-127, 127, shape, np.int8, endpoint=True)
    w = Coded(codes, np.array([0.1, 0.001, 0.03, 0.003], np.float32), np.zeros(4, np.int8), axis)
    one = One(op, w, normal(4))
    result = rewriter.run(model(one), rules.WeightBias(backend="onnxruntime"))
    said = [decline.reason for decline in result.report.declined]
    said += [str(rewrite.notes) for rewrite in result.report.rewrites]
    assert any("axis" in each for each in said), said
    found = steps(sessions.run(model(one), feeds(one)), sessions.run(result.model, feeds(one)))
    assert found.max() <= 1
    fused = replace(one, b=Coded(np.zeros(4, np.int32), np.float32(0.02) * w.scale.astype(np.float32)))
    ort_is_wrong(fused, 10)


# | MatMul: never touched |


@pytest.mark.parametrize("backend", ["generic", "onnxruntime"])
def test_matmul(backend: str) -> None:
    one = One("MatMul", weight("MatMul"))
    after = within_the_bound(one, backend)
    assert sessions.integer_kernels(sessions.optimized(after, disabled=OURS_ALONE)) == 1
    if sessions.integer_kernels(sessions.optimized(model(one))):
        mended("it is an integer kernel")
