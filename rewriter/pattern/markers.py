"""Markers: what a rule asks of a parameter, written in `Annotated[Tensor, ...]`.

Each marker is a small frozen value with a name, a question about one bound value (`holds`) and a sentence for
explanations (`sentence`). They are values, so that two rules that ask the same are asked once by the compiled tree.
A marker sees the value through `Facts`, the few things the engine tells of a value, and so knows nothing of tables.

`Maybe`, `Many` and `Dims` say something about the shape of the match rather than of one value; the compiler reads
them itself. A class without options can be written bare: `Const` is `Const()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import onnx_ir as ir
import onnxscript

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = onnxscript.FLOAT  # any tensor type serves: the markers carry the real constraints

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
INTEGERS = tuple(
    t
    for t in ir.DataType
    if t.name
    in ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "INT4", "UINT4", "INT2", "UINT2")
)


class Facts(Protocol):
    """What a marker may ask of a value."""

    @property
    def is_constant(self) -> bool: ...
    @property
    def is_overridable(self) -> bool: ...
    @property
    def dtype(self) -> ir.DataType | None: ...
    @property
    def shape(self) -> tuple[int | str | None, ...] | None: ...
    @property
    def producer_type(self) -> str | None: ...
    @property
    def name(self) -> str: ...


class Marker:
    """Base of all markers. `cost` orders the questions: cheap ones are asked first."""

    cost = 1

    def holds(self, value: Facts) -> bool:
        raise NotImplementedError(f"marker {type(self).__name__} is read by the compiler")

    @property
    def sentence(self) -> str:
        """What was expected, as the end of "NAME is not ...": for instance "a constant"."""
        raise NotImplementedError

    @property
    def contrary(self) -> str | None:
        """What a value is of which it does not hold, as the end of "NAME is ...", where that says it better."""
        return None


@dataclass(frozen=True)
class Maybe(Marker):
    """The input may be absent; the parameter is then bound to None."""


@dataclass(frozen=True)
class Many(Marker):
    """The rest of a variadic op's inputs: all nodes between are repeated for each of them."""


@dataclass(frozen=True)
class Const(Marker):
    """Computable at build time: an initializer that no caller can override, a Constant node, or a small sub-graph of
    those."""

    cost = 2

    def holds(self, value: Facts) -> bool:
        return value.is_constant

    @property
    def sentence(self) -> str:
        return "a constant"


@dataclass(frozen=True)
class NotConst(Marker):
    """Known only at run time (an initializer that the caller can override included)."""

    cost = 2

    def holds(self, value: Facts) -> bool:
        return not value.is_constant

    @property
    def sentence(self) -> str:
        return "a run-time value"

    @property
    def contrary(self) -> str:
        return "a constant"


@dataclass(frozen=True)
class Overridable(Marker):
    """An initializer that is a graph input too, so that the caller can replace it at run time."""

    def holds(self, value: Facts) -> bool:
        return value.is_overridable

    @property
    def sentence(self) -> str:
        return "an initializer that the caller can override"


@dataclass(frozen=True)
class Scalar(Marker):
    """One element, of shape [] or [1]."""

    def holds(self, value: Facts) -> bool:
        return value.shape in ((), (1,))

    @property
    def sentence(self) -> str:
        return "a scalar"


def dtype_of(name: str) -> ir.DataType:
    """An element type by its ONNX name; raises ValueError with the names that there are."""
    try:
        return ir.DataType[name.upper()]
    except KeyError:
        raise ValueError(
            f"there is no element type {name!r}; there are {', '.join(t.name for t in ir.DataType)}"
        ) from None


@dataclass(frozen=True, init=False)
class DType(Marker):
    """One of these element types: `DType("INT8", "UINT8")`."""

    types: tuple[ir.DataType, ...]

    def __init__(self, *types: str | ir.DataType) -> None:
        object.__setattr__(self, "types", tuple(dtype_of(t) if isinstance(t, str) else t for t in types))

    def holds(self, value: Facts) -> bool:
        return value.dtype in self.types

    @property
    def sentence(self) -> str:
        return "of type " + " or ".join(t.name.lower() for t in self.types)


@dataclass(frozen=True)
class Float(Marker):
    """Of a floating-point type: float16, bfloat16, float32 or float64."""

    def holds(self, value: Facts) -> bool:
        return value.dtype in FLOATS

    @property
    def sentence(self) -> str:
        return "of a floating-point type"


@dataclass(frozen=True)
class Integer(Marker):
    """Of an integer type."""

    def holds(self, value: Facts) -> bool:
        return value.dtype in INTEGERS

    @property
    def sentence(self) -> str:
        return "of an integer type"


@dataclass(frozen=True)
class Boolean(Marker):
    """Of type bool."""

    def holds(self, value: Facts) -> bool:
        return value.dtype == ir.DataType.BOOL

    @property
    def sentence(self) -> str:
        return "of type bool"


@dataclass(frozen=True, init=False)
class Rank(Marker):
    """Of one of these ranks, known at build time: `Rank(2, 3)`."""

    ranks: tuple[int, ...]

    def __init__(self, *ranks: int) -> None:
        object.__setattr__(self, "ranks", ranks)

    def holds(self, value: Facts) -> bool:
        return value.shape is not None and len(value.shape) in self.ranks

    @property
    def sentence(self) -> str:
        return "of rank " + " or ".join(map(str, self.ranks))


@dataclass(frozen=True, init=False)
class NotFrom(Marker):
    """Not produced by a node of these types: `NotFrom("DequantizeLinear")`."""

    ops: tuple[str, ...]

    def __init__(self, *ops: str) -> None:
        object.__setattr__(self, "ops", ops)

    def holds(self, value: Facts) -> bool:
        return value.producer_type not in self.ops

    @property
    def sentence(self) -> str:
        return "produced by anything but " + " or ".join(self.ops)

    @property
    def contrary(self) -> str:
        return "produced by " + " or ".join(self.ops)


@dataclass(frozen=True)
class Where(Marker):
    """A condition of the author's own, with its sentence: `Where(is_power_of_two, "a power of two")`."""

    condition: Callable[[Any], bool]
    expected: str

    cost = 3

    def holds(self, value: Facts) -> bool:
        return bool(self.condition(value))

    @property
    def sentence(self) -> str:
        return self.expected


@dataclass(frozen=True, init=False)
class Dims(Marker):
    """The dimensions, by name or number: `Dims("M", "C")`. A name that several parameters use must agree everywhere."""

    dims: tuple[int | str, ...]

    def __init__(self, *dims: int | str) -> None:
        object.__setattr__(self, "dims", dims)

    def holds(self, value: Facts) -> bool:
        shape = value.shape
        return (
            shape is not None
            and len(shape) == len(self.dims)
            and all(not isinstance(want, int) or want == have for want, have in zip(self.dims, shape, strict=True))
        )

    @property
    def sentence(self) -> str:
        return f"of shape [{', '.join(map(str, self.dims))}]"

    def axes(self) -> dict[str, int]:
        """Where each named dimension stands."""
        return {dim: axis for axis, dim in enumerate(self.dims) if isinstance(dim, str)}


def markers_of(metadata: Sequence[object]) -> tuple[Marker, ...]:
    """The markers among an annotation's metadata, bare classes instantiated."""
    found = []
    for item in metadata:
        if isinstance(item, type) and issubclass(item, Marker):
            found.append(item())
        elif isinstance(item, Marker):
            found.append(item)
        else:
            raise TypeError(
                f"{item!r} is no marker; markers are those of rewriter.pattern, or Where(condition, sentence)"
            )
    return tuple(found)
