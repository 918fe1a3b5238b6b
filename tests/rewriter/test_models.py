"""The kinds of model: the same kind comes back, the input is untouched, and nothing but the edits changes.

What is kept is asked bit for bit: the expected file is the input with the edit made by hand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import rewriter
from rewriter.models import files
from tests.rewriter.small_rules import everything, mul_to_div, relus
from tests.sessions import run

CHAIN = """<ir_version: 10, opset_import: ["" : 20, "custom" : 1]>
chain (float[2,3] x, float[3] given) => (float[2,3] y, float[2,3] z)
<float[2,3] a, float[3] given = {1, 2, 3}, float[1] two = {2}, float stale> {
    [first] a = Relu(x)
    [second] b = Relu(a)
    [third] y = Mul(b, two)
    [fourth] z = Add(y, given)
}"""

NESTED = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
nested (float[2] x, bool c, int64 n, float[4,2] xs) => (float[2] y, float[2] p, float[4,2] q, float[2] r)
<float[1] two = {2}> {
    h = Abs(x)
    y = If (c) <
        then_branch = then () => (float[2] t) { t0 = Relu(h) t1 = Relu(t0) t = Mul(t1, two) },
        else_branch = other () => (float[2] e) {
            e0 = Neg(h) e1 = Neg(e0)
            e = If (c) <
                then_branch = deep () => (float[2] d) <float[1] four = {4}>
                { d0 = Mul(e1, four) d = Relu(d0) },
                else_branch = bare () => (float[2] i) { i = Identity(e1) }
            >
        }
    >
    p = Loop (n, c, x) <
        body = step (int64 k, bool go, float[2] s) => (bool on, float[2] v)
        { on = Identity(go) v0 = Relu(s) v1 = Relu(v0) v = Add(v1, two) }
    >
    s, q = Scan <num_scan_inputs = 1,
        body = row (float[2] s_in, float[2] e_in) => (float[2] s_out, float[2] w)
        { s_out = Add(s_in, e_in) w0 = Relu(s_out) w1 = Relu(w0) w = Mul(w1, two) }
    > (x, xs)
    r = local.twice(x)
}
<domain: "local", opset_import: ["" : 20]>
twice (a) => (b) {
    two = Constant <value = float[1] {2}> ()
    f0 = Relu(a)
    f1 = Relu(f0)
    b = Mul(f1, two)
}"""

OLD = """<ir_version: 3, opset_import: ["" : 9]>
old (float[2] x, float[1] two) => (float[2] y) <float[1] two = {2}> {
    y = Mul(x, two)
}"""

UNSORTED = """<ir_version: 10, opset_import: ["" : 20]>
unsorted (float[2] x) => (float[2] y) {
    y = Relu(b)
    b = Relu(a)
    a = Neg(x)
}"""

TEXTS = {"chain": CHAIN, "nested": NESTED, "old": OLD, "unsorted": UNSORTED}


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def unknown_field(message: Any, number: int) -> None:
    """Give a message a field that this version of ONNX does not know: a varint 1."""
    key, data = number << 3, bytearray()
    while key > 127:
        data.append(key & 127 | 128)
        key >>= 7
    message.MergeFromString(bytes([*data, key, 1]))


def decorated() -> onnx.ModelProto:
    """CHAIN with everything in it that a rewriter is tempted to lose."""
    model = parse(CHAIN)
    graph = model.graph
    model.doc_string, model.producer_name, model.model_version = "a model", "somebody", 7
    for key in ("k", "k", "l"):
        model.metadata_props.add(key=key, value=key * 2)
        graph.metadata_props.add(key=key, value=key)
        graph.node[3].metadata_props.add(key=key, value=key)
    graph.node[1].doc_string = "kept"
    graph.node[1].metadata_props.add(key="namespace", value="block")
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "sparse_indices"))
    sparse.dims.append(4)
    graph.value_info.append(helper.make_tensor_value_info("nobody", TensorProto.FLOAT, ["n", None]))
    note = graph.quantization_annotation.add(tensor_name="b")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="stale")
    training = model.training_info.add()
    training.algorithm.name = "train"
    training.algorithm.node.append(helper.make_node("Relu", ["x"], ["train_a"]))
    training.algorithm.node.append(helper.make_node("Relu", ["train_a"], ["train_b"]))
    model.opset_import.add(domain="custom", version=1)
    function = model.functions.add(name="unused", domain="custom")
    function.opset_import.add(domain="", version=20)
    function.input.append("fx")
    function.output.append("fy")
    function.node.append(helper.make_node("Abs", ["fx"], ["fy"], doc_string="fn"))
    function.value_info.append(helper.make_tensor_value_info("fy", TensorProto.FLOAT, [2]))
    for message in (model, graph, graph.node[1], graph.node[3], graph.initializer[0], function):
        unknown_field(message, 1000)
    return model


