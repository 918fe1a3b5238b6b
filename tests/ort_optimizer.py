"""Runs one optimizer of ONNX Runtime alone, to see what it makes of a model.

A session at ORT_ENABLE_BASIC does much more than quantize weights: it fuses, moves and renames, so that what
one optimizer did can no longer be told. ONNX Runtime has no "only this one", just a list of those to leave
out, whose names change between releases. At its most verbose a session logs the name of every optimizer it
applies, so the list is asked of the installed release: a session over an empty model, in a process of its
own, because the log is written by C++ to the process' stderr.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import onnxruntime

_LIST = """
import onnx, onnxruntime
from onnx import TensorProto, helper
value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
options = onnxruntime.SessionOptions()
options.log_severity_level = 0
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
"""


@functools.cache
def optimizer_names() -> tuple[str, ...]:
    """The names of all optimizers that the installed ONNX Runtime applies on the CPU provider, sorted.

    The rule-based ones are within `Level1_RuleBasedTransformer` and its like, which can be left out as a
    whole.
    """
    log = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, text=True, check=True).stderr
    names = sorted(set(re.findall(r"Applying graph transformer (\S+) on step", log)))
    if "WeightBiasQuantization" not in names:
        raise RuntimeError("this ONNX Runtime does not log its optimizers the way this helper reads")
    return tuple(names)


def optimize_with_only(model: onnx.ModelProto, *keep: str) -> onnx.ModelProto:
    """The model as ONNX Runtime saves it after the optimizers `keep` up to ORT_ENABLE_BASIC, and no others.

    Two things happen regardless: unused initializers go, and a DequantizeLinear with several consumers is
    duplicated for each (EnsureUniqueDQForNodeUnit, which cannot be switched off). Nodes without a name get
    none.
    """
    missing = set(keep) - set(optimizer_names())
    if missing:
        raise ValueError(f"no such optimizer: {sorted(missing)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(saved)
        onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[name for name in optimizer_names() if name not in keep],
        )
        return onnx.load(saved)


def weight_bias_quantization(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as ONNX Runtime saves it after WeightBiasQuantization and the folding of what it makes.

    Without folding, the bias would stay a Mul, Div, Round and Cast, and the weight a QuantizeLinear.
    """
    return optimize_with_only(model, "WeightBiasQuantization", "ConstantFolding")
