"""Which units ONNX Runtime runs as integer kernels, unit by unit, beside what `rules.legal` claims of each.

A session names each kernel after the node that it stands for. So what fuses is known by name, and many units can share
one model and one session.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

import rewriter
import rules
from tests import backend_units, sessions
from tests.qdq_unit import Unit

KERNELS = {**sessions.FUSED, **sessions.FLOAT_OUTPUT}
OURS_ALONE = ("WeightBiasQuantization",)
EVERYTHING = {
    "onnxruntime": rules.WeightBias(rounding="nearest"),
    "onnxruntime-x86": rules.uint8_activations >> rules.WeightBias(rounding="nearest"),
}
"""The rules of each backend, but that every unit is completed, whether it fuses or not."""


@dataclass(frozen=True)
class Judged:
    """A unit: what is claimed of it, and what becomes of it."""

    nodes: frozenset[str]
    reasons: tuple[str, ...]  # one for each verdict on it, empty where that is "integer kernel"
    fuses: bool  # once the backend's rules are through with the model
    would_fuse: bool  # if it were completed whatever the backend says
    rewritten: bool

    @property
    def is_right(self) -> bool:
        """One verdict, and the right one: nothing is done in vain, and nothing missed that would fuse."""
        claimed = self.reasons == ("",)
        return len(self.reasons) == 1 and claimed == self.fuses and (claimed or not (self.would_fuse or self.rewritten))


def judge(model: onnx.ModelProto, backend: str) -> list[Judged]:
    """All units of a model with a constant weight. Its nodes have names of their own."""
    result = rewriter.run(model, rules.for_backend(backend, rounding="nearest"))
    rewritten = {rewrite.node for rewrite in result.report.rewrites}
    verdicts = rules.legal(result.model, backend)  # those on the model as it was are the same: test_legality
    fuses = would_fuse = kernels(result.model)
    if not all(one.integer for one in verdicts):
        would_fuse = kernels(rewriter.apply(model, EVERYTHING[backend]))
    return [
        Judged(
            unit.nodes,
            tuple(one.reason for one in verdicts if one.node in unit.nodes),
            bool(unit.nodes & fuses),
            bool(unit.nodes & would_fuse),
            bool(unit.nodes & rewritten),
        )
        for unit in backend_units.units(model)
        if unit.weight is not None
    ]


def kernels(model: onnx.ModelProto) -> set[str]:
    """The nodes that became integer kernels with a constant weight."""
    found = sessions.integer_kernel_nodes(sessions.optimized(model, disabled=OURS_ALONE), KERNELS)
    names = {re.sub(r"^_inlfunc_.*_Units_", "", node.name) for node in found}
    return names | {name.removesuffix("/MatMulAddFusion") for name in names}


def merged(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """One model of several, of one opset and IR version. All their names get a number before them: `p0_`, `p1_`, ..."""
    graph, functions, opsets = onnx.GraphProto(name="merged"), list[onnx.FunctionProto](), dict[str, int]()
    for k, model in enumerate(models):
        one = numbered(model, f"p{k}_")
        for field in ("node", "initializer", "input", "output"):
            getattr(graph, field).extend(getattr(one.graph, field))
        functions.extend(one.functions)
        opsets |= {each.domain: each.version for each in one.opset_import}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=models[0].ir_version)


def numbered(model: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """The model with a prefix before every name (`onnx.compose.add_prefix` forgets what bodies read from outside)."""
    model = copy.deepcopy(model)
    for graph in sessions.graphs(model.graph):
        for named in (*graph.initializer, *graph.input, *graph.output):
            named.name = prefix + named.name
        for node in graph.node:
            node.input[:] = [name and prefix + name for name in node.input]
            node.output[:] = [name and prefix + name for name in node.output]
    for function in model.functions:
        function.name = prefix + function.name
    for node in (*sessions.nodes(model.graph), *(node for function in model.functions for node in function.node)):
        node.name = prefix + node.name
        node.op_type = prefix + node.op_type if node.domain == "local" else node.op_type
    return model


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with names for the nodes that have none."""
    for node in sessions.nodes(model.graph):
        node.name = node.name or f"node of {node.output[0]}"
    return model


def loads_optimized(unit: Unit) -> bool:
    """Whether a session at ORT_ENABLE_EXTENDED can load such a model once it is quantized.

    Where it cannot, the fault is its own. It looks for the weight of a MatMul or Gemm in the graph of that node only
    ("Missing required weight"). And from opset 21 on it makes uint8 of int8 activations, but not of those before
    the Reshape that it puts around a MatMul of rank 3 ("output_dtype INT8 does not match").
    """
    if unit.place == "then, constants outside" and not unit.convolves:
        return False
    reshaped = unit.op == "MatMulAdd" and unit.rank > 2
    return not (reshaped and unit.opset >= 21 and "int8" in (unit.x_type, unit.y_type))
