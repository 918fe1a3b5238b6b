"""How time grows with the model: as a power of the number of nodes, which is to be at most 1.1.

python -m benchmarks scaling [--short]

The exponent is that of the line through all sizes on paper with logarithmic axes. Cases: nothing matches; every tenth
node is rewritten; values with 2,000 consumers each, all of them rewritten; a pattern with two outputs; a pattern of 400
nodes, which no recursion limit stops (it fits at every second node of its chain, so that each node is looked at 200
times; this case goes to 100,000 nodes).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from onnxscript import opset17 as op
from onnxscript import script

import rewriter
from benchmarks import graphs, mixed_rules
from benchmarks.claims import Table
from benchmarks.rewriting import TWICE
from benchmarks.timing import seconds
from rewriter import RuleSet
from rewriter.pattern import Tensor

EXPONENT = 1.1


@script(default_opset=op)
def two_of_one(x: Tensor) -> tuple[Tensor, Tensor]:
    y = op.Neg(x)
    return op.Tanh(y), op.Sigmoid(y)


@script(default_opset=op)
def two_others(x: Tensor) -> tuple[Tensor, Tensor]:
    y = op.Neg(x)
    return op.Tanh(y), op.Exp(y)


def forks(count: int) -> onnx.ModelProto:
    """Neg with a Tanh and a Sigmoid on it, one after the other; an Add joins them."""
    nodes, last = [], "x"
    for number in range(count // 4):
        nodes += [
            graphs.node("Neg", [last], f"n{number}"),
            graphs.node("Tanh", [f"n{number}"], f"t{number}"),
            graphs.node("Sigmoid", [f"n{number}"], f"s{number}"),
            graphs.node("Add", [f"t{number}", f"s{number}"], last := f"a{number}"),
        ]
    return graphs.model_of(nodes, [], [last])


def long_rule(length: int) -> RuleSet:
    """A pattern of so many nodes, alternately Neg and Abs."""
    lines = "".join(f"    x{k + 1} = op.{'Abs' if k % 2 else 'Neg'}(x{k})\n" for k in range(length))
    made = mixed_rules.functions(
        "from onnxscript import opset17 as op, script\nfrom rewriter.pattern import Tensor\n"
        f"@script(default_opset=op)\ndef source(x0: Tensor) -> Tensor:\n{lines}    return x{length}\n"
        "@script(default_opset=op)\ndef target(x0: Tensor) -> Tensor:\n    return op.Identity(x0)\n"
    )
    return rewriter.rewrite(made["source"], made["target"])


def long_chain(count: int) -> onnx.ModelProto:
    return graphs.chain(name for _ in range(count // 2) for name in ("Neg", "Abs"))


def exponent(sizes: list[int], times: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def main(table: Table) -> None:
    sizes = [1_000, 10_000] if table.short else [1_000, 10_000, 100_000, 1_000_000]
    cases: list[tuple[str, Callable[[int], onnx.ModelProto], RuleSet]] = [
        ("20 rules, no match", graphs.plain, mixed_rules.ours(20)),
        ("every tenth node rewritten", graphs.pairs, TWICE),
        ("2,000 consumers on a value, rewritten", graphs.hub, TWICE),
        ("a pattern with two outputs, rewritten", forks, rewriter.rewrite(two_of_one, two_others)),
        ("a pattern of 400 nodes, rewritten", long_chain, long_rule(400)),
    ]
    table.head(f"end to end from {sizes[0]:,} to {sizes[-1]:,} nodes: time as a power of the nodes")
    for name, make, rules in cases:
        times = []
        reached = [size for size in sizes if size <= 100_000 or "400" not in name]
        for size in reached:
            model = make(size)
            work = partial(rewriter.apply, model, rules)
            times.append(min(seconds(work) for _ in range(3 if size <= 10_000 else 1)))
            del model
        table.add(f"{name}: us a node at the largest", times[-1] / reached[-1] * 1e6)
        table.add(f"{name}: exponent", exponent(reached, times), most=EXPONENT)
