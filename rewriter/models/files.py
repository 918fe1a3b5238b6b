"""Files as a source: a path in, a path out, and never a file that is half of one.

A file is read once, as protobuf; the external data beside it stays where it is and is memory-mapped by
whoever asks for a tensor, but every reference is checked at once, as a model without its weights is of no use
to anybody. What is written appears whole or not at all: it goes to a temporary file in the target's folder,
which then takes the target's name. A model that no rule changed is copied byte for byte. In the same folder
the result refers to the input's data file; elsewhere it takes along what it still refers to, tensor by
tensor, so that neither file is ever in memory whole. Where the input has external data, large arrays that
rules made go into a data file too, and are in memory once.
"""

from __future__ import annotations

import filecmp
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto

from rewriter.engine.table import Table
from rewriter.errors import ModelError
from rewriter.models.external import external_tensor
from rewriter.models.proto import graphs_of, read_proto

LIMIT = 2**31 - 1  # bytes that one protobuf message can have
SLACK = 1 << 20  # room for what is not counted in an estimate of that size
CHUNK = 1 << 22  # bytes that are copied at a time
PAGE, LARGE = 1 << 16, 1 << 20  # a tensor of LARGE bytes or more starts at a PAGE, to be mapped where it lies


def default_output(path: Path) -> Path:
    """Where the result goes if nobody says: beside the input."""
    return path.with_name(f"{path.stem}.rewritten.onnx")


class FileSource:
    """An ONNX file. `model` is its message, once it was read; writing edits that in place."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.returns_text = isinstance(path, str)
        self.model = ModelProto()
        self.rest = 0  # bytes of the file that are not payload of tensors

    def read(self) -> Table:
        try:
            data = self.path.read_bytes()
        except IsADirectoryError:
            raise ModelError(f"{self.path}: this is a folder, not an ONNX model") from None
        except FileNotFoundError:
            raise ModelError(f"{self.path}: there is no such file") from None
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if not data:
            raise ModelError(f"{self.path}: the file is empty")
        if len(data) > LIMIT:
            raise ModelError(f"{self.path}: the file has {len(data)} bytes, an ONNX model at most {LIMIT}")
        try:
            self.model.ParseFromString(data)
        except Exception:  # DecodeError, and what else protobuf raises for bytes that are no message
            raise ModelError(f"{self.path}: not an ONNX model, or truncated") from None
        self.rest = len(data) - payload(self.model)
        base = self.path.parent
        try:
            for tensor in external_tensors(self.model):
                external_tensor(tensor, base)
            return read_proto(self.model, base)
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from None

    def write(self, table: Table, output: Path | None, in_place: bool) -> str | Path:
        """Write the model with the table's edits; returns the path of the file. In place, the file is replaced by
        another one as a whole, and only if there is a change.

        Raises ModelError where the output would overwrite the input and that is not asked for, and where it cannot be
        written.
        """
        target = default_output(self.path) if output is None else output
        try:
            if in_place:
                target = self.path
                if table.is_changed:
                    self.write_changed(table, target)
                return str(target) if self.returns_text else target
            self.check_target(target)
            if table.is_changed:
                self.write_changed(table, target)
            else:
                self.write_copy(target)
        except OSError as error:
            raise ModelError(f"{target}: cannot be written: {error.strerror or error}") from error
        return str(target) if self.returns_text else target

    def check_target(self, target: Path) -> None:
        if not target.parent.is_dir():
            raise ModelError(f"{target}: there is no folder {target.parent}")
        if target.exists() and not target.is_file():
            raise ModelError(f"{target}: this is no regular file, so it is not overwritten")
        self.check_not_input(target)

    def check_not_input(self, target: Path) -> None:
        if not target.exists():
            return
        for file in (self.path, *self.data_files()):
            if file.exists() and target.samefile(file):
                raise ModelError(f"{target}: the output would overwrite the input; choose another name")

    def data_files(self) -> list[Path]:
        """The files that the input's external tensors lie in."""
        names = dict.fromkeys(location(tensor) for tensor in external_tensors(self.model))
        return [self.path.parent / name for name in names]

    def write_copy(self, target: Path) -> None:
        with Output() as out:
            if not same_folder(target, self.path):
                for file in self.data_files():
                    place = target.parent / file.relative_to(self.path.parent)
                    if place.exists():
                        if not filecmp.cmp(file, place, shallow=False):
                            raise ModelError(f"{place}: exists and is not this model's data; choose another folder")
                        continue
                    place.parent.mkdir(parents=True, exist_ok=True)
                    out.file(place, lambda to, file=file: copy_bytes(to, file, 0, file.stat().st_size))  # type: ignore[misc]
            out.file(target, lambda to: copy_bytes(to, self.path, 0, self.path.stat().st_size))

    def write_changed(self, table: Table, target: Path) -> None:
        from rewriter.models.sink import write_proto

        new = {table.name[value] for value in table.new_initializers}
        apart: list[tuple[TensorProto, np.ndarray]] | None = [] if self.data_files() else None
        model = write_proto(table, self.model, in_place=True, apart=apart)
        kept = [tensor for tensor in external_tensors(model) if location(tensor)]  # not those of `apart`
        moving = [] if same_folder(target, self.path) else kept
        if self.rest + payload(model) + SLACK + 256 * len(table.added) > LIMIT:
            moving += [t for t in inline_tensors(model) if t.name in new and t.HasField("raw_data")]
        with Output() as out:
            if moving or apart:
                data = self.data_beside(target)

                def write(to: BinaryIO) -> None:
                    move_tensors(moving, self.path.parent, to, data.name)
                    for tensor, array in apart or ():
                        write_array(tensor, array, to, data.name)

                out.file(data, write)
            out.file(target, lambda to: to.write(model.SerializeToString()))

    def data_beside(self, target: Path) -> Path:
        """A data file for the target that is none of the input's."""
        data = target.with_name(f"{target.name}.data")
        number = 0
        while any(data.exists() and file.exists() and data.samefile(file) for file in self.data_files()):
            number += 1
            data = target.with_name(f"{target.name}.{number}.data")
        return data


