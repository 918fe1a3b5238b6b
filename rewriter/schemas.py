"""What the engine knows of operators: ONNX's own schemas, by op key, in a form that is cheap to ask.

Rules are checked against schemas when they are defined, defaults are filled in when attributes are compared,
and emitted nodes are checked at the model's opset; all ask here, so that there is one answer. An op key is
`"Conv"` in ai.onnx and `"domain::Type"` elsewhere. A domain without schemas (custom ops, com.microsoft) is
not an error: its ops have no `OpInfo` and everything about them is accepted. A deprecated op counts as
absent, because a model of that opset cannot hold it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto
from onnx.defs import OpSchema

from rewriter.pattern.graph import AttributeValue

COMMUTATIVE = frozenset(
    {"Add", "Mul", "Max", "Min", "Sum", "Mean", "Equal"} | {"And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
)
"""The ops of ai.onnx whose two inputs commute (Max, Mean, Min and Sum where they have two)."""

REDEFINED = {"RoiAlign": (16,)}
"""Versions at which an op changed its meaning in a way that a comparison of schemas does not show.

RoiAlign 16 samples half a pixel off by default; RoiAlign 10 has no such attribute and never does.
"""

STANDARD = {f"com.microsoft::{op}": (op, 21) for op in ("QuantizeLinear", "DequantizeLinear")}
"""Ops of other domains that mean what an op of ai.onnx means, with that op and the first version that means it."""


@dataclass(frozen=True, eq=False)
class OpInfo:
    """One version of one operator. `required`, `input_names` and `input_types` go by formal input.

    A type is a type variable (`"T"`, whose types are in `type_constraints`) or a type (`"tensor(int64)"`).
    `attribute_types` maps names to `AttributeProto` types; `defaults` holds those that have one. `max_inputs` and
    `max_outputs` are very large where the last formal one is variadic; `homogeneous` says whether such inputs share one
    type.
    """

    key: str
    since_version: int
    min_inputs: int
    max_inputs: int
    input_names: tuple[str, ...]
    required: tuple[bool, ...]
    input_types: tuple[str, ...]
    variadic: bool
    homogeneous: bool
    min_outputs: int
    max_outputs: int
    output_names: tuple[str, ...]
    output_types: tuple[str, ...]
    type_constraints: Mapping[str, frozenset[str]]
    attribute_types: Mapping[str, int]
    defaults: Mapping[str, AttributeValue]
    required_attributes: frozenset[str]


def op_key(domain: str, op_type: str) -> str:
    """The key of an op: `"Conv"`, or `"com.microsoft::Gelu"` outside ai.onnx."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}::{op_type}"


def split_key(key: str) -> tuple[str, str]:
    """The domain (empty for ai.onnx) and the op type of a key."""
    domain, _, op_type = key.rpartition("::")
    return "" if domain == "ai.onnx" else domain, op_type


def op_info(key: str, version: int) -> OpInfo | None:
    """The op as it is at this opset version; None where ONNX knows no schema for it."""
    schema = _schema(key, version)
    return None if schema is None else _info(key, schema.since_version)


def why_unknown(key: str, version: int) -> str | None:
    """What is wrong with this op at this opset version; None if nothing is, or its domain has no schemas."""
    domain, op_type = split_key(key)
    if _schema(key, version) is not None or domain not in _domains():
        return None
    of = domain or "ai.onnx"
    versions = _history().get(op_key(domain, op_type), ())
    if not versions:
        names = [split_key(k)[1] for k in _history() if split_key(k)[0] == domain]
        close = difflib.get_close_matches(op_type, names, 1, 0.6)
        hint = f"did you mean {close[0]}?" if close else "check its spelling"
        return f"{of} has no op {op_type}; {hint}"
    alive = [s.since_version for s in versions if not s.deprecated]
    if alive and version < alive[0]:
        return f"{op_type} does not exist at opset {version} of {of}; it came with opset {alive[0]}"
    gone = next(s.since_version for s in versions if s.deprecated)
    return f"{op_type} does not exist at opset {version} of {of}; it is deprecated since opset {gone}"


