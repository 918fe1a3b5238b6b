"""The engine's view of ONNX's schemas: what it says of single ops, and that it holds for every op."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto

from rewriter.schemas import (
    COMMUTATIVE,
    REDEFINED,
    agreeing_versions,
    as_array,
    attribute_value,
    make_attribute,
    op_info,
    op_key,
    split_key,
    why_unknown,
)

EVERY = [(op_key(s.domain, s.name), s) for s in onnx.defs.get_all_schemas_with_history()]


@pytest.mark.parametrize(
    ("domain", "key"),
    [("", "Conv"), ("ai.onnx", "Conv"), ("com.microsoft", "com.microsoft::Conv"), ("a::b", "a::b::Conv")],
)
def test_keys_name_the_domain_outside_of_ai_onnx(domain: str, key: str) -> None:
    assert op_key(domain, "Conv") == key
    assert split_key(key) == ("" if domain == "ai.onnx" else domain, "Conv")


def test_ai_onnx_can_be_written_out() -> None:
    assert split_key("ai.onnx::Conv") == ("", "Conv")
    assert op_info("ai.onnx::Conv", 21) is not None
    assert agreeing_versions("ai.onnx::Softmax", 21) == (13, None)


def test_conv() -> None:
    info = op_info("Conv", 21)
    assert info is not None
    assert (info.key, info.since_version) == ("Conv", 11)
    assert (info.min_inputs, info.max_inputs, info.variadic) == (2, 3, False)
    assert info.input_names == ("X", "W", "B")
    assert info.required == (True, True, False)
    assert info.input_types == ("T", "T", "T")
    assert "tensor(float)" in info.type_constraints["T"]
    assert (info.output_names, info.output_types) == (("Y",), ("T",))
    assert info.attribute_types["group"] == AttributeProto.INT
    assert info.defaults == {"auto_pad": "NOTSET", "group": 1}
    assert not info.required_attributes


def test_variadic_and_required() -> None:
    info = op_info("Concat", 21)
    assert info is not None
    assert info.variadic
    assert info.required == (True,)
    assert info.max_inputs > 1000
    assert info.required_attributes == {"axis"}
    loop = op_info("Loop", 21)
    assert loop is not None
    assert loop.required == (False, False, False)


def test_every_schema_of_every_version_is_readable() -> None:
    for key, schema in EVERY:
        info = op_info(key, schema.since_version)
        assert (info is None) == schema.deprecated
        if info is not None:
            assert info.since_version == schema.since_version
            low, high = agreeing_versions(key, schema.since_version)
            assert low <= schema.since_version
            assert high is None or high >= schema.since_version


def test_commutative_ops_exist() -> None:
    assert all(op_info(op, 21) for op in COMMUTATIVE)
    assert all(op_info(op, v) for op, versions in REDEFINED.items() for v in versions)


def test_what_is_not_known() -> None:
    assert op_info("com.microsoft::Gelu", 1) is None
    assert why_unknown("com.microsoft::Gelu", 1) is None
    assert why_unknown("Relu", 21) is None
    assert "did you mean Relu?" in (why_unknown("Reluu", 21) or "")
    assert "check its spelling" in (why_unknown("Xyzzy", 21) or "")
    assert "came with opset 20" in (why_unknown("Gelu", 18) or "")
    assert "deprecated since opset 10" in (why_unknown("Upsample", 21) or "")
    assert "did you mean Scaler?" in (why_unknown("ai.onnx.ml::Scalr", 3) or "")
    assert op_info("Upsample", 21) is None


@pytest.mark.parametrize(
    ("op", "version", "named", "expected"),
    [
        ("Relu", 21, "", (6, None)),  # wider types only
        ("Softmax", 12, "", (1, 12)),  # another default axis
        ("Softmax", 21, "", (13, None)),
        ("ReduceMean", 17, "axes", (1, 17)),  # axes became an input
        ("ReduceMean", 18, "", (18, None)),
        ("BatchNormalization", 15, "", (14, None)),  # three outputs and new input names since 14
        ("BatchNormalization", 13, "", (9, 13)),
        ("DequantizeLinear", 21, "", (10, 22)),  # down over axis, which is not named
        ("DequantizeLinear", 21, "axis", (13, 22)),  # not up: output_dtype could be set in 23
        ("DequantizeLinear", 21, "axis block_size", (21, 22)),
        ("Upsample", 9, "", (9, 9)),  # deprecated in 10
        ("Gemm", 21, "", (11, None)),  # C is optional since 11
        ("RoiAlign", 22, "", (16, None)),  # redefined without a trace in the schema
        ("com.microsoft::Gelu", 1, "", (1, None)),
    ],
)
def test_agreeing_versions(op: str, version: int, named: str, expected: tuple[int, int | None]) -> None:
    assert agreeing_versions(op, version, frozenset(named.split())) == expected


def test_versions_of_an_op_that_does_not_exist_there() -> None:
    with pytest.raises(ValueError, match="came with opset 20"):
        agreeing_versions("Gelu", 18)


def test_attributes_follow_the_schema() -> None:
    assert make_attribute("Elu", 21, "alpha", 1) == onnx.helper.make_attribute("alpha", 1.0)
    assert make_attribute("Conv", 21, "pads", (0, 1)) == onnx.helper.make_attribute("pads", [0, 1])
    assert make_attribute("Conv", 21, "auto_pad", "VALID").s == b"VALID"
    assert make_attribute("Softmax", 21, "axis", np.int64(-1)).i == -1
    assert make_attribute("ReduceMean", 21, "keepdims", False).i == 0
    assert make_attribute("Cast", 21, "to", ir.DataType.FLOAT16).i == onnx.TensorProto.FLOAT16
    assert make_attribute("Upsample", 7, "scales", [1, 2]).floats == [1.0, 2.0]
    empty = make_attribute("Constant", 21, "value_ints", [])
    assert (empty.type, list(empty.ints)) == (AttributeProto.INTS, [])
    tensor = make_attribute("ConstantOfShape", 21, "value", [2.5])
    assert onnx.numpy_helper.to_array(tensor.t).tolist() == [2.5]
    assert tensor.t.data_type == onnx.TensorProto.FLOAT


def test_attributes_without_a_schema_are_what_they_look_like() -> None:
    values = [
        (1, "INT"),
        (1.0, "FLOAT"),
        ("a", "STRING"),
        ([1], "INTS"),
        ([1, 2.0], "FLOATS"),
        (["a"], "STRINGS"),
    ]
    for value, kind in values:
        assert make_attribute("a::B", 1, "x", value).type == AttributeProto.AttributeType.Value(kind)
    assert make_attribute("a::B", 1, "x", np.zeros(2)).type == AttributeProto.TENSOR


@pytest.mark.parametrize(
    ("op", "name", "value", "sentence"),
    [
        ("Softmax", "axes", 1, "Softmax has no attribute axes .* did you mean axis"),
        ("Relu", "axis", 1, "it has none"),
        ("Softmax", "axis", 1.0, "attribute axis of Softmax: expected INT, got 1.0"),
        ("Elu", "alpha", True, "expected FLOAT, got True"),
        ("Conv", "pads", 1, "expected INTS, got 1"),
        ("Conv", "pads", [0.5], "expected INT, got 0.5"),
        ("Conv", "auto_pad", 3, "expected STRING"),
        ("If", "then_branch", 3, "GRAPH cannot be written"),
        ("a::B", "x", [], "an empty list has no type"),
        ("a::B", "x", [1, "a"], "several types"),
        ("a::B", "x", {}, "is no tensor"),
    ],
)
def test_wrong_attributes(op: str, name: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_attribute(op, 21, name, value)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1.5, "float32", ()),
        (2, "int64", ()),
        (True, "bool", ()),
        ([1, 2], "int64", (2,)),
        ([1, 2.5], "float32", (2,)),
        ([[1], [2]], "int64", (2, 1)),
        (np.sqrt(2.0), "float32", ()),
        (np.float16(2), "float16", ()),
        (np.zeros(3, np.uint8), "uint8", (3,)),
        (onnx.numpy_helper.from_array(np.zeros(3, np.int8)), "int8", (3,)),
        (ir.tensor(np.zeros(2, np.int32)), "int32", (2,)),
        ("a", "object", ()),
    ],
)
def test_constants_as_arrays(value: object, dtype: str, shape: tuple[int, ...]) -> None:
    array = as_array(value)
    assert (array.dtype, array.shape) == (np.dtype(dtype), shape)


@pytest.mark.parametrize("value", [[], [1, "a"], [[1], [2, 3]], 2**70, 1j, print])
def test_no_constants(value: object) -> None:
    with pytest.raises(ValueError, match=r"no tensor|empty list"):
        as_array(value)


def test_bytes_are_text() -> None:
    assert attribute_value(b"a", AttributeProto.STRING) == "a"
