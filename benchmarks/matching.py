"""What it costs to look for patterns, and to find none: against onnxscript.rewriter, and against reading the model.

python -m benchmarks matching [--short]

The models are chains of 20 op types, the rules such that they never match (`mixed_rules`). A *sweep* asks every rule at
every node of a model that is read already; *end to end* is from ModelProto to ModelProto. The bare loop over an onnx_ir
graph that reads each node's op type and domain is the floor of anything that visits nodes in Python.
"""

from __future__ import annotations

from functools import partial

import onnx
import onnx_ir as ir
from onnxscript import rewriter as peer

import rewriter
from benchmarks import graphs, mixed_rules
from benchmarks.claims import Table
from benchmarks.timing import medians
from rewriter.engine.run import Run
from rewriter.engine.table import Table as Read
from rewriter.models.source import open_source

COUNTS = (1, 20, 100, 200)


def sweep_of(table: Read, model: onnx.ModelProto, count: int) -> Run:
    run = Run(table, next(iter(mixed_rules.ours(count).stages())), model)
    assert run.sweep() == []
    return run


def main(table: Table) -> None:
    nodes, few = (20_000, 500) if table.short else (100_000, 2_000)
    model, small = graphs.plain(nodes), graphs.plain(few)
    read = open_source(model).read()
    runs = [sweep_of(read, model, count) for count in COUNTS]
    held, held_small = ir.serde.deserialize_model(model), ir.serde.deserialize_model(small)

    def bare() -> None:
        for node in held.graph:
            node.op_type, node.domain  # noqa: B018

    table.head(f"sweep without a match, {nodes:,} nodes, us a node")
    loop, *sweeps = medians(bare, *(run.sweep for run in runs))
    table.add("bare loop over an onnx_ir graph", loop / nodes * 1e6)
    for count, sweep in zip(COUNTS, sweeps, strict=True):
        table.add(f"{count} rules", sweep / nodes * 1e6)
    table.add("200 rules / bare loop", sweeps[-1] / loop, most=1.0, reached=1.6)
    table.add("200 rules / 20 rules", sweeps[-1] / sweeps[1], most=1.2)

    table.head("sweep without a match, against onnxscript.rewriter with the same rules, per node")
    for count, sweep, wanted, reached in ((1, sweeps[0], 20, None), (100, sweeps[2], 1000, 700)):
        theirs = mixed_rules.theirs(count)
        (time,) = medians(partial(theirs.apply_to_model, held_small), runs=3)
        table.add(f"{count} rules: theirs / ours", (time / few) / (sweep / nodes), least=wanted, reached=reached)

    table.head("end to end without a match, ModelProto to ModelProto, per node")

    for count, wanted in ((1, 8), (100, 80)):
        rules, theirs = mixed_rules.ours(count), mixed_rules.theirs(count)
        ours, passed = medians(partial(rewriter.apply, model, rules), partial(graphs.there_and_back, model), runs=3)
        (time,) = medians(partial(peer.rewrite, small, theirs), runs=3)
        table.add(f"{count} rules: theirs / ours", (time / few) / (ours / nodes), least=wanted)
        table.add(f"{count} rules: onnx_ir there and back / ours", passed / ours, least=6)