def agreeing_versions(key: str, version: int, attributes: frozenset[str] = frozenset()) -> tuple[int, int | None]:
    """The opset versions around `version` in which a rule that names these attributes means the same.

    Inputs and outputs must agree in number, names and optionality, common attributes in type and default;
    wider type constraints do not matter. An attribute that came later is harmless to a rule of the newer
    version that does not name it (its default is what the older op does), so the range extends *down* over
    it; but a rule of the older version could match a node that sets it, so the range does not extend *up*. An
    attribute that went away ends the range in both directions. So does deprecation. The upper end is None
    where the newest known version still agrees; an op without schema agrees everywhere.
    """
    versions = _history().get(op_key(*split_key(key)))
    if versions is None:
        return 1, None
    if problem := why_unknown(key, version):
        raise ValueError(problem)
    at = max(i for i, s in enumerate(versions) if s.since_version <= version)
    low = high = at
    while low > 0 and _agree(versions[low - 1], versions[at], attributes):
        low -= 1
    while high + 1 < len(versions) and _agree(versions[at], versions[high + 1], None):
        high += 1
    last = versions[high + 1].since_version - 1 if high + 1 < len(versions) else None
    return versions[low].since_version, last


def make_attribute(key: str, version: int, name: str, value: object) -> AttributeProto:
    """The attribute as a proto, of the type that the op's schema wants; `ValueError` says what is wrong."""
    wanted: int = AttributeProto.UNDEFINED
    if (info := op_info(key, version)) is not None:
        wanted = attribute_type(info, name)
    try:
        plain = attribute_value(value, wanted)
    except ValueError as e:
        raise ValueError(f"attribute {name} of {key}: {e}") from None
    if wanted == AttributeProto.INT:  # the common one, without what onnx.helper asks of its type
        return AttributeProto(name=name, type=AttributeProto.INT, i=plain)  # type: ignore[arg-type]
    if isinstance(plain, np.ndarray):
        return onnx.helper.make_attribute(name, ir.serde.serialize_tensor(ir.tensor(plain)))
    return onnx.helper.make_attribute(name, plain, attr_type=wanted or None)


def attribute_type(info: OpInfo, name: str) -> int:
    """The `AttributeProto` type of an attribute; `ValueError` if the op does not have it."""
    if name in info.attribute_types:
        return info.attribute_types[name]
    close = difflib.get_close_matches(name, info.attribute_types, 1, 0.6)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(info.attribute_types)) or 'none'}"
    raise ValueError(f"{info.key} has no attribute {name} (since opset {info.since_version}); {hint}")


def attribute_value(value: object, wanted: int = AttributeProto.UNDEFINED) -> AttributeValue:
    """A Python value as an attribute of this type (by default the one it looks like).

    An int serves as a float, a bool as an int, a tuple as a list, a number or a list as a tensor.
    `ValueError` says why it cannot be.
    """
    if isinstance(value, np.generic):
        value = value.item()
    wanted = wanted or _looks_like(value)
    match wanted:
        case AttributeProto.INT if isinstance(value, int):
            return int(value)
        case AttributeProto.FLOAT if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        case AttributeProto.STRING if isinstance(value, str):
            return value
        case AttributeProto.STRING if isinstance(value, bytes):
            return value.decode()
        case AttributeProto.TENSOR:
            return as_array(value)
        case AttributeProto.INTS | AttributeProto.FLOATS | AttributeProto.STRINGS:
            if isinstance(value, np.ndarray) and value.ndim == 1:
                value = value.tolist()
            if isinstance(value, list | tuple):
                each = ELEMENTS[wanted]
                return [attribute_value(v, each) for v in value]  # type: ignore[return-value]
        case AttributeProto.FLOAT | AttributeProto.INT | AttributeProto.STRING:
            pass
        case _:
            raise ValueError(f"an attribute of type {type_name(wanted)} cannot be written in a rule")
    raise ValueError(f"expected {type_name(wanted)}, got {value!r}")


