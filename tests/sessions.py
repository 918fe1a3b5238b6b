"""Running models in ONNX Runtime: the judge of every test that compares before and after.

A float-weight QDQ model is quantized by ONNX Runtime itself from ORT_ENABLE_BASIC on, so the level at which
a model runs decides what it means: references are taken at ORT_DISABLE_ALL, and what fuses is read from the
model that a session at ORT_ENABLE_EXTENDED saves. One thread and the CPU provider only, so that a run gives
the same bits every time.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

Array = npt.NDArray[np.generic]
Feeds = Mapping[str, Array]
Level = Any  # ort.GraphOptimizationLevel, which has no types
DISABLE_ALL: Level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
BASIC: Level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
EXTENDED: Level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED

FUSED = {"QLinearConv": 3, "QGemm": 3, "QLinearMatMul": 3}  # integer kernels, and which input is the weight
FLOAT_OUTPUT = {"MatMulIntegerToFloat": 1}  # another, which multiplies integers but is not followed by its Q
LEFT = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # weighted ops that stayed in float


def session(
    model: onnx.ModelProto | Path,
    level: Level = DISABLE_ALL,
    save: Path | None = None,
    disabled: Sequence[str] = (),
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if save is not None:
        options.optimized_model_filepath = str(save)
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled))


def run(model: onnx.ModelProto | Path, feeds: Feeds, level: Level = DISABLE_ALL) -> list[Array]:
    return cast(list[Array], session(model, level).run(None, dict(feeds)))


def optimized(model: onnx.ModelProto | Path, level: Level = EXTENDED, disabled: Sequence[str] = ()) -> onnx.ModelProto:
    """The model as a session at this level leaves it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimized.onnx")
        session(model, level, save=path, disabled=disabled)
        return onnx.load(path)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph and of the graphs in their attributes."""
    return (node for each in graphs(graph) for node in each.node)


def op_counts(model: onnx.ModelProto) -> Counter[str]:
    """How often each op type occurs, in sub-graphs and functions too."""
    counts = Counter(node.op_type for node in nodes(model.graph))
    for function in model.functions:
        counts.update(node.op_type for node in nodes(onnx.GraphProto(node=function.node)))
    return counts


def feeds(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, Array]:
    """Random values for every input that is no initializer: what `qdq_models.build` calibrates for."""
    constants = {t.name for t in model.graph.initializer}
    return {i.name: _random(i.type.tensor_type, rng) for i in model.graph.input if i.name not in constants}


def integer_kernels(model: onnx.ModelProto, ops: Mapping[str, int] = FUSED) -> int:
    """How many of an optimized model's nodes multiply by a weight in integers: of activations none counts."""
    return len(integer_kernel_nodes(model, ops))


def integer_kernel_nodes(model: onnx.ModelProto, ops: Mapping[str, int] = FUSED) -> list[onnx.NodeProto]:
    """Those nodes."""
    constants = {tensor.name for graph in graphs(model.graph) for tensor in graph.initializer}
    return [n for n in nodes(model.graph) if n.op_type in ops and n.input[ops[n.op_type]] in constants]


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those in the attributes of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                yield from graphs(body)


def _random(type_: onnx.TypeProto.Tensor, rng: np.random.Generator) -> Array:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)
    shape = [d.dim_value or 1 for d in type_.shape.dim]
    if dtype == np.bool_:
        return np.ones(shape, np.bool_)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.normal(size=shape).astype(dtype)