class Output:
    """Files that appear together: written under temporary names, they all take their own at the end."""

    def __init__(self) -> None:
        self.files: list[tuple[Path, Path]] = []

    def __enter__(self) -> Output:
        return self

    def file(self, target: Path, write: Callable[[BinaryIO], object]) -> None:
        real = Path(os.path.realpath(target))  # a link stays a link
        temporary = real.with_name(f".{real.name}.{secrets.token_hex(4)}.tmp")
        self.files.append((temporary, real))
        with open(temporary, "xb") as to:
            write(to)
            to.flush()
            os.fsync(to.fileno())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        made: list[Path] = []
        try:
            if kind is None:
                for temporary, target in self.files:
                    existed = target.exists()
                    os.replace(temporary, target)
                    if not existed:
                        made.append(target)
        except BaseException:
            for target in made:
                target.unlink(missing_ok=True)
            raise
        finally:
            for temporary, _target in self.files:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)


def move_tensors(tensors: list[TensorProto], base: Path, to: BinaryIO, name: str) -> None:
    """Write the payload of tensors, external or inline, to a data file, and let them refer to it."""
    written: dict[tuple[str, int, int], int] = {}  # tensors that share bytes go on sharing them
    for proto in tensors:
        if proto.data_location == TensorProto.EXTERNAL:
            held = external_tensor(proto, base)
            length = held.length or 0
            key = (str(held.path), held.offset or 0, length)
            if key not in written:
                written[key] = align(to, length)
                copy_bytes(to, Path(key[0]), key[1], length)
            offset = written[key]
        else:
            length = len(proto.raw_data)
            offset = align(to, length)
            to.write(proto.raw_data)
            proto.ClearField("raw_data")
            proto.data_location = TensorProto.EXTERNAL
        refer(proto, name, offset, length)


def write_array(proto: TensorProto, array: np.ndarray, to: BinaryIO, name: str) -> None:
    """Write a large array to a data file, and let its message refer to it; it is in memory once."""
    offset = align(to, array.nbytes)
    to.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    proto.data_location = TensorProto.EXTERNAL
    refer(proto, name, offset, array.nbytes)


def refer(proto: TensorProto, name: str, offset: int, length: int) -> None:
    del proto.external_data[:]
    for entry, value in (("location", name), ("offset", str(offset)), ("length", str(length))):
        proto.external_data.add(key=entry, value=value)


def align(to: BinaryIO, length: int) -> int:
    step = PAGE if length >= LARGE else 64
    to.write(bytes(-to.tell() % step))
    return to.tell()


def copy_bytes(to: BinaryIO, source: Path, offset: int, length: int) -> None:
    with open(source, "rb") as data:
        data.seek(offset)
        while length:
            chunk = data.read(min(CHUNK, length))
            if not chunk:
                raise ModelError(f"{source}: became shorter while it was copied")
            to.write(chunk)
            length -= len(chunk)


def same_folder(a: Path, b: Path) -> bool:
    return os.path.realpath(a.parent) == os.path.realpath(b.parent)


def location(tensor: TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    return (tensor for tensor in tensors_of(model) if tensor.data_location == TensorProto.EXTERNAL)


def inline_tensors(model: ModelProto) -> Iterator[TensorProto]:
    return (tensor for tensor in tensors_of(model) if tensor.data_location != TensorProto.EXTERNAL)


def payload(model: ModelProto) -> int:
    """About how many bytes of the message are elements of tensors."""
    found = 0
    for tensor in inline_tensors(model):
        count = 1
        for dim in tensor.dims:
            count *= dim
        found += count * BYTES.get(int(tensor.data_type), 1)
    return found


BYTES: dict[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.INT32: 4,
    TensorProto.UINT32: 4,
    TensorProto.INT64: 8,
    TensorProto.UINT64: 8,
    TensorProto.DOUBLE: 8,
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
    TensorProto.INT16: 2,
    TensorProto.UINT16: 2,
}


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model: initializers and attributes, of bodies, functions and training graphs too."""
    training = [g for t in model.training_info for g in (t.initialization, t.algorithm)]
    graphs = graphs_of(model, training)
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
    for holder in (*graphs, *model.functions):
        for node in holder.node:
            for attribute in node.attribute:
                yield from attribute_tensors(attribute)


def attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.type == AttributeProto.TENSOR:
        yield attribute.t
    elif attribute.type == AttributeProto.SPARSE_TENSOR:
        yield attribute.sparse_tensor.values
        yield attribute.sparse_tensor.indices
    yield from attribute.tensors