def count(model: onnx.ModelProto, op_type: str) -> int:
    """How often an op type occurs, in bodies and functions too."""
    return files_graph_ops(model).count(op_type)


def files_graph_ops(model: onnx.ModelProto) -> list[str]:
    from rewriter.models.proto import graphs_of

    holders: list[Any] = [*graphs_of(model), *model.functions]
    return [node.op_type for holder in holders for node in holder.node]


def as_file(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


# -- the three kinds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_proto_comes_back_and_the_input_is_untouched(name: str) -> None:
    model = parse(TEXTS[name])
    before = model.SerializeToString()
    result = rewriter.run(model, everything)
    assert isinstance(result.model, onnx.ModelProto)
    assert result.changed
    assert result.model is not model
    assert model.SerializeToString() == before
    onnx.checker.check_model(result.model, full_check=True)
    assert rewriter.apply(result.model, everything) is result.model


@pytest.mark.parametrize("name", TEXTS)
def test_ir_comes_back_and_the_input_is_untouched(name: str) -> None:
    model = ir.from_proto(parse(TEXTS[name]))
    before, uses = ir.to_proto(model).SerializeToString(), all_uses(model)
    result = rewriter.run(model, everything)
    assert isinstance(result.model, ir.Model)
    assert result.changed
    assert result.model is not model
    assert ir.to_proto(model).SerializeToString() == before
    assert all_uses(model) == uses
    assert rewriter.apply(result.model, everything) is result.model
    check_uses(result.model)


@pytest.mark.parametrize("name", TEXTS)
def test_the_three_kinds_give_the_same(name: str, tmp_path: Path) -> None:
    model = parse(TEXTS[name])
    from_proto = rewriter.apply(model, everything)
    from_ir = rewriter.apply(ir.from_proto(model), everything)
    written = rewriter.apply(str(as_file(model, tmp_path)), everything)
    assert Path(written).read_bytes() == from_proto.SerializeToString()
    assert ir.to_proto(from_ir) == ir.to_proto(ir.from_proto(from_proto))


@pytest.mark.parametrize("name", TEXTS)
def test_reports_are_the_same(name: str) -> None:
    model = parse(TEXTS[name])
    assert rewriter.run(model, everything).report == rewriter.run(ir.from_proto(model), everything).report


def test_results_compute_the_same() -> None:
    x = np.array([-1.5, 2], np.float32)
    feeds = {
        "x": x,
        "c": np.array(True),
        "n": np.array(3),
        "xs": np.arange(8, dtype=np.float32).reshape(4, 2),
    }
    model = parse(NESTED)
    result = rewriter.apply(model, everything)
    for condition in (True, False):
        feeds["c"] = np.array(condition)
        for want, have in zip(run(model, feeds), run(result, feeds), strict=True):
            np.testing.assert_array_equal(want, have)


def test_bodies_and_functions_are_rewritten() -> None:
    result = rewriter.apply(parse(NESTED), everything)
    assert count(result, "Relu") == 5  # then, deep, Loop, Scan, twice: one each
    assert count(result, "Neg") == 0  # two became an Identity
    assert count(result, "Mul") == 0
    assert [node.op_type for node in result.functions[0].node].count("Constant") == 1


def test_constants_of_outer_scopes_count() -> None:
    result = rewriter.apply(parse(NESTED), mul_to_div)
    branch = result.graph.node[1].attribute[0].g
    assert [node.op_type for node in branch.node] == ["Relu", "Relu", "Div"]
    assert [t.name for t in result.graph.initializer] == ["two"]  # the Loop still reads it


def test_unsorted_nodes_come_back_sorted() -> None:
    for result in (
        rewriter.apply(parse(UNSORTED), relus),
        ir.to_proto(rewriter.apply(ir.from_proto(parse(UNSORTED)), relus)),
    ):
        assert [node.op_type for node in result.graph.node] == ["Neg", "Relu"]
        onnx.checker.check_model(result, full_check=True)


def test_below_ir_version_4_initializers_are_inputs_too() -> None:
    proto = rewriter.apply(parse(OLD), everything)
    model = rewriter.apply(ir.from_proto(parse(OLD)), everything)
    for result in (proto, ir.to_proto(model)):
        assert [node.op_type for node in result.graph.node] == ["Div"]
        names = [tensor.name for tensor in result.graph.initializer]
        assert len(names) == 1
        assert [info.name for info in result.graph.input] == ["x", *names]
        onnx.checker.check_model(result, full_check=True)
        np.testing.assert_array_equal(run(result, {"x": np.ones(2, np.float32)})[0], [2, 2])


def test_from_ir_version_4_an_initializer_that_is_an_input_is_no_constant() -> None:
    for model in (parse(OLD), ir.from_proto(parse(OLD))):
        model.ir_version = 4
        assert rewriter.apply(model, everything) is model


# -- nothing else changes --------------------------------------------------------------------------------


def test_everything_else_is_kept_bit_for_bit(tmp_path: Path) -> None:
    model = decorated()
    wanted = onnx.ModelProto()
    wanted.CopyFrom(model)
    del wanted.graph.node[0]
    wanted.graph.node[0].input[0] = "x"
    gone = [info.name for info in wanted.graph.value_info].index("a")
    del wanted.graph.value_info[gone]
    assert rewriter.apply(model, relus).SerializeToString() == wanted.SerializeToString()
    written = rewriter.apply(as_file(model, tmp_path), relus)
    assert Path(written).read_bytes() == wanted.SerializeToString()


def test_a_kept_ir_model_keeps_its_objects_sayings() -> None:
    model = ir.from_proto(parse(CHAIN))
    third = model.graph.node("third")
    model.meta["mine"] = third.meta["mine"] = 1
    model.metadata_props["k"] = third.metadata_props["k"] = "v"
    third.outputs[0].meta["mine"] = 2
    third.outputs[0].doc_string = "result"
    result = rewriter.apply(model, everything)
    twin = result.graph.outputs[0]
    assert (result.meta["mine"], result.metadata_props["k"]) == (1, "v")
    assert (twin.name, twin.meta["mine"], twin.doc_string) == ("y", 2, "result")
    assert twin.shape == third.outputs[0].shape
    producer = twin.producer()
    assert producer is not None
    assert producer.op_type == "Div"
    assert (third.op_type, third.outputs[0].is_graph_output()) == ("Mul", True)


def test_initializers_of_an_ir_model_are_shared_and_not_renamed() -> None:
    model = ir.from_proto(parse(CHAIN))
    tensor = model.graph.initializers["given"].const_value
    result = rewriter.apply(model, everything)
    assert result.graph.initializers["given"].const_value is tensor
    assert tensor is not None
    assert tensor.name == "given"


@pytest.mark.parametrize("wrap", [lambda m: m, ir.from_proto], ids=["proto", "ir"])
def test_without_a_change_the_very_object_comes_back(wrap: Callable[[Any], Any]) -> None:
    model = wrap(rewriter.apply(parse(CHAIN), everything))
    result = rewriter.run(model, everything)
    assert result.model is model
    assert not result.changed


def test_output_is_for_paths_only() -> None:
    for model in (parse(CHAIN), ir.from_proto(parse(CHAIN))):
        with pytest.raises(TypeError, match="path"):
            rewriter.apply(model, everything, "out.onnx")
    with pytest.raises(TypeError, match="dict"):
        rewriter.apply({}, everything)


def all_uses(model: ir.Model) -> list[Any]:
    graphs = [model.graph, *model.graph.subgraphs()]
    return [[tuple(v.uses()) for v in node.outputs] for graph in graphs for node in graph]


def check_uses(model: ir.Model) -> None:
    """Everything that a clone's nodes and values refer to lies in the clone."""
    roots = [model.graph, *(f.graph for f in model.functions.values())]
    graphs = [graph for root in roots for graph in (root, *root.subgraphs())]
    nodes = {id(node) for graph in graphs for node in graph}
    owned = {id(v) for graph in graphs for v in (*graph.inputs, *graph.initializers.values())}
    owned |= {id(v) for graph in graphs for node in graph for v in node.outputs}
    for graph in graphs:
        assert all(id(value) in owned for value in graph.outputs)
        for node in graph:
            assert node.graph is graph
            assert all(value is None or id(value) in owned for value in node.inputs)
            for value in node.outputs:
                assert all(id(use.node) in nodes for use in value.uses())


# -- files -----------------------------------------------------------------------------------------------


def test_paths_come_back_as_they_were_given(tmp_path: Path) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    assert rewriter.apply(path, everything) == tmp_path / "model.rewritten.onnx"
    assert rewriter.apply(str(path), everything) == str(tmp_path / "model.rewritten.onnx")
    assert rewriter.apply(path, everything, tmp_path / "out.onnx") == tmp_path / "out.onnx"
    assert path.read_bytes() == parse(CHAIN).SerializeToString()


def test_an_unchanged_file_is_copied_byte_for_byte(tmp_path: Path) -> None:
    model = decorated()
    data = model.SerializeToString() + bytes([200, 63, 1])  # an unknown field after all others
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    result = rewriter.run(path, NOTHING)
    assert not result.changed
    assert result.model.read_bytes() == data


NOTHING = everything.only("negs")


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    before = path.read_bytes()
    for rules in (everything, NOTHING):
        for target in (path, tmp_path / "." / "model.onnx", link):
            with pytest.raises(rewriter.ModelError, match="overwrite the input"):
                rewriter.apply(path, rules, target)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.onnx", "model.onnx"]


def test_an_older_output_is_replaced(tmp_path: Path) -> None:
    path, target = as_file(parse(CHAIN), tmp_path), tmp_path / "out.onnx"
    target.write_text("old")
    rewriter.apply(path, everything, target)
    onnx.checker.check_model(str(target), full_check=True)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = as_file(parse(CHAIN), tmp_path), tmp_path / "out.onnx"
    target.write_text("old")

    def fails(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fails)
    for rules in (everything, NOTHING):
        with pytest.raises((rewriter.ModelError, KeyboardInterrupt), match=r"cannot be written|^$"):
            rewriter.apply(path, rules, target)
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    with pytest.raises(rewriter.ModelError, match="there is no folder"):
        rewriter.apply(path, everything, tmp_path / "no" / "out.onnx")
    with pytest.raises(rewriter.ModelError, match="no regular file"):
        rewriter.apply(path, everything, tmp_path)


# -- external data ---------------------------------------------------------------------------------------


def external(folder: Path, floats: int = 3) -> Path:
    """CHAIN with both initializers in `weights/model.data`."""
    model = parse(CHAIN)
    (folder / "weights").mkdir(parents=True)
    data = b""
    for tensor in model.graph.initializer:
        payload = numpy_helper.to_array(tensor).tobytes()
        tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "weights/model.data"),
            ("offset", len(data)),
            ("length", len(payload)),
        ):
            tensor.external_data.add(key=key, value=str(value))
        data += payload
    (folder / "weights" / "model.data").write_bytes(data)
    return as_file(model, folder)


