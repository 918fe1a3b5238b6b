"""The QDQ units of a model, read for a judge: what is in the file, with every constant's value.

A judge of the rules must not share their reading of a model, so this one is written from the ONNX standard
alone and knows nothing of the engine. It is slow and simple: names are resolved through dictionaries, and a
constant is an initializer (one that the caller can override is none), a Constant node, or what the few ops of
`_FOLD` make of those. Graphs inside of nodes and model-local functions are read too.

A unit is DQ -> Conv | ConvTranspose | Gemm | MatMul [-> Add of a constant] -> [Relu | Clip]* -> Q, in which
every value between the operator and the Q has that one consumer and is no graph output.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[np.generic]
OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
POST = ("Relu", "Clip")


@dataclass(frozen=True)
class Linear:
    """A QuantizeLinear or DequantizeLinear: its parameters, and its codes where those are constant."""

    dtype: str  # of the integers
    codes: Array | None
    scale: Array | None  # None: not constant
    zero_point: Array | None
    explicit: bool  # it has a zero point
    axis: int | None  # not negative where the codes are known; None: one scale for all
    block_size: int
    domain: str
    output_uses: int
    codes_uses: int
    source: str  # what gives its first input: an op type, "input" or "initializer"


Operand = Linear | Array | None  # None: not constant


@dataclass(frozen=True)
class Post:
    op: str
    low: float  # Clip's bounds; infinite where it has none, NaN where they are not constant
    high: float


@dataclass(frozen=True)
class Unit:
    name: str  # of the operator's output
    nodes: frozenset[str]  # names of the operator and of its Add
    op: str
    opset: int
    alpha: float
    beta: float
    trans_b: bool
    x: Linear
    weight: Operand
    has_bias: bool
    bias: Operand
    post: tuple[Post, ...]
    y: Linear
    following: tuple[Linear, ...]  # the DQ after its Q
    q_is_output: bool  # what its Q gives is a graph output

    @property
    def quantized(self) -> bool:
        return isinstance(self.weight, Linear)

    @property
    def output_axis(self) -> int:
        """The weight's axis of output channels."""
        return {"Conv": 0, "Gemm": 0 if self.trans_b else 1}.get(self.op, 1)


def units(model: onnx.ModelProto) -> list[Unit]:
    """All units of a model, whether their weights are quantized or not."""
    opsets = {each.domain: each.version for each in model.opset_import}
    found = list(_Reader(model.graph, {}, opsets, model.ir_version).all())
    typed = {info.name: info.type for info in model.graph.input}
    for function in model.functions:
        body = onnx.GraphProto(node=function.node)
        calls = [n for n in model.graph.node if (n.domain, n.op_type) == (function.domain, function.name)]
        passed = dict(zip(function.input, calls[0].input, strict=False)) if calls else {}
        body.output.extend(onnx.ValueInfoProto(name=o) for o in function.output)
        body.input.extend(onnx.ValueInfoProto(name=i, type=typed.get(passed.get(i, ""))) for i in function.input)
        versions = {each.domain: each.version for each in function.opset_import}
        found += _Reader(body, {}, versions, model.ir_version).all()
    return found


Source = onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto


