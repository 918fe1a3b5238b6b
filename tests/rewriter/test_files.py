"""Files: what is written and where, whole or not at all, and what becomes of external data."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import rewriter
from rewriter.models import files
from tests.rewriter.small_models import CHAIN, as_file, decorated, parse
from tests.rewriter.small_rules import everything
from tests.sessions import run

NOTHING = everything.only("negs")
"""Rules that find nothing in CHAIN."""


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


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    before = path.read_bytes()
    for chosen in (everything, NOTHING):
        for target in (path, tmp_path / "." / "model.onnx", link):
            with pytest.raises(rewriter.ModelError, match="overwrite the input"):
                rewriter.apply(path, chosen, target)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.onnx", "model.onnx"]


def test_an_older_output_is_replaced(tmp_path: Path) -> None:
    path, target = as_file(parse(CHAIN), tmp_path), tmp_path / "out.onnx"
    target.write_text("old")
    rewriter.apply(path, everything, target)
    onnx.checker.check_model(str(target), full_check=True)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_nothing(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = as_file(parse(CHAIN), tmp_path), tmp_path / "out.onnx"
    target.write_text("old")

    def fails(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fails)
    for chosen in (everything, NOTHING):
        with pytest.raises((rewriter.ModelError, KeyboardInterrupt), match=r"cannot be written|^$"):
            rewriter.apply(path, chosen, target)
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


def test_what_would_pass_two_gigabytes_goes_to_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("where", ["beside", "elsewhere", "in place", "in place, over a file of its data's name"])
def test_large_new_tensors_go_to_a_data_file(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are the same as those that stay in the file of a model without external data."""
    monkeypatch.setattr("rewriter.models.sink.APART", 1)
    path = external(tmp_path / "in")
    if where.endswith("name"):
        (tmp_path / "in" / "weights" / "model.data").rename(tmp_path / "in" / "model.onnx.data")
        moved = onnx.load_from_string(path.read_bytes())
        for tensor in moved.graph.initializer:
            tensor.external_data[0].value = "model.onnx.data"
        path.write_bytes(moved.SerializeToString())
    (tmp_path / "out").mkdir()
    target = {"beside": None, "elsewhere": tmp_path / "out" / "new.onnx"}.get(where)
    written = rewriter.apply(path, everything, target, in_place=where.startswith("in place"))
    model = onnx.load(written, load_external_data=False)
    new = model.graph.initializer[-1]
    assert new.data_location == TensorProto.EXTERNAL
    whole = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(written).graph.initializer}
    expected = rewriter.apply(parse(CHAIN), everything).graph.initializer
    assert [tensor.name for tensor in expected] == list(whole)
    for tensor in expected:
        np.testing.assert_array_equal(whole[tensor.name], numpy_helper.to_array(tensor))
    assert_runs(written)
    if where.startswith("in place"):
        assert written == path
        assert rewriter.apply(path, everything, in_place=True) == path  # nothing to do any more
