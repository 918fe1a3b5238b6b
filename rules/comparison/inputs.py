"""What both models are fed: random values that mean something to them, or those that are given.

Random values are uniform over the range that the input's QuantizeLinear covers, where one reads it in either model, and
standard normal otherwise. Integers of 8 or 16 bits are uniform over their type. Wider ones are taken for indices where
a Gather looks them up in a constant table, and are else 0 or 1, as masks and lengths are.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np
import onnx

from rules.comparison.graph import Graph
from rules.running import Feeds

Dim = int | str
SPATIAL, OTHER = 224, 16


@dataclass(frozen=True)
class Input:
    """An input of a model. shape: its dims, a name ("" where there is none) for those that are not fixed; or None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        shape = "of any shape" if self.shape is None else f"[{', '.join(str(d or '?') for d in self.shape)}]"
        return f"{self.name} {self.dtype.name} {shape}"

    def takes(self, shape: Sequence[int]) -> bool:
        return self.shape is None or (
            len(self.shape) == len(shape)
            and all(isinstance(dim, str) or dim == size for dim, size in zip(self.shape, shape, strict=True))
        )


def inputs_of(graph: Graph) -> dict[str, Input]:
    """The inputs that must be fed. Raises ValueError for one that is no tensor of numbers."""
    found = {}
    for one in graph.proto.graph.input:
        if one.name in graph.initializers:
            continue
        tensor = one.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else np.dtype(object)
        if dtype.kind not in "fiub":
            raise ValueError(f"the input {one.name} is no tensor of numbers that ONNX Runtime can be fed from numpy")
        fixed = (d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim)
        dims = tuple(d.dim_value if k else d.dim_param for d, k in zip(tensor.shape.dim, fixed, strict=True))
        found[one.name] = Input(one.name, dtype, dims if tensor.HasField("shape") else None)
    return found


def require_equal(a: Mapping[str, Input], b: Mapping[str, Input]) -> None:
    """Raises ValueError, with both, for models that cannot be fed the same."""
    for name in a.keys() | b.keys():
        if name not in a or name not in b:
            told = (", ".join(map(str, one.values())) or "none" for one in (a, b))
            raise ValueError("the inputs differ: A has {}; B has {}".format(*told))
        x, y = a[name], b[name]
        fits = x.shape is None or y.shape is None or len(x.shape) == len(y.shape)
        fixed = ((m, n) for m, n in zip(x.shape or (), y.shape or (), strict=False) if type(m) is type(n) is int)
        if x.dtype != y.dtype or not fits or any(m != n for m, n in fixed):
            raise ValueError(f"the inputs differ: {x} in A, {y} in B")


