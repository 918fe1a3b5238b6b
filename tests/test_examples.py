"""The example model is what the README and the docs say of it.

Everything that the project shows, it shows on this model: that it is valid, that it is good at its task, and
that it is in the very state which the rewriter is for, with quantized activations and float weights. Were one
of these to slip when somebody trains the model anew, the examples would still run, and prove nothing.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from examples.train_digits import accuracy

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(EXAMPLES / "digits_qdq.onnx")


def test_the_model_is_valid_and_small(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    assert model.ByteSize() < 100_000


def test_the_model_knows_the_held_out_digits(model: onnx.ModelProto) -> None:
    with np.load(EXAMPLES / "digits.npz") as held_out:
        images, labels = held_out["images"], held_out["labels"]
    assert images.dtype == labels.dtype == np.uint8
    assert images.shape == (len(labels), 1, 8, 8)
    assert accuracy(model, images, labels) >= 0.95


def test_only_zero_points_are_integers(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name.endswith(".zero_point"):
            assert tensor.data_type == TensorProto.UINT8
        else:
            assert tensor.data_type == TensorProto.FLOAT


def test_every_core_is_a_unit_with_float_weights(model: onnx.ModelProto) -> None:
    """DequantizeLinear, Conv or Gemm with initializers, maybe Relu, QuantizeLinear; one consumer each."""
    graph = model.graph
    producers = {output: node for node in graph.node for output in node.output}
    initializers = {tensor.name for tensor in graph.initializer}

    def consumer(node: onnx.NodeProto) -> onnx.NodeProto:
        user: onnx.NodeProto
        (user,) = [other for other in graph.node if node.output[0] in other.input]
        return user

    cores = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert [node.op_type for node in cores] == ["Conv"] * 5 + ["Gemm"]
    for core in cores:
        activation, *parameters = core.input
        assert producers[activation].op_type == "DequantizeLinear"
        assert len(parameters) == 2
        assert initializers.issuperset(parameters)
        after = consumer(core)
        if after.op_type == "Relu":
            after = consumer(after)
        assert after.op_type == "QuantizeLinear"