def as_array(value: object) -> np.ndarray:
    """A constant as an array: Python floats are float32, ints int64; arrays and tensors are kept."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic) and not isinstance(value, float):
        return np.asarray(value)
    if isinstance(value, onnx.TensorProto):
        return ir.serde.deserialize_tensor(value).numpy()
    if isinstance(value, ir.TensorProtocol):
        return value.numpy()
    kinds = {type(leaf) for leaf in _leaves(value)}
    if not kinds:
        raise ValueError("an empty list has no element type; write np.zeros(0, np.int64)")
    for dtype, types in (
        (np.bool_, {bool}),
        (np.int64, {bool, int}),
        (np.float32, {int, float, np.float64}),
        (np.object_, {str}),
    ):
        if kinds <= types:
            try:
                return np.asarray(value, dtype=dtype)
            except (ValueError, OverflowError) as e:
                raise ValueError(f"{value!r} is no tensor: {e}") from None
    raise ValueError(f"{value!r} is no tensor; write a number, a list of numbers of one kind, or an array")


def type_name(attribute_type: int) -> str:
    """How messages call an attribute type: "INTS" is what people read in schemas."""
    return str(AttributeProto.AttributeType.Name(attribute_type))


ELEMENTS: dict[int, int] = {
    AttributeProto.INTS: AttributeProto.INT,
    AttributeProto.FLOATS: AttributeProto.FLOAT,
    AttributeProto.STRINGS: AttributeProto.STRING,
}
"""The element type of each list type."""


def _looks_like(value: object) -> int:
    if isinstance(value, int):
        return AttributeProto.INT
    if isinstance(value, float):
        return AttributeProto.FLOAT
    if isinstance(value, str | bytes):
        return AttributeProto.STRING
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("an empty list has no type where the op has no schema")
        kinds = {_looks_like(v) for v in value}
        if kinds == {AttributeProto.INT, AttributeProto.FLOAT}:
            return AttributeProto.FLOATS
        if len(kinds) == 1:
            return next((many for many, one in ELEMENTS.items() if one in kinds), AttributeProto.UNDEFINED)
        raise ValueError(f"the elements of {value!r} are of several types")
    return AttributeProto.TENSOR


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _agree(older: OpSchema, newer: OpSchema, named: frozenset[str] | None) -> bool:
    """Whether they agree for a rule of the newer version that names these, or (None) for one of the older."""
    if older.deprecated or newer.deprecated:
        return False
    if any(older.since_version < v <= newer.since_version for v in REDEFINED.get(newer.name, ())):
        return False
    for old, new in ((older.inputs, newer.inputs), (older.outputs, newer.outputs)):
        if [(f.name, f.option) for f in old] != [(f.name, f.option) for f in new]:
            return False
    was, now = older.attributes, newer.attributes
    added = now.keys() - was.keys()
    if was.keys() - now.keys() or any(now[a].required for a in added):
        return False
    if added and (named is None or added & named):
        return False
    return all(
        was[a].type == now[a].type
        and was[a].required == now[a].required
        and was[a].default_value == now[a].default_value
        for a in was
    )


@cache
def _history() -> dict[str, tuple[OpSchema, ...]]:
    """Every version of every op, oldest first."""
    by_key: dict[str, list[OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        by_key.setdefault(op_key(schema.domain, schema.name), []).append(schema)
    return {key: tuple(sorted(found, key=lambda s: s.since_version)) for key, found in by_key.items()}


@cache
def _domains() -> frozenset[str]:
    return frozenset(split_key(key)[0] for key in _history())


@cache
def _schema(key: str, version: int) -> OpSchema | None:
    known = [s for s in _history().get(op_key(*split_key(key)), ()) if s.since_version <= version]
    return known[-1] if known and not known[-1].deprecated else None


@cache
def _info(key: str, since_version: int) -> OpInfo:
    schema = _schema(key, since_version)
    assert schema is not None
    option = OpSchema.FormalParameterOption
    defaults = {
        name: attribute_value(onnx.helper.get_attribute_value(a.default_value))
        for name, a in schema.attributes.items()
        if a.default_value.type != AttributeProto.UNDEFINED
    }
    return OpInfo(
        key=op_key(*split_key(key)),
        since_version=since_version,
        min_inputs=schema.min_input,
        max_inputs=schema.max_input,
        input_names=tuple(f.name for f in schema.inputs),
        required=tuple(
            f.option == option.Single or (f.option == option.Variadic and f.min_arity > 0) for f in schema.inputs
        ),
        input_types=tuple(f.type_str for f in schema.inputs),
        variadic=bool(schema.inputs) and schema.inputs[-1].option == option.Variadic,
        homogeneous=bool(schema.inputs) and schema.inputs[-1].is_homogeneous,
        min_outputs=schema.min_output,
        max_outputs=schema.max_output,
        output_names=tuple(f.name for f in schema.outputs),
        output_types=tuple(f.type_str for f in schema.outputs),
        type_constraints={c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
        attribute_types={n: int(a.type.value) for n, a in schema.attributes.items()},  # type: ignore[attr-defined]
        defaults=defaults,
        required_attributes=frozenset(n for n, a in schema.attributes.items() if a.required),
    )
