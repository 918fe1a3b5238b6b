"""The last row of "Where it goes wrong" in the reference on ONNX Runtime: files that a session cannot load at all.

With int8 activations at opset 21 or later, and MaxPool, Reshape, Transpose or Slice between a DequantizeLinear and the
operator, or a MatMul and Add of rank 3, loading fails at ORT_ENABLE_EXTENDED: for the float-weight file and the
completed one alike. Right is to say so, and that uint8 activations load. Both halves are tested; where a newer release
has mended it, the test skips after ours has passed.
"""

from dataclasses import replace

import numpy as np
import onnx
import pytest

import rewriter
import rules
from tests import sessions
from tests.rules.one_unit import One, model
from tests.rules.test_where_onnxruntime_goes_wrong import loads, mended, normal, weight


def warns(made: onnx.ModelProto) -> bool:
    """Whether it is said that a session cannot load the file, and that uint8 activations would."""
    result = rewriter.run(made, rules.WeightBias(backend="onnxruntime"))
    assert not result.changed
    return any("cannot load" in one.reason and "uint8" in one.reason for one in result.report.declined)


@pytest.mark.parametrize("before", ["MaxPool", "Reshape", "Transpose", "Slice"])
def test_int8_activations_behind_what_moves_them(before: str) -> None:
    one = One("Conv", weight("Conv"), normal(4), x_type="int8", y_type="int8", opset=21, ir=10, before=before)
    loads_as_uint8(one, 4)
    for loadable in (replace(one, opset=20), replace(one, x_type="uint8", y_type="uint8")):
        assert not warns(with_float_ends(model(loadable), 4))
        assert loads(with_float_ends(model(loadable), 4))


def test_int8_activations_of_a_matmul_and_add_of_rank_3() -> None:
    one = One("MatMulAdd", weight("MatMulAdd"), normal(4), x_type="int8", y_type="int8", opset=21, ir=10, rank=3)
    loads_as_uint8(one, 3)
    completes(replace(one, opset=20))


def loads_as_uint8(one: One, rank: int) -> None:
    """Our half: a warning, and the set for x86 makes of it what loads. Their half: it does not."""
    made = with_float_ends(model(one), rank)
    assert warns(made)
    mended_file = rewriter.apply(made, rules.for_backend("onnxruntime-x86"))
    onnx.checker.check_model(mended_file, full_check=True)
    given = {"x": normal(*one.x().shape, size=1.0)}
    assert loads(mended_file)
    assert np.allclose(sessions.run(made, given)[0], sessions.run(mended_file, given)[0], atol=0.05)
    if loads(made):
        mended("the session loads")


def completes(one: One) -> None:
    """A file that loads is completed."""
    made = with_float_ends(model(one), one.x().ndim)
    result = rewriter.run(made, rules.WeightBias(backend="onnxruntime"))
    assert result.changed, result.report.declined
    assert loads(result.model)


def with_float_ends(made: onnx.ModelProto, rank: int) -> onnx.ModelProto:
    """The model between a Q of a float input and a DQ to a float output."""
    graph = made.graph
    first = next(node for node in graph.node if node.input[0] == "x")
    first.input[0] = "x_codes"
    q = onnx.helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_codes"], name="first_q")
    dq = onnx.helper.make_node("DequantizeLinear", ["y", "y_scale", "y_zero"], ["y_end"], name="last_dq")
    nodes = [q, *graph.node, dq]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y_end", onnx.TensorProto.FLOAT, [None] * rank))
    return made
