"""The parameters of a script function: which are tensors, which are attributes, and the markers of each.

An annotation of int, float, str, bool or a list of those makes an attribute parameter, as in ONNX Script; all
else is a tensor. The converter only prints a complaint where it does not understand an annotation, and then
goes on without the marker in it; here that is an error, because a marker that is lost is a condition that is
not asked.
"""

from __future__ import annotations

import ast
import collections.abc
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from onnx import AttributeProto
from onnxscript.onnx_types import TensorType

from rewriter.pattern.graph import AttributeParameter, AttributeValue
from rewriter.pattern.markers import Marker, Maybe, markers_of
from rewriter.reading.source import Source
from rewriter.schemas import attribute_value

ATTRIBUTE_TYPES: dict[type, int] = {
    int: AttributeProto.INT,
    bool: AttributeProto.INT,
    float: AttributeProto.FLOAT,
    str: AttributeProto.STRING,
    list[int]: AttributeProto.INTS,
    list[bool]: AttributeProto.INTS,
    list[float]: AttributeProto.FLOATS,
    list[str]: AttributeProto.STRINGS,
}
"""The Python types of attribute parameters, and the ONNX type that each stands for."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: an attribute where `attribute` is set, else a tensor with these markers."""

    name: str
    node: ast.arg
    markers: tuple[Marker, ...] = ()
    attribute: AttributeParameter | None = None
    has_default: bool = False


def read_parameters(source: Source) -> list[Parameter]:
    """The parameters of the function, in order."""
    arguments = source.tree.args
    for other in (*arguments.posonlyargs, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg):
        if other is not None:
            raise source.error(other, f"{other.arg} must be a plain parameter; * and / have no meaning in ONNX")
    defaults = source.function.function.__defaults__ or ()
    missing = len(arguments.args) - len(defaults)
    return [
        _parameter(source, node, defaults[i - missing : i - missing + 1] if i >= missing else ())
        for i, node in enumerate(arguments.args)
    ]


def read_annotation(source: Source, node: ast.AST, name: str, annotation: object) -> tuple[Any, list[Marker]]:
    """The type and the markers that an annotation states; Optional makes `Maybe`."""
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hint = typing.get_type_hints(holder, dict(source.names), include_extras=True)[name]
    except Exception as e:
        raise source.error(node, f"the annotation of {name} cannot be evaluated: {e}") from e
    markers: list[Marker] = []
    base, optional = _without_none(hint)
    if get_origin(base) is Annotated:
        base, *metadata = get_args(base)
        try:
            markers += markers_of(metadata)
        except TypeError as e:
            raise source.error(node, f"{name}: {e}") from e
        base, also = _without_none(base)
        optional = optional or also
    if isinstance(base, Marker) or (isinstance(base, type) and issubclass(base, Marker)):
        raise source.error(node, f"{name}: a marker goes inside of Annotated; write Annotated[Tensor, ...]")
    if optional and Maybe() not in markers:
        markers.append(Maybe())
    return base, markers


def _parameter(source: Source, node: ast.arg, default: tuple[object, ...]) -> Parameter:
    """One parameter; `default` holds its default if it has one."""
    name = node.arg
    annotation = source.function.function.__annotations__.get(name, Any)
    base, markers = read_annotation(source, node, name, annotation)
    if get_origin(base) in (list, collections.abc.Sequence) and get_args(base)[0] in (int, bool, float, str):
        base = list[get_args(base)[0]]  # type: ignore[misc]
    if base in ATTRIBUTE_TYPES:
        if [m for m in markers if m != Maybe()]:
            raise source.error(node, f"{name}: markers are for tensors; check an attribute in the callback")
        value: AttributeValue | None = None
        if default and default[0] is not None:
            try:
                value = attribute_value(default[0], ATTRIBUTE_TYPES[base])
            except ValueError as e:
                raise source.error(node, f"the default of {name}: {e}") from None
        attribute = AttributeParameter(name, base, value)
        return Parameter(name, node, attribute=attribute, has_default=bool(default))
    if not _is_tensor(base):
        raise source.error(
            node,
            f"{name}: {base!r} is no tensor and no attribute; write Tensor, int, float, str, list[int], ...",
        )
    if default and default[0] is not None:
        raise source.error(node, f"{name}: a tensor's only default is None; write the constant where it is used")
    if default and Maybe() not in markers:
        markers.append(Maybe())
    return Parameter(name, node, tuple(markers), has_default=bool(default))


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type without `| None`, and whether that was there."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in get_args(hint) if a is not type(None)]
        if len(rest) < len(get_args(hint)):
            return (rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]), True  # noqa: UP007
    return hint, False


def _is_tensor(base: Any) -> bool:
    if get_origin(base) in (typing.Union, types.UnionType):
        return all(_is_tensor(a) for a in get_args(base))
    if base is Any or isinstance(base, TensorType | typing.TypeVar):
        return True
    return isinstance(base, type) and issubclass(base, TensorType)