def random_feeds(
    inputs: Mapping[str, Input], graphs: Sequence[Graph], shapes: Mapping[str, Sequence[int]], samples: int, seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """As many feeds as asked for, the same for the same seed, that suit the first graph which says more than
    a type. Raises ValueError for shapes that do not fit."""
    sizes = resolve(inputs, shapes)
    for k in range(samples):
        rng = np.random.default_rng([seed, k])
        yield {one.name: draw(one, sizes[one.name], graphs, rng) for one in inputs.values()}


def resolve(inputs: Mapping[str, Input], shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """A size for every dim. One that is not fixed is 1 if it is the first, 224 if it is the third or a later one of
    four or more, and else 16; or what a shape that is given makes of its name."""
    named: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ValueError(f"there is no input {name} to give a shape to, but {', '.join(map(str, inputs.values()))}")
        if not inputs[name].takes(shape):
            raise ValueError(f"the shape {list(shape)} does not fit {inputs[name]}")
        named.update((d, s) for d, s in zip(inputs[name].shape or (), shape, strict=False) if isinstance(d, str) and d)
    found = {}
    for one in inputs.values():
        if one.shape is None and one.name not in shapes:
            raise ValueError(f"the shape of the input {one.name} is not known: --shape {one.name}=1,3,224,224")
        sizes = list(shapes.get(one.name, ()))
        for k, dim in enumerate(() if sizes else one.shape or ()):
            if isinstance(dim, str):
                guess = 1 if k == 0 else SPATIAL if k >= 2 and len(one.shape or ()) >= 4 else OTHER
                dim = named.setdefault(dim, guess) if dim else guess
            sizes.append(dim)
        found[one.name] = tuple(sizes)
    return found


def draw(one: Input, shape: tuple[int, ...], graphs: Sequence[Graph], rng: np.random.Generator) -> np.ndarray:
    if one.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if one.dtype.kind == "f":
        spans = (graph.kept_range(one.name) for graph in graphs)
        span = next(filter(None, spans), None)
        values = rng.normal(size=shape) if span is None else rng.uniform(*span, shape)
        return np.asarray(values).astype(one.dtype)
    info = np.iinfo(one.dtype)
    table = min(filter(None, (graph.table_size(one.name) for graph in graphs)), default=2)
    low, high = (int(info.min), int(info.max)) if info.bits <= 16 else (0, table - 1)
    return rng.integers(low, high, shape, one.dtype, endpoint=True)


def given_feeds(inputs: Mapping[str, Input], given: Any) -> list[Feeds]:
    """Feeds from what a caller has: the path of an .npz, arrays by name, or feeds.

    An array has the shape of its input, or one axis more in front: then it holds several samples. In a file arrays may
    also be named `0/x`, `1/x`, ... by sample. Raises ValueError for what does not fit, OSError for no file.
    """
    if isinstance(given, (str, PathLike)):
        return feeds_by_sample(inputs, read(given))
    if isinstance(given, Mapping):
        return feeds_by_sample(inputs, given)
    feeds = [fitting(inputs, one) for one in given]
    if not feeds:
        raise ValueError("there is no sample among the inputs")
    return feeds


def read(path: str | PathLike[str]) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("holds one array without a name; save it by numpy.savez(file, INPUT=array)")
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{fspath(path)}: no .npz file of arrays: {error}") from error
    except FileNotFoundError:
        raise ValueError(f"{fspath(path)}: there is no such file") from None


def feeds_by_sample(inputs: Mapping[str, Input], arrays: Mapping[str, np.ndarray]) -> list[Feeds]:
    if arrays and arrays.keys() != inputs.keys() and all(name.partition("/")[0].isdecimal() for name in arrays):
        samples: dict[int, dict[str, np.ndarray]] = {}
        for key, array in arrays.items():
            index, _, name = key.partition("/")
            samples.setdefault(int(index), {})[name] = array
        return given_feeds(inputs, [samples[k] for k in sorted(samples)])
    require_names(inputs, arrays)
    counts = {name: len(array) if more_than_one(inputs[name], array) else None for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {'one' if count is None else count}" for name, count in counts.items())
        raise ValueError(f"the inputs have different numbers of samples: {told}")
    (count,) = set(counts.values()) or {None}
    several: Iterable[dict[str, np.ndarray]] = ({n: a[k] for n, a in arrays.items()} for k in range(count or 0))
    return given_feeds(inputs, [dict(arrays)] if count is None else several)


def more_than_one(one: Input, array: np.ndarray) -> bool:
    return one.shape is not None and np.ndim(array) == len(one.shape) + 1


def require_names(inputs: Mapping[str, Input], arrays: Mapping[str, np.ndarray]) -> None:
    missing, unknown = inputs.keys() - arrays.keys(), arrays.keys() - inputs.keys()
    if missing or unknown:
        have = f"; the inputs are {', '.join(map(str, inputs.values()))}"
        lacking = f"there is no array for the input {', '.join(sorted(missing))}" if missing else ""
        strange = f"there is no input {', '.join(sorted(unknown))}" if unknown else ""
        raise ValueError(" and ".join(filter(None, (lacking, strange))) + have)


def fitting(inputs: Mapping[str, Input], feeds: Mapping[str, np.ndarray]) -> Feeds:
    """The arrays in the types of the inputs. Raises ValueError where values would change by more than rounding."""
    require_names(inputs, feeds)
    found = {}
    for name, one in inputs.items():
        array = np.asarray(feeds[name])
        if not one.takes(array.shape):
            raise ValueError(f"the array {array.dtype.name} {list(array.shape)} does not fit the input {one}")
        integers = array.dtype.kind in "iu" and one.dtype.kind in "iu"
        cast = array.astype(one.dtype) if integers or np.can_cast(array.dtype, one.dtype, "same_kind") else None
        if cast is not None and cast.dtype.kind == "f" and not np.isfinite(cast.astype(np.float64)).all():
            raise ValueError(f"the array for the input {one} has values that are not finite")
        if cast is None or (integers and not np.array_equal(cast, array)):
            raise ValueError(f"an array of {array.dtype.name} cannot be fed to the input {one}")
        found[name] = cast
    return found
