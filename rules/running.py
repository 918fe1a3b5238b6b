"""Models in ONNX Runtime, for what is measured there: opened once, then run as they are or with other outputs.

A model that lies in a file stays there: only its graph is read, and ONNX Runtime fetches the weights itself, so that
files with more than 2 GB of external data can be run too. Nothing else in `rules` needs onnxruntime.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rewriter import ModelError

Feeds = Mapping[str, np.ndarray]
LARGEST = 2**31 - 2**20
"""Bytes of a model in memory that can still be handed over as one protobuf message."""

_FOLDER = "session.model_external_initializers_file_folder_path"


def as_proto(model: Any) -> onnx.ModelProto:
    """The model with all its data: from an onnx.ModelProto, an onnx_ir.Model or a path."""
    if isinstance(model, onnx.ModelProto):
        return model
    return onnx.load(model) if isinstance(model, (str, PathLike)) else ir.to_proto(model)


def session(model: onnx.ModelProto, folder: Path | None = None, *, optimized: bool = False) -> Any:
    """A session on one thread that computes what the model says, or what ONNX Runtime makes of it by default.

    folder: where its external data lies. Raises ModuleNotFoundError without onnxruntime.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "running a model needs onnxruntime: python -m pip install 'qdq-rewriter[verify]'", name=missing.name
        ) from None

    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if folder is not None:
        options.add_session_config_entry(_FOLDER, str(folder))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Runnable:
    """A model that can be run. proto: its graph, whose external data, if any, lies in `folder`."""

    def __init__(self, model: Any) -> None:
        """model: an onnx.ModelProto, an onnx_ir.Model or a path. Raises ModelError where it cannot be read."""
        self.folder: Path | None = None
        self.name = fspath(model) if isinstance(model, (str, PathLike)) else "the model"
        if isinstance(model, onnx.ModelProto) and model.ByteSize() <= LARGEST:
            self.proto = model
            return
        try:
            if not isinstance(model, (str, PathLike)):
                saved = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model
                model = Path(tempfile.mkdtemp(), "model.onnx")
                weakref.finalize(self, shutil.rmtree, model.parent, ignore_errors=True)
                ir.save(saved, model, external_data="model.data")
            self.proto = onnx.load(model, load_external_data=False)
        except Exception as error:  # protobuf's, onnx's and the file system's have no common base
            raise ModelError(f"{self.name}: {' '.join(str(error).split())}") from error
        self.folder = Path(model).absolute().parent

    def session(self, proto: onnx.ModelProto | None = None, *, optimized: bool = False) -> Any:
        """A session of the model, or of another one made of its parts. Raises ModelError where there is none."""
        try:
            return session(self.proto if proto is None else proto, self.folder, optimized=optimized)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # what onnxruntime raises has no base but this
            raise ModelError(f"ONNX Runtime does not take {self.name}: {' '.join(str(error).split())}") from error


def watched(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of the model that has these values as its outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy
