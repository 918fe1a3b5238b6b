"""`in_place`: the model itself is changed, to the very result that a copy would have, and only if all went well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import rewriter
from rewriter import Match, RuleError, RuleSet, rule
from tests.rewriter.small_models import CHAIN, INLINED, NESTED, OLD, UNSORTED, as_file, decorated, parse
from tests.rewriter.small_rules import a_tanh, any_relu, constant_if, everything

ALL = everything + constant_if
MODELS = [CHAIN, NESTED, OLD, UNSORTED, INLINED]


def bytes_of(model: onnx.ModelProto | ir.Model) -> bytes:
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    return bytes(proto.SerializeToString(deterministic=True))


def forms(text: str) -> list[Any]:
    return [parse(text), ir.from_proto(parse(text))]


@pytest.mark.parametrize("text", MODELS)
@pytest.mark.parametrize("form", [0, 1], ids=["proto", "ir"])
def test_the_result_is_that_of_a_copy(text: str, form: int) -> None:
    model, other = forms(text)[form], forms(text)[form]
    before = bytes_of(model)
    copied = rewriter.run(other, ALL)
    assert copied.changed
    assert bytes_of(other) == before
    result = rewriter.run(model, ALL, in_place=True)
    assert result.model is model
    assert bytes_of(model) == bytes_of(copied.model) != before


def test_a_decorated_model() -> None:
    model = decorated()
    expected = rewriter.apply(model, ALL)
    assert rewriter.apply(model, ALL, in_place=True) is model
    assert bytes_of(model) == bytes_of(expected)


def failing_at(number: int) -> RuleSet:
    seen: list[str] = []

    @rule(any_relu, a_tanh)
    def fails(m: Match) -> None:
        seen.append(m.root.name)
        if len(seen) > number:
            raise ZeroDivisionError

    return fails


@pytest.mark.parametrize("form", [0, 1], ids=["proto", "ir"])
@pytest.mark.parametrize("number", [0, 1])
def test_after_an_error_nothing_has_changed(form: int, number: int) -> None:
    model = forms(CHAIN)[form]
    before = bytes_of(model)
    with pytest.raises(RuleError, match="ZeroDivisionError"):
        rewriter.apply(model, failing_at(number), in_place=True)
    assert bytes_of(model) == before


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    expected = rewriter.apply(path, everything, tmp_path / "other.onnx").read_bytes()
    assert rewriter.apply(path, everything, in_place=True) == path
    assert path.read_bytes() == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "other.onnx"]


def test_a_file_is_left_alone_where_nothing_fits_or_all_fails(tmp_path: Path) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    before, stamp = path.read_bytes(), path.stat().st_mtime_ns
    assert rewriter.apply(path, everything.only("negs"), in_place=True) == path
    with pytest.raises(RuleError):
        rewriter.apply(path, failing_at(1), in_place=True)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, stamp)


def test_not_beside_an_output(tmp_path: Path) -> None:
    path = as_file(parse(CHAIN), tmp_path)
    with pytest.raises(TypeError, match="give one of them"):
        rewriter.apply(path, everything, tmp_path / "out.onnx", in_place=True)
