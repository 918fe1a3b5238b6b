"""What quantization did to the output of each unit, measured in ONNX Runtime beside the bounds that are proved.

Each unit runs alone, before and after, on the inputs that it has in the model from before: so the difference is its
own, and not what the units before it passed on. Both run without optimization, since ONNX Runtime would else quantize
the float one by itself. Measuring needs onnxruntime, which nothing else here does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rewriter import Result
from rules.qdq_unit.unit_report import Measured, UnitReport, unit_reports
from rules.quantization import decibels
from rules.running import Feeds, as_proto, session, watched


def measure(before: Any, result: Result[Any], inputs: Iterable[Feeds]) -> list[UnitReport]:
    """The reports of the units that a run completed, with what was measured.

    before: the model that was passed to `rewriter.run`, an onnx.ModelProto, an onnx_ir.Model or a path. result: what it
    gave. inputs: feeds of that model, by the names of its inputs.

    A unit in the body of an If, Loop or Scan, or in a function, is not measured: its inputs cannot be seen.
    Raises ModuleNotFoundError without onnxruntime, and what that raises for a model that it cannot run.
    """
    reports = unit_reports(result.report)
    old, new = Graph(as_proto(before)), Graph(as_proto(result.model))
    pairs = {
        one.output: Pair(old, new, one) for one in reports if one.output in old.producer and one.output in new.producer
    }
    if not pairs:
        return reports
    seen = list(dict.fromkeys(name for pair in pairs.values() for name in pair.reads if name in old.producer))
    whole = session(watched(old.model, seen))
    for feeds in inputs:
        values = {**feeds, **dict(zip(seen, whole.run(seen, dict(feeds)), strict=True))}
        for pair in pairs.values():
            pair.run(values)
    return [replace(one, measured=pairs[one.output].measured) if one.output in pairs else one for one in reports]


class Graph:
    """The main graph of a model: who makes which value, and what is constant."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.producer = {name: node for node in model.graph.node for name in node.output if name}
        given = {i.name for i in model.graph.input} if model.ir_version >= 4 else set()
        self.stored = {t.name: t for t in model.graph.initializer if t.name not in given}

    def unit(self, output: str, op: str) -> Part:
        """The unit that gives a value: a node of this op type, or one with an Add behind it."""
        nodes = [self.producer[output]]
        while nodes[-1].op_type != op:
            makers = (self.producer.get(name) for name in nodes[-1].input)
            nodes.append(next(one for one in makers if one is not None and one.op_type == op))
        x, own = nodes[-1].input[0], {name for node in nodes for name in node.output}
        unit = Part(self.model, output, x)
        for node in reversed(nodes):
            for name in node.input:
                if name == x or (name and name not in own and not self.constant(name, unit)):
                    unit.reads.setdefault(name)
            unit.nodes.append(node)
        return unit

    def constant(self, name: str, unit: Part) -> bool:
        """Whether a value is computed from constants alone; if so, the unit gets what computes it."""
        if name in self.stored:
            unit.constants[name] = self.stored[name]
            return True
        node = self.producer.get(name)
        if node is None or not all(self.constant(each, unit) for each in node.input if each):
            return False
        if all(node is not one for one in unit.nodes):
            unit.nodes.append(node)
        return True


class Part:
    """A unit cut out of a model, which runs by itself. reads: the values that it is fed, x first."""

    def __init__(self, model: onnx.ModelProto, output: str, x: str) -> None:
        self.model, self.output, self.x = model, output, x
        self.reads: dict[str, None] = {x: None}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.session: Any = None

    def run(self, values: Feeds) -> np.ndarray:
        """Its output, for the values that it reads."""
        if self.session is None:
            kinds = {name: helper.np_dtype_to_tensor_dtype(values[name].dtype) for name in self.reads}
            inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
            end = helper.make_tensor_value_info(self.output, kinds[self.x], None)
            model = onnx.ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
            model.functions.extend(self.model.functions)
            model.graph.CopyFrom(helper.make_graph(self.nodes, "unit", inputs, [end], list(self.constants.values())))
            self.session = session(model)
        found: np.ndarray = self.session.run(None, {name: values[name] for name in self.reads})[0]
        return found


class Pair:
    """A unit before and after, and what their outputs came to over all runs."""

    def __init__(self, old: Graph, new: Graph, report: UnitReport) -> None:
        self.before, self.after = old.unit(report.output, report.op), new.unit(report.output, report.op)
        self.error = self.signal = self.noise = 0.0
        self.reads = dict.fromkeys([*self.before.reads, *(name for name in self.after.reads if name != self.after.x)])

    def run(self, values: Feeds) -> None:
        y = self.before.run(values).astype(np.float64)
        error = y - self.after.run({**values, self.after.x: values[self.before.x]})
        self.error = max(self.error, float(np.abs(error).max(initial=0.0)))
        self.signal += float(np.square(y).sum())
        self.noise += float(np.square(error).sum())

    @property
    def measured(self) -> Measured:
        return Measured(self.error, float(decibels(self.signal, self.noise)))
