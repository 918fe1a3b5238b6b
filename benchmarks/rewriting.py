"""What it costs to rewrite: against a loop written by hand, onnxscript.rewriter, onnx_ir's conversion, ONNX Runtime.

python -m benchmarks rewriting [--short]

10,000 Conv units of small weights become full QDQ units. The loop written by hand does just that and knows nothing
else: it finds the units by dictionaries, appends nodes and initializers, and rewires the inputs, in place. All three
call the same quantization, whose time is taken off where the engines are compared with each other.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnxscript import opset17 as op
from onnxscript import rewriter as peer
from onnxscript import script
from onnxscript.rewriter import pattern

import rewriter
import rules.quantization as qm
from benchmarks import graphs
from benchmarks.claims import Table
from benchmarks.timing import medians
from rewriter import Match, NoMatch, rule
from rewriter.pattern import Const, Tensor
from tests.rewriter import small_rules

SCHEME = qm.Scheme(search="minmax", rounding="nearest")


def quantized(w: np.ndarray, b: np.ndarray, x_scale: np.ndarray) -> tuple[np.ndarray, ...]:
    """The callback of all three: codes and scale of the weight, codes and scale of the bias, zero points."""
    unit = qm.quantize_unit(w, b, x_scale, axis=0, scheme=SCHEME)
    assert unit.bias is not None
    return (
        unit.weight.codes, unit.weight.scale, unit.weight.zero_point,
        unit.bias.codes, unit.bias.scale, unit.bias.zero_point,
    )  # fmt: skip


# -- by hand ---------------------------------------------------------------------------------------


def by_hand(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Conv" and producers[node.input[0]].op_type == "DequantizeLinear":
            scale = numpy_helper.to_array(tensors[producers[node.input[0]].input[1]])
            weight, bias = (numpy_helper.to_array(tensors[name]) for name in node.input[1:])
            made = quantized(weight, bias, scale)
            for place, values in ((1, made[:3]), (2, made[3:])):
                old = node.input[place]
                names = [f"{old}_quantized", f"{old}_scale", f"{old}_zero_point"]
                for name, value in zip(names, values, strict=True):
                    graph.initializer.append(numpy_helper.from_array(value, name))
                dq = onnx.NodeProto(op_type="DequantizeLinear", input=names, output=[f"{old}_dq"], name=f"{old}_dq")
                dq.attribute.add(name="axis", i=0, type=onnx.AttributeProto.INT)
                nodes.append(dq)
                node.input[place] = f"{old}_dq"
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return model


# -- this engine -----------------------------------------------------------------------------------


@script(default_opset=op)
def float_unit(
    x_q: Tensor,
    x_scale: Annotated[Tensor, Const],
    x_zp: Tensor,
    w: Annotated[Tensor, Const],
    b: Annotated[Tensor, Const],
) -> Tensor:
    x = op.DequantizeLinear(x_q, x_scale, x_zp)
    y = op.Conv(x, w, b)
    return y


@script(default_opset=op)
def quantized_unit(
    x_q: Tensor,
    x_scale: Tensor,
    x_zp: Tensor,
    w_quantized: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    b_quantized: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
) -> Tensor:
    x = op.DequantizeLinear(x_q, x_scale, x_zp)
    w_dq = op.DequantizeLinear(w_quantized, w_scale, w_zero_point, axis=0)
    b_dq = op.DequantizeLinear(b_quantized, b_scale, b_zero_point, axis=0)
    y = op.Conv(x, w_dq, b_dq)
    return y


NAMES = ("w_quantized", "w_scale", "w_zero_point", "b_quantized", "b_scale", "b_zero_point")


@rule(float_unit, quantized_unit)
def complete(m: Match) -> dict[str, Any]:
    if m.value("w").producer_type:
        raise NoMatch  # a constant, but quantized already
    return dict(zip(NAMES, quantized(m.array("w"), m.array("b"), m.array("x_scale")), strict=True))


# -- onnxscript.rewriter ---------------------------------------------------------------------------


def peer_source(op: Any, x_q: Any, x_scale: Any, x_zp: Any, w: Any, b: Any) -> Any:
    return op.Conv(op.DequantizeLinear(x_q, x_scale, x_zp), w, b)


def peer_target(op: Any, x_q: Any, x_scale: Any, x_zp: Any, w: Any, b: Any) -> Any:
    made = quantized(*(value.const_value.numpy() for value in (w, b, x_scale)))
    held = [op.initializer(ir.tensor(value), f"{w.name}_{k}") for k, value in enumerate(made)]
    x = op.DequantizeLinear(x_q, x_scale, x_zp)
    return op.Conv(x, op.DequantizeLinear(*held[:3], axis=0), op.DequantizeLinear(*held[3:], axis=0))


def is_float(context: Any, w: Any, b: Any, **_: Any) -> bool:
    return all(value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT for value in (w, b))


def peer_rules() -> Any:
    return pattern.RewriteRuleSet([pattern.RewriteRule(peer_source, peer_target, is_float)])


# -- two Neg in a row ------------------------------------------------------------------------------


TWICE = rewriter.rewrite(small_rules.negated_twice, small_rules.kept)


def callbacks(model: onnx.ModelProto) -> None:
    """The quantization of all units alone."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Conv":
            quantized(tensors[node.input[1]], tensors[node.input[2]], tensors["scale"])


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def main(table: Table) -> None:
    count, few = (500, 100) if table.short else (10_000, 500)
    model, small = graphs.units(count), graphs.units(few)
    done = rewriter.run(model, complete)
    assert len(done.report.rewrites) == count
    rules = peer_rules()
    changed = peer.rewrite(copy_of(small), rules)
    assert sum(node.op_type == "DequantizeLinear" for node in changed.graph.node) == 3 * few + 1

    table.head(f"{count:,} Conv units, ModelProto to ModelProto, ms a unit")
    ours, hand, copied, alone = medians(
        lambda: rewriter.apply(model, complete),
        lambda: by_hand(copy_of(model)),
        lambda: copy_of(model),
        lambda: callbacks(model),
        runs=3,
    )
    theirs, alone_small = medians(lambda: peer.rewrite(small, rules), lambda: callbacks(small), runs=3)
    hand -= copied  # it edits in place: the copy is the benchmark's
    per = 1e3 / count
    table.add("the quantization alone", alone * per)
    table.add("ours", ours * per)
    table.add("by hand", hand * per)
    table.add("onnxscript.rewriter", theirs / few * 1e3)
    table.add("ours / by hand", ours / hand, most=1.5, reached=2.0)
    without = (theirs - alone_small) / few / ((ours - alone) / count)
    table.add("theirs / ours, the quantization taken off both", without, least=5, reached=2.0)

    nodes = 10_000 if table.short else 100_000
    cheap = graphs.pairs(nodes)
    table.head(f"{nodes // 10:,} cheap rewrites (two Neg in a row) in {nodes:,} nodes, end to end")
    assert len(rewriter.run(cheap, TWICE).report.rewrites) >= nodes // 10 - 1
    ours, through = medians(
        lambda: rewriter.apply(cheap, TWICE),
        lambda: graphs.there_and_back(cheap),
        runs=3,
    )
    table.add("onnx_ir there and back / ours", through / ours, least=3, reached=1.6)