class _Reader:
    """One graph, within those around it."""

    def __init__(self, graph: onnx.GraphProto, outer: Mapping[str, Source], opsets: Mapping[str, int], ir: int) -> None:
        self.graph, self.opsets, self.ir = graph, opsets, ir
        self.scope: dict[str, Source] = dict(outer)
        self.scope.update((t.name, t) for t in graph.initializer)
        if ir >= 4:  # before, every initializer had to be an input
            self.scope.update((i.name, i) for i in graph.input)
        else:
            self.scope.update((i.name, i) for i in graph.input if i.name not in self.scope)
        self.scope.update((o, node) for node in graph.node for o in node.output if o)
        self.outputs = {o.name for o in graph.output}
        self.uses = Counter(name for node in _all_nodes(graph) for name in node.input)
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in set(node.input):
                self.users.setdefault(name, []).append(node)

    def all(self) -> Iterator[Unit]:
        for node in self.graph.node:
            if node.op_type in OPS and node.domain == "":
                unit = self.unit(node)
                if unit is not None:
                    yield unit
            for attribute in node.attribute:
                for body in [attribute.g, *attribute.graphs]:
                    if body.node:
                        yield from _Reader(body, self.scope, self.opsets, self.ir).all()

    def unit(self, core: onnx.NodeProto) -> Unit | None:
        x = self.linear(core.input[0])
        if x is None or x.codes is not None:
            return None
        nodes, has_bias, bias = {core.name}, len(core.input) > 2 and core.input[2] != "", None
        if has_bias:
            bias = self.operand(core.input[2])
        last = self.sole_user(core.output[0])
        if core.op_type == "MatMul" and last is not None and last.op_type == "Add":
            other = last.input[int(last.input[0] == core.output[0])]
            bias, has_bias = self.operand(other), True
            if bias is None:
                return None  # an Add of two activations
            nodes.add(last.name)
            last = self.sole_user(last.output[0])
        post = []
        while last is not None and last.op_type in POST:
            post.append(self.post(last))
            last = self.sole_user(last.output[0])
        if last is None or last.op_type != "QuantizeLinear":
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in core.attribute}
        users = self.users.get(last.output[0], [])
        after = [self.linear(each.output[0]) for each in users if each.op_type == "DequantizeLinear"]
        return Unit(
            name=core.output[0],
            nodes=frozenset(nodes),
            op=core.op_type,
            opset=self.opsets.get("", 0),
            alpha=attributes.get("alpha", 1.0),
            beta=attributes.get("beta", 1.0),
            trans_b=bool(attributes.get("transB", 0)),
            x=x,
            weight=self.operand(core.input[1]),
            has_bias=has_bias,
            bias=bias,
            post=tuple(post),
            y=self.parameters(last),
            following=tuple(each for each in after if each is not None),
            q_is_output=last.output[0] in self.outputs,
        )

    def sole_user(self, name: str) -> onnx.NodeProto | None:
        """The one consumer of a value that leaves the graph nowhere."""
        users = self.users.get(name, [])
        return users[0] if self.uses[name] == 1 and len(users) == 1 and name not in self.outputs else None

    def operand(self, name: str) -> Operand:
        linear = self.linear(name)
        if linear is not None:
            return linear if linear.codes is not None else None
        return self.constant(name)

    def linear(self, name: str) -> Linear | None:
        """The DequantizeLinear that gives this value."""
        node = self.scope.get(name)
        if isinstance(node, onnx.NodeProto) and node.op_type == "DequantizeLinear":
            return self.parameters(node)
        return None

    def parameters(self, node: onnx.NodeProto) -> Linear:
        scale, zero_point = (self.constant(name) for name in [*node.input, ""][1:3])
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        codes = self.constant(node.input[0]) if node.op_type == "DequantizeLinear" else None
        axis = attributes.get("axis", 1)
        if codes is not None and axis < 0:
            axis += codes.ndim
        if codes is not None:
            dtype = codes.dtype.name
        elif zero_point is not None:
            dtype = zero_point.dtype.name
        else:
            dtype = self.integer_type(node, attributes)
        source = self.scope.get(node.input[0])
        return Linear(
            dtype=dtype,
            codes=codes,
            scale=scale,
            zero_point=zero_point,
            explicit=len(node.input) > 2 and node.input[2] != "",
            axis=None if scale is not None and scale.ndim == 0 else axis,
            block_size=attributes.get("block_size", 0),
            domain=node.domain,
            output_uses=self.uses[node.output[0]],
            codes_uses=self.uses[node.input[0]],
            source=source.op_type
            if isinstance(source, onnx.NodeProto)
            else "initializer"
            if isinstance(source, onnx.TensorProto)
            else "input",
        )

    def integer_type(self, node: onnx.NodeProto, attributes: Mapping[str, int]) -> str:
        """Of a Q or DQ without a zero point."""
        if node.op_type == "QuantizeLinear":
            wanted = attributes.get("output_dtype", 0)
            return helper.tensor_dtype_to_np_dtype(wanted).name if wanted else "uint8"
        source = self.scope.get(node.input[0])
        if isinstance(source, onnx.NodeProto) and source.op_type == "QuantizeLinear":
            return self.parameters(source).dtype
        if isinstance(source, onnx.ValueInfoProto) and source.type.tensor_type.elem_type:
            return helper.tensor_dtype_to_np_dtype(source.type.tensor_type.elem_type).name
        return "unknown"

    def post(self, node: onnx.NodeProto) -> Post:
        if node.op_type == "Relu":
            return Post("Relu", 0.0, np.inf)
        attributes = {a.name: a.f for a in node.attribute}
        low, high = (self.bound(node, i, open_) for i, open_ in ((1, -np.inf), (2, np.inf)))
        return Post("Clip", attributes.get("min", low), attributes.get("max", high))

    def bound(self, node: onnx.NodeProto, index: int, open_: float) -> float:
        name = [*node.input, "", ""][index]
        value = self.constant(name)
        return open_ if not name else float("nan") if value is None else float(value.item())

    def constant(self, name: str) -> Array | None:
        source = self.scope.get(name)
        if isinstance(source, onnx.TensorProto):
            return numpy_helper.to_array(source)
        if not isinstance(source, onnx.NodeProto):
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in source.attribute}
        if source.op_type == "Constant" and "value" in attributes:
            return numpy_helper.to_array(attributes["value"])
        if source.op_type not in _FOLD:
            return None
        inputs = [self.constant(each) for each in source.input]
        known = [each for each in inputs if each is not None]
        return _FOLD[source.op_type](known, attributes) if len(known) == len(inputs) else None


def _reshape(inputs: Sequence[Array], attributes: Mapping[str, object]) -> Array:
    wanted = [inputs[0].shape[i] if n == 0 else int(n) for i, n in enumerate(inputs[1].tolist())]
    return inputs[0].reshape(wanted)


def _cast(inputs: Sequence[Array], attributes: Mapping[str, int]) -> Array:
    return inputs[0].astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))


_FOLD: Mapping[str, Callable[..., Array]] = {
    "Identity": lambda inputs, attributes: inputs[0],
    "Transpose": lambda inputs, attributes: np.transpose(inputs[0], attributes.get("perm")),
    "Reshape": _reshape,
    "Cast": _cast,
}


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                yield from _all_nodes(body)
