"""Sources: the kinds of model that `apply` takes, each with how it is read and written back."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import onnx
import onnx_ir as ir

from rewriter.engine.table import Table


class Source(Protocol):
    """A model of some kind: read into a table, and written back from its journal as the same kind."""

    model: Any

    def read(self) -> Table: ...

    def write(self, table: Table, output: Path | None, in_place: bool) -> Any:
        """The model with the edits: the caller's own object or file, changed, where `in_place`; else another."""
        ...


def open_source(model: Any) -> Source:
    """The source for a ModelProto, an onnx_ir.Model, or a path. Raises TypeError for anything else."""
    if isinstance(model, onnx.ModelProto):
        return ProtoSource(model)
    if isinstance(model, ir.Model):
        from rewriter.models.onnx_ir import IrSource

        return IrSource(model)
    if isinstance(model, (str, PathLike)):
        from rewriter.models.files import FileSource

        return FileSource(model)
    raise TypeError(f"expected an onnx.ModelProto, an onnx_ir.Model or a path, got {type(model).__name__}")


class ProtoSource:
    """A ModelProto in memory."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    def read(self) -> Table:
        from rewriter.models.proto import read_proto

        return read_proto(self.model)

    def write(self, table: Table, output: Path | None, in_place: bool) -> onnx.ModelProto:
        from rewriter.models.sink import write_proto

        if output is not None:
            raise TypeError("output is for models given as a path; this one is a ModelProto")
        return write_proto(table, self.model, in_place)
