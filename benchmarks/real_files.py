"""`rules.weight_bias` on real models in memory: against onnx_ir's conversion, and a session of ONNX Runtime.

python -m benchmarks real_files

The claim: completing a model, quantization math included, takes less time than deserializing and serializing that model
with onnx_ir, and less than ONNX Runtime takes to make a session at ORT_ENABLE_BASIC, where it quantizes weights and
biases too. The files are those of `tests.real_models`; without them nothing is measured.
"""

from __future__ import annotations

from functools import partial

import onnx
import onnxruntime as ort

import rewriter
import rules
from benchmarks import graphs
from benchmarks.claims import Table
from benchmarks.timing import medians
from tests import real_models


def session(data: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def main(table: Table) -> None:
    table.head("weight_bias in memory on real files")
    for path in (row.path for row in real_models.table()):
        model = onnx.load(path)
        data = model.SerializeToString()
        rewriter.apply(model, rules.weight_bias)
        ours, through, made = medians(
            partial(rewriter.apply, model, rules.weight_bias),
            partial(graphs.there_and_back, model),
            partial(session, data),
        )
        table.add(f"{path.stem}: ms", ours * 1e3)
        table.add(f"{path.stem}: onnx_ir there and back / ours", through / ours, least=1)
        table.add(f"{path.stem}: ONNX Runtime's session / ours", made / ours, least=1)
