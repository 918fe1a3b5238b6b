"""ModelProto as a source: how the protobuf messages are shown to the reader, and read behind the table's
handles.

Nothing is converted and nothing is copied: a node's handle is its NodeProto, an initializer's its
TensorProto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from rewriter.engine.held import tensor_of
from rewriter.engine.scope import AttributeReference, Scope, Shape, ValueType
from rewriter.engine.table import Table
from rewriter.errors import ModelError
from rewriter.models.reader import fill_table
from rewriter.schemas import op_key

TENSOR = AttributeProto.TENSOR


def attribute_value(proto: AttributeProto) -> Any:
    """An AttributeProto as a Python value; tensors as ir.TensorProtocol; other messages as they are."""
    if proto.ref_attr_name:
        return AttributeReference(proto.ref_attr_name, proto.type)
    kind = proto.type
    if kind == AttributeProto.INT:
        return proto.i
    if kind == AttributeProto.FLOAT:
        return proto.f
    if kind == AttributeProto.STRING:
        return proto.s.decode("utf-8", "surrogateescape")
    if kind == AttributeProto.INTS:
        return list(proto.ints)
    if kind == AttributeProto.FLOATS:
        return list(proto.floats)
    if kind == AttributeProto.STRINGS:
        return [s.decode("utf-8", "surrogateescape") for s in proto.strings]
    if kind == AttributeProto.TENSOR:
        return ir.serde.TensorProtoTensor(proto.t)
    if kind == AttributeProto.GRAPH:
        return proto.g
    return onnx.helper.get_attribute_value(proto) if kind else None


def value_type(proto: onnx.TypeProto) -> ValueType | None:
    """The tensor type that a TypeProto states, None where it states none."""
    if not proto.HasField("tensor_type"):
        return None
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    shape: Shape | None = None
    if tensor.HasField("shape"):
        shape = tuple(
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None) if d.HasField("dim_param") else None
            for d in tensor.shape.dim
        )
    return ValueType(dtype, shape)


class ProtoAccess:
    """What the table reads behind its handles when its source is a ModelProto."""

    def __init__(self, model: ModelProto, base: Path | None) -> None:
        self.model = model
        self.base = base
        self._declared: dict[int, dict[str, ValueType]] = {}
        self._inferred: dict[str, ValueType] | None = None
        self._annotated: set[str] | None = None

    def attributes(self, handle: NodeProto) -> dict[str, Any]:
        return {
            a.name: self.tensor(a.t) if a.type == TENSOR and not a.ref_attr_name else attribute_value(a)
            for a in handle.attribute
        }

    def node_name(self, handle: NodeProto) -> str:
        return handle.name

    def tensor(self, handle: Any) -> ir.TensorProtocol:
        if not isinstance(handle, TensorProto):
            return tensor_of(handle)
        if handle.data_location == TensorProto.EXTERNAL:
            from rewriter.models.external import external_tensor

            return external_tensor(handle, self.base)
        return ir.serde.TensorProtoTensor(handle)

    def declared_type(self, scope: Scope, name: str) -> ValueType | None:
        declared = self._declared.get(scope.id)
        if declared is None:
            declared = {}
            graph = scope.handle
            infos = list(graph.value_info)
            if scope.kind != "function":
                infos += [*graph.input, *graph.output]
            for info in infos:
                found = value_type(info.type)
                if found is not None:
                    declared[info.name] = found
            self._declared[scope.id] = declared
        return declared.get(name)

    def is_annotated(self, name: str) -> bool:
        """Whether a quantization annotation names this value."""
        if self._annotated is None:
            self._annotated = {
                text
                for graph in graphs_of(self.model)
                for note in graph.quantization_annotation
                for text in (note.tensor_name, *(p.value for p in note.quant_parameter_tensor_names))
            }
        return name in self._annotated

    def other_names(self, scopes: Iterable[Scope]) -> set[str]:
        graphs = [scope.handle for scope in scopes]
        graphs += [g for training in self.model.training_info for g in (training.initialization, training.algorithm)]
        names: set[str] = set()
        for graph in graphs:
            names.update([node.name for node in graph.node])
            names.update([info.name for info in graph.value_info])
            if isinstance(graph, GraphProto):
                names.update([sparse.values.name for sparse in graph.sparse_initializer])
        return names

    def inferred_types(self) -> Mapping[str, ValueType]:
        if self._inferred is None:
            self._inferred = infer_types(self.model)
        return self._inferred


def infer_types(model: ModelProto) -> dict[str, ValueType]:
    """The types of the main graph's inner values by shape inference; none for a model that inference cannot read."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # inference is help, not truth
        return {}
    found = ((info.name, value_type(info.type)) for info in inferred.graph.value_info)
    return {name: known for name, known in found if known is not None}


def graphs_of(model: ModelProto, more: Iterable[GraphProto] = ()) -> list[GraphProto]:
    """The main graph (and these), and every body in it and in the functions."""
    found = [model.graph, *more]
    holders: list[Any] = [*found, *model.functions]
    while holders:
        for node in holders.pop().node:
            for attribute in node.attribute:
                bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)
                found += bodies
                holders += bodies
    return found


def read_proto(model: ModelProto, base: Path | None = None) -> Table:
    """Read a ModelProto into a table. `base` is the folder of its external data. Raises ModelError."""
    if not isinstance(model, ModelProto):
        raise TypeError(f"expected an onnx.ModelProto, got {type(model).__name__}")
    if not model.HasField("graph"):
        raise ModelError("the model has no graph: the file is empty, or no ONNX model")
    if model.ir_version < 1:
        raise ModelError("the model states no ir_version: truncated, or no ONNX model")
    if model.ir_version >= 3 and not model.opset_import:
        raise ModelError("the model states no opset (opset_import): truncated, or no ONNX model")
    table = Table(ProtoAccess(model, base), model.ir_version)
    main = (model.graph, model.graph.name, opsets_of(model.opset_import))
    fill_table(
        table, ProtoView(), main, [(f, op_key(f.domain, f.name), opsets_of(f.opset_import)) for f in model.functions]
    )
    return table


def opsets_of(imports: Any) -> dict[str, int]:
    return {("" if i.domain == "ai.onnx" else i.domain): i.version for i in imports}


class ProtoView:
    """Graphs and functions as protobuf messages, for the reader."""

    def inputs(self, graph: GraphProto | FunctionProto) -> Iterable[str]:
        return graph.input if isinstance(graph, FunctionProto) else [info.name for info in graph.input]

    def outputs(self, graph: GraphProto | FunctionProto) -> Iterable[str]:
        return graph.output if isinstance(graph, FunctionProto) else [info.name for info in graph.output]

    def initializers(self, graph: GraphProto) -> Iterable[tuple[str, TensorProto]]:
        return [(tensor.name, tensor) for tensor in graph.initializer]

    def sparse_initializers(self, graph: GraphProto) -> Iterable[str]:
        return [sparse.values.name for sparse in graph.sparse_initializer]

    def nodes(
        self, graph: GraphProto | FunctionProto
    ) -> Iterator[tuple[NodeProto, str, str, Sequence[str], Sequence[str]]]:
        for node in graph.node:
            yield node, node.op_type, node.domain, node.input, node.output

    def bodies(self, node: NodeProto) -> Iterable[tuple[str, GraphProto]]:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.name, attribute.g
            for position, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{position}]", graph
