"""Which units of a model run as integer kernels on a backend, and why the others do not.

The answer is for the model as `WeightBias(backend=...)` would complete it; nothing is written and the model that was
passed stays as it is. Units that are quantized already are judged by the same facts as those that the rules complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import onnx

import rewriter
from rewriter import Decline, Match, ModelError, NoMatch, Rule, RuleSet
from rewriter import rule as make
from rules.activations import Uint8Activations
from rules.backends import BACKENDS, Backend
from rules.qdq_unit import WeightBias
from rules.qdq_unit import complete_patterns as complete
from rules.qdq_unit.already_quantized import is_right, quantized_weight_scale, require_weight, stands_alone
from rules.qdq_unit.rule_set import OPSETS
from rules.qdq_unit.unit import describe, input_scale, scale_repeats

CORES: dict[Any, str] = {
    complete.complete_conv: "conv",
    complete.complete_gemm: "gemm",
    complete.complete_matmul: "matmul",
    complete.complete_matmul_add: "matmul",
}
PATTERNS = {make(script, opset=OPSETS, name=script.name)(lambda m: None): core for script, core in CORES.items()}


@dataclass(frozen=True)
class Verdict:
    """A unit, named by its weighted node: whether it runs as an integer kernel, and if not, why."""

    node: str
    op: str
    integer: bool
    reason: str = ""


def for_backend(name: str, **options: Any) -> RuleSet:
    """The rule sets that complete a model for a backend, in the right order.

    `onnxruntime-x86` makes activations uint8 first; any other name is one of `rules.backends`. options: those of
    `WeightBias`. Raises ValueError for an unknown name and for options that do not fit, TypeError for unknown options.
    """
    if name == "onnxruntime-x86":
        return Uint8Activations() >> WeightBias(backend="onnxruntime", **options)
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; there are onnxruntime-x86, {', '.join(BACKENDS)}")
    return WeightBias(backend=name, **options)


def legal(model: Any, backend: str) -> list[Verdict]:
    """Every unit of a model with the verdict of a backend, in the order of the model.

    `model`: an onnx.ModelProto, an onnx_ir.Model or a path. `backend`: as for `for_backend`.
    Raises ValueError for an unknown backend, ModelError for a model that cannot be read.
    """
    if isinstance(model, (str, PathLike)):
        model = load(model)
    rules = for_backend(backend)
    facts = BACKENDS["onnxruntime" if backend == "onnxruntime-x86" else backend]
    result = rewriter.run(model, rules)
    reading = rewriter.read(result.model)
    found = {one.node: one for one in complete_units(reading, facts)}
    ops = reading.op_types()
    for declined in result.report.declined:
        op = ops.get(declined.node, "")  # an Add is judged with its MatMul
        if declined.rule in WEIGHT_RULES and declined.node not in found and op != "Add":
            found[declined.node] = Verdict(declined.node, op, False, declined.reason)
    place = {name: k for k, name in enumerate(reading.node_names())}
    return sorted(found.values(), key=lambda one: place.get(one.node, len(place)))


def load(path: str | PathLike[str]) -> onnx.ModelProto:
    """The model of a file with all its data. Raises ModelError."""
    rewriter.read(path)  # for what it says of a file that is no model
    try:
        return onnx.load(path)
    except Exception as error:  # what the protobuf parser and onnx's reading of external data raise has no common base
        raise ModelError(f"{os.fspath(path)}: {' '.join(str(error).split())}") from error


WEIGHT_RULES = frozenset(name for name, held in vars(WeightBias).items() if isinstance(held, Rule))


def complete_units(reading: rewriter.Reading, backend: Backend) -> Iterator[Verdict]:
    """Units that are quantized throughout, judged."""
    for pattern, core in PATTERNS.items():
        for m in rewriter.find(reading, pattern):
            node = m.node(core)
            reason = why_not(m, core, backend)
            yield Verdict(node.name, node.op_type, reason is None, reason or "")


def why_not(m: Match, core: str, backend: Backend) -> str | None:
    """Why a unit that is quantized throughout does not run as an integer kernel; None if it does."""
    unit = describe(m, core, complete=True)
    reason = backend.why_not(unit)
    if reason is not None:
        return reason
    try:
        scale = quantized_weight_scale(m, core)
        require_weight(m, core, backend, scale)
        if backend.float_outputs and unit.adds_float:
            return None
        if "b_q" in m.names and m["b_q"] is not None:
            x_scale = np.float32(input_scale(m))
            if backend.bias == "int8" and not stands_alone(m):
                return f"{backend.name} takes an int8 bias with a power-of-two scale"
            if backend.bias == "int32" and not is_right(m, x_scale, scale, scale_repeats(m.node(core))):
                return "the bias does not stand at x_scale * w_scale as int32"
        elif unit.bias_shape is not None and backend.bias != "float":
            return f"{backend.name} takes {backend.bias} biases, this one is float"
    except Decline as declined:
        return declined.reason
    except NoMatch:
        return "a scale or a zero point of the weight or the bias is no constant"
    return None