def test_in_the_same_folder_the_data_file_is_shared(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = digest(tmp_path)
    written = rewriter.apply(path, everything)
    model = onnx.load(written, load_external_data=False)
    kept, new = model.graph.initializer
    assert [e.value for e in kept.external_data] == ["weights/model.data", "0", "12"]
    assert (kept.name, new.data_location) == ("given", TensorProto.DEFAULT)
    assert digest(tmp_path).items() >= before.items()
    assert_runs(written)


def test_in_another_folder_the_data_that_is_still_used_goes_along(tmp_path: Path) -> None:
    path = external(tmp_path / "in")
    (tmp_path / "out").mkdir()
    written = rewriter.apply(path, everything, tmp_path / "out" / "new.onnx")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["new.onnx", "new.onnx.data"]
    assert (tmp_path / "out" / "new.onnx.data").read_bytes() == np.array([1, 2, 3], np.float32).tobytes()
    for folder in (tmp_path / "in" / "weights", tmp_path / "in"):
        for file in folder.iterdir():
            if file.is_file():
                file.unlink()
    assert_runs(written)


def test_an_unchanged_model_takes_its_data_files_along(tmp_path: Path) -> None:
    path = external(tmp_path / "in")
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "new.onnx"
    rewriter.apply(path, NOTHING, target)
    assert target.read_bytes() == path.read_bytes()
    copied = tmp_path / "out" / "weights" / "model.data"
    assert copied.read_bytes() == (tmp_path / "in" / "weights" / "model.data").read_bytes()
    rewriter.apply(path, NOTHING, target)  # the same data is there already
    copied.write_bytes(b"other")
    with pytest.raises(rewriter.ModelError, match=r"exists and is not this model's data"):
        rewriter.apply(path, NOTHING, target)
    assert copied.read_bytes() == b"other"


def test_the_data_file_is_never_overwritten(tmp_path: Path) -> None:
    path = external(tmp_path)
    with pytest.raises(rewriter.ModelError, match="overwrite the input"):
        rewriter.apply(path, everything, tmp_path / "weights" / "model.data")


def test_what_would_pass_two_gigabytes_goes_to_a_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    monkeypatch.setattr(files, "LIMIT", path.stat().st_size)
    written = rewriter.apply(path, everything)
    model = onnx.load(written, load_external_data=False)
    assert {t.name: t.data_location for t in model.graph.initializer}["given"] == TensorProto.DEFAULT
    assert model.graph.initializer[1].external_data[0].value == "model.rewritten.onnx.data"
    assert_runs(written)


def digest(folder: Path) -> dict[str, str]:
    found = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def assert_runs(path: Path) -> None:
    onnx.checker.check_model(str(path), full_check=True)
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    y, z = run(path, {"x": x})
    np.testing.assert_array_equal(y, 2 * np.maximum(x, 0))
    np.testing.assert_array_equal(z, y + np.array([1, 2, 3], np.float32))
