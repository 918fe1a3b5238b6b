"""Bad input, as a file, as an object and on the command line.

Each gives one clear line of our own that names what is wrong, never a traceback, and leaves neither an output
nor half of one; the input's bytes stay as they are. Input that can be read but not completed is declined with
its reason, and its output is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from typer.testing import CliRunner, Result

import rewriter
import rules
from rewriter.cli import FAILED, NOTHING, app

UNIT = """<ir_version: 8, opset_import: ["" : 13]>
unit (uint8[1,2,4,4] x_q) => (uint8[1,3,4,4] y_q)
<float x_scale = {0.02}, uint8 x_zp = {128}, float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3},
 float y_scale = {0.5}, uint8 y_zp = {120}> {
    [dq] x = DequantizeLinear(x_q, x_scale, x_zp)
    [conv] y = Conv(x, w, b)
    [q] y_q = QuantizeLinear(y, y_scale, y_zp)
}"""

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde"


def unit() -> onnx.ModelProto:
    return parser.parse_model(UNIT)


def tensor(model: onnx.ModelProto, name: str) -> TensorProto:
    found: TensorProto = next(t for t in model.graph.initializer if t.name == name)
    return found


def set_tensor(model: onnx.ModelProto, name: str, value: Any) -> None:
    old = numpy_helper.to_array(tensor(model, name))
    new = np.broadcast_to(np.asarray(value, old.dtype), old.shape)
    tensor(model, name).CopyFrom(numpy_helper.from_array(new.copy(), name))


def apply_by_command(source: Path, target: Path) -> Result:
    return CliRunner().invoke(app, ["apply", str(source), str(target), "--rules", "weight_bias"])


def check_refused(source: Path, *words: str) -> str:
    """As a file and by the command: one line, that names the file and these; nothing else happens."""
    folder = source.parent
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    target = folder / "out.onnx"
    with pytest.raises(rewriter.ModelError) as caught:
        rewriter.apply(source, rules.weight_bias, target)
    line = str(caught.value)
    assert "\n" not in line
    for word in (source.name, *words):
        assert word in line
    result = apply_by_command(source, target)
    assert result.exit_code == FAILED
    assert result.stderr == f"error: {line}\n"
    assert result.stdout == ""
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    return line


# -- not a model -----------------------------------------------------------------------------------------


def test_the_unit_itself_is_completed() -> None:
    assert rewriter.run(unit(), rules.weight_bias).report.counts == {"conv": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"this is no model\n",
        b'{"ir_version": 8}',
        PNG,
        bytes(1000),
        bytes(range(256)),
        b"\x08\x08",
    ],
    ids=["empty", "newline", "text", "json", "png", "zeros", "bytes", "version only"],
)
def test_not_onnx(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(data)
    check_refused(path, "" if data else "empty")


def test_other_messages_of_onnx(tmp_path: Path) -> None:
    model = unit()
    path = tmp_path / "in.onnx"
    for message in (model.graph, model.graph.node[0], model.graph.initializer[2], model.opset_import[0]):
        path.write_bytes(message.SerializeToString())
        check_refused(path)


def test_random_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    rng = np.random.default_rng(0)
    for size in range(1, 300):
        path.write_bytes(rng.bytes(size))
        with pytest.raises(rewriter.ModelError, match=r"in\.onnx: "):
            rewriter.read(path)


def test_truncated_anywhere(tmp_path: Path) -> None:
    data = unit().SerializeToString()
    path = tmp_path / "in.onnx"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(rewriter.ModelError, match=r"in\.onnx: "):
            rewriter.read(path)
    for size in (1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        check_refused(path)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    check_refused(tmp_path / "absent.onnx", "there is no such file")
    (tmp_path / "folder").mkdir()
    check_refused(tmp_path / "folder", "folder")


def test_an_empty_object() -> None:
    with pytest.raises(rewriter.ModelError, match="no graph"):
        rewriter.apply(onnx.ModelProto(), rules.weight_bias)
    model = unit()
    del model.opset_import[:]
    with pytest.raises(rewriter.ModelError, match="opset"):
        rewriter.apply(model, rules.weight_bias)


# -- external data ---------------------------------------------------------------------------------------


def external(folder: Path, **entries: str) -> Path:
    """UNIT with `w` in `w.bin`, or where the entries say."""
    model = unit()
    w = tensor(model, "w")
    payload = numpy_helper.to_array(w).tobytes()
    w.ClearField("raw_data")
    w.ClearField("float_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in ({"location": "w.bin", "offset": "0", "length": str(len(payload))} | entries).items():
        w.external_data.add(key=key, value=value)
    (folder / "w.bin").write_bytes(payload)
    path = folder / "in.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_that_is_right_is_read(tmp_path: Path) -> None:
    path = external(tmp_path)
    result = apply_by_command(path, tmp_path / "out.onnx")
    assert result.exit_code == 0
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)


def test_missing_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "w.bin").unlink()
    check_refused(path, "'w'", "w.bin", "there is no file")


def test_external_data_of_an_object_without_a_folder(tmp_path: Path) -> None:
    model = onnx.load(external(tmp_path), load_external_data=False)
    with pytest.raises(rewriter.ModelError, match=r"'w'.*path"):
        rewriter.apply(model, rules.weight_bias)


@pytest.mark.parametrize("where", ["../w.bin", "/etc/hostname", "sub/../../w.bin", "", "link.bin"])
def test_external_data_outside_of_the_folder(where: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(24))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    check_refused(external(folder, location=where), "'w'", "outside of the model's folder")


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ({"offset": "4"}, "lie outside of the file of 24 bytes"),
        ({"offset": "-4"}, "lie outside"),
        ({"length": "20"}, "length is 20"),
        ({"offset": "four"}, "numbers"),
    ],
)
def test_external_data_of_another_size(entries: dict[str, str], word: str, tmp_path: Path) -> None:
    check_refused(external(tmp_path, **entries), "'w'", word)


def test_external_data_that_is_too_short(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "w.bin").write_bytes(bytes(23))
    check_refused(path, "'w'", "23 bytes")


# -- graphs that are none --------------------------------------------------------------------------------


def cyclic(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "y"


def reads_itself(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "y"


def dangling(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[1] = "nowhere"


def dangling_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def dangling_body(model: onnx.ModelProto) -> None:
    body = helper.make_graph(
        [helper.make_node("Relu", ["nowhere"], ["out"], "inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body))


def output_twice(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "y"


def output_like_input(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "x_q"


def output_like_initializer(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "b"


def input_twice(model: onnx.ModelProto) -> None:
    model.graph.input.append(model.graph.input[0])


def initializer_twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(tensor(model, "w"))


BROKEN: dict[Callable[[onnx.ModelProto], None], tuple[str, ...]] = {
    cyclic: ("cycle", "'dq'", "'conv'"),
    reads_itself: ("cycle", "'conv'"),
    dangling: ("'conv'", "'nowhere'"),
    dangling_output: ("output", "'nowhere'"),
    dangling_body: ("'branch'", "'inner'", "'nowhere'"),
    output_twice: ("'q'", "'y'"),
    output_like_input: ("'conv'", "'x_q'"),
    output_like_initializer: ("'conv'", "'b'"),
    input_twice: ("input", "'x_q'"),
    initializer_twice: ("initializer", "'w'"),
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda f: f.__name__)
def test_a_broken_graph(broken: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    model = unit()
    broken(model)
    before = model.SerializeToString()
    path = tmp_path / "in.onnx"
    path.write_bytes(before)
    line = check_refused(path, *BROKEN[broken])
    with pytest.raises(rewriter.ModelError) as caught:
        rewriter.apply(model, rules.weight_bias)
    assert f"{path}: {caught.value}" == line
    assert model.SerializeToString() == before


def broken_ir(broken: Callable[[onnx.ModelProto], None]) -> ir.Model:
    """The same by hand: `ir.from_proto` mends most of it."""
    proto = unit()
    if broken is dangling_body:
        broken(proto)
    model = ir.from_proto(proto)
    if broken is dangling_body:
        return model
    graph = model.graph
    dq, conv, q = graph
    if broken is cyclic:
        dq.replace_input_with(1, conv.outputs[0])
    elif broken is reads_itself:
        conv.replace_input_with(0, conv.outputs[0])
    elif broken is dangling:
        conv.replace_input_with(1, ir.val("nowhere"))
    elif broken is dangling_output:
        graph.outputs[0] = ir.val("nowhere")
    elif broken is output_twice:
        q.outputs[0].name = "y"
        graph.outputs[0] = q.outputs[0]
    elif broken is output_like_input:
        conv.outputs[0].name = "x_q"
    elif broken is output_like_initializer:
        conv.outputs[0].name = "b"
    elif broken is input_twice:
        graph.inputs.append(ir.val("x_q"))
    return model


@pytest.mark.parametrize("broken", [b for b in BROKEN if b is not initializer_twice], ids=lambda f: f.__name__)
def test_a_broken_ir_model(broken: Callable[[onnx.ModelProto], None]) -> None:
    with pytest.raises(rewriter.ModelError) as caught:
        rewriter.apply(broken_ir(broken), rules.weight_bias)
    assert "\n" not in str(caught.value)
    for word in BROKEN[broken]:
        assert word in str(caught.value)


def test_an_ir_value_without_a_name() -> None:
    model = ir.from_proto(unit())
    model.graph.node("conv").outputs[0].name = None
    with pytest.raises(rewriter.ModelError, match=r"'conv'.*no name"):
        rewriter.apply(model, rules.weight_bias)


def test_an_ir_initializer_without_a_tensor() -> None:
    model = ir.from_proto(unit())
    model.graph.initializers["w"].const_value = None
    with pytest.raises(rewriter.ModelError, match=r"'w'.*no tensor"):
        rewriter.apply(model, rules.weight_bias)


# -- units that cannot be completed ----------------------------------------------------------------------


def run_time_scale(model: onnx.ModelProto) -> None:
    scale = tensor(model, "x_scale")
    model.graph.input.append(helper.make_tensor_value_info("x_scale", TensorProto.FLOAT, []))
    model.graph.initializer.remove(scale)


def overridable(name: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        held = tensor(model, name)
        model.graph.input.append(helper.make_tensor_value_info(name, held.data_type, held.dims))

    return change


def opset_9(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 9


def with_value(name: str, value: Any) -> Callable[[onnx.ModelProto], None]:
    return lambda model: set_tensor(model, name, value)


DECLINED: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "NaN weight": (with_value("w", np.nan), "w"),
    "Inf weight": (with_value("w", np.inf), "w"),
    "NaN bias": (with_value("b", np.nan), "b"),
    "-Inf bias": (with_value("b", -np.inf), "b"),
    "zero x_scale": (with_value("x_scale", 0), "x_scale"),
    "negative x_scale": (with_value("x_scale", -1), "x_scale"),
    "NaN x_scale": (with_value("x_scale", np.nan), "x_scale"),
    "Inf x_scale": (with_value("x_scale", np.inf), "x_scale"),
    "run-time x_scale": (run_time_scale, "x_scale"),
    "overridable x_scale": (overridable("x_scale"), "x_scale"),
    "overridable weight": (overridable("w"), "w"),
    "opset 9": (opset_9, "opset"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_cannot_be_completed_is_declined(name: str, tmp_path: Path) -> None:
    change, word = DECLINED[name]
    model = unit()
    change(model)
    data = model.SerializeToString()
    for given in (model, ir.from_proto(model)):
        result = rewriter.run(given, rules.weight_bias)
        assert result.model is given
        reasons = [*(d.reason for d in result.report.declined), *result.report.skipped.values()]
        assert len(set(reasons)) == 1
        assert word in reasons[0]
        assert "\n" not in reasons[0]
    assert model.SerializeToString() == data
    path, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(data)
    outcome = apply_by_command(path, target)
    assert outcome.exit_code == NOTHING
    assert outcome.stderr == ""
    assert reasons[0] in outcome.stdout
    assert (path.read_bytes(), target.read_bytes()) == (data, data)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]
