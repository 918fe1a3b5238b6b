"""Small models for tests of how models are read and written, and helpers that look at the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper, parser

CHAIN = """<ir_version: 10, opset_import: ["" : 20, "custom" : 1]>
chain (float[2,3] x, float[3] given) => (float[2,3] y, float[2,3] z)
<float[2,3] a, float[3] given = {1, 2, 3}, float[1] two = {2}, float stale> {
    [first] a = Relu(x)
    [second] b = Relu(a)
    [third] y = Mul(b, two)
    [fourth] z = Add(y, given)
}"""

NESTED = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
nested (float[2] x, bool c, int64 n, float[4,2] xs) => (float[2] y, float[2] p, float[4,2] q, float[2] r)
<float[1] two = {2}> {
    h = Abs(x)
    y = If (c) <
        then_branch = then () => (float[2] t) { t0 = Relu(h) t1 = Relu(t0) t = Mul(t1, two) },
        else_branch = other () => (float[2] e) {
            e0 = Neg(h) e1 = Neg(e0)
            e = If (c) <
                then_branch = deep () => (float[2] d) <float[1] four = {4}>
                { d0 = Mul(e1, four) d = Relu(d0) },
                else_branch = bare () => (float[2] i) { i = Identity(e1) }
            >
        }
    >
    p = Loop (n, c, x) <
        body = step (int64 k, bool go, float[2] s) => (bool on, float[2] v)
        { on = Identity(go) v0 = Relu(s) v1 = Relu(v0) v = Add(v1, two) }
    >
    s, q = Scan <num_scan_inputs = 1,
        body = row (float[2] s_in, float[2] e_in) => (float[2] s_out, float[2] w)
        { s_out = Add(s_in, e_in) w0 = Relu(s_out) w1 = Relu(w0) w = Mul(w1, two) }
    > (x, xs)
    r = local.twice(x)
}
<domain: "local", opset_import: ["" : 20]>
twice (a) => (b) {
    two = Constant <value = float[1] {2}> ()
    f0 = Relu(a)
    f1 = Relu(f0)
    b = Mul(f1, two)
}"""

OLD = """<ir_version: 3, opset_import: ["" : 9]>
old (float[2] x, float[1] two) => (float[2] y) <float[1] two = {2}> {
    y = Mul(x, two)
}"""

UNSORTED = """<ir_version: 10, opset_import: ["" : 20]>
unsorted (float[2] x) => (float[2] y) {
    y = Relu(b)
    b = Relu(a)
    a = Neg(x)
}"""

INLINED = """<ir_version: 10, opset_import: ["" : 17]>
inlined (float[2] x, bool d) => (float[2] y, float[2] z) <bool c = {1}, float[1] k = {7}> {
    n = Neg(x)
    y = If (c) <
        then_branch = then () => (float[2] o) <float[1] k = {3}, float[1] u = {9}> {
            m = Add(n, k)
            w = Mul(m, u)
            v = If (d) <
                then_branch = deep () => (float[2] p) { p0 = Relu(w) p1 = Relu(p0) p = Add(p1, u) },
                else_branch = flat () => (float[2] q) { q = Relu(w) }
            >
            o = Abs(v)
        },
        else_branch = other () => (float[2] e) { e0 = Relu(n) e1 = Relu(e0) e = Identity(e1) }
    >
    z = Mul(y, k)
}"""

FUNCTION = """<ir_version: 10, opset_import: ["" : 17, "l" : 1]>
outer (float[2] x) => (float[2] y) { y = l.f <slope = 0.5> (x) }
<domain: "l", opset_import: ["" : 17]>
f <slope> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }"""

TEXTS = {"chain": CHAIN, "nested": NESTED, "old": OLD, "unsorted": UNSORTED}


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def unknown_field(message: Any, number: int) -> None:
    """Give a message a field that this version of ONNX does not know: a varint 1."""
    key, data = number << 3, bytearray()
    while key > 127:
        data.append(key & 127 | 128)
        key >>= 7
    message.MergeFromString(bytes([*data, key, 1]))


def decorated() -> onnx.ModelProto:
    """CHAIN with everything in it that a rewriter is tempted to lose."""
    model = parse(CHAIN)
    graph = model.graph
    model.doc_string, model.producer_name, model.model_version = "a model", "somebody", 7
    for key in ("k", "k", "l"):
        model.metadata_props.add(key=key, value=key * 2)
        graph.metadata_props.add(key=key, value=key)
        graph.node[3].metadata_props.add(key=key, value=key)
    graph.node[1].doc_string = "kept"
    graph.node[1].metadata_props.add(key="namespace", value="block")
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "sparse_indices"))
    sparse.dims.append(4)
    graph.value_info.append(helper.make_tensor_value_info("nobody", TensorProto.FLOAT, ["n", None]))
    note = graph.quantization_annotation.add(tensor_name="b")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="stale")
    training = model.training_info.add()
    training.algorithm.name = "train"
    training.algorithm.node.append(helper.make_node("Relu", ["x"], ["train_a"]))
    training.algorithm.node.append(helper.make_node("Relu", ["train_a"], ["train_b"]))
    model.opset_import.add(domain="custom", version=1)
    function = model.functions.add(name="unused", domain="custom")
    function.opset_import.add(domain="", version=20)
    function.input.append("fx")
    function.output.append("fy")
    function.node.append(helper.make_node("Abs", ["fx"], ["fy"], doc_string="fn"))
    function.value_info.append(helper.make_tensor_value_info("fy", TensorProto.FLOAT, [2]))
    for message in (model, graph, graph.node[1], graph.node[3], graph.initializer[0], function):
        unknown_field(message, 1000)
    return model


def as_file(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def all_uses(model: ir.Model) -> list[Any]:
    graphs = [model.graph, *model.graph.subgraphs()]
    return [[tuple(v.uses()) for v in node.outputs] for graph in graphs for node in graph]


def check_uses(model: ir.Model) -> None:
    """Everything that a clone's nodes and values refer to lies in the clone."""
    roots = [model.graph, *(f.graph for f in model.functions.values())]
    graphs = [graph for root in roots for graph in (root, *root.subgraphs())]
    nodes = {id(node) for graph in graphs for node in graph}
    owned = {id(v) for graph in graphs for v in (*graph.inputs, *graph.initializers.values())}
    owned |= {id(v) for graph in graphs for node in graph for v in node.outputs}
    for graph in graphs:
        assert all(id(value) in owned for value in graph.outputs)
        for node in graph:
            assert node.graph is graph
            assert all(value is None or id(value) in owned for value in node.inputs)
            for value in node.outputs:
                assert all(id(use.node) in nodes for use in value.uses())


def tensor_names(model: ir.Model) -> list[str | None]:
    tensors = (value.const_value for value in model.graph.initializers.values())
    return [None if tensor is None else tensor.name for tensor in tensors]
