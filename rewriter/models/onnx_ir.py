"""onnx_ir.Model as a source: read straight into a table, and the journal written to a clone.

Nothing goes through protobuf, which would lose and add things (see `ir.serde`). Values are read by their
names, as a file would have them, so that one model gives one table in either form; handles are the caller's
own objects, which are only ever read. The clone is made when something changed and not before, and nodes are
found in it by position. In onnx_ir a value belongs to the node that produces it: where an edit lets another
node produce a value, the sink moves what the old object says (name, type, metadata, annotations) to the
output that takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rewriter.engine.held import tensor_of
from rewriter.engine.scope import Scope, ValueType
from rewriter.engine.table import Table
from rewriter.errors import ModelError
from rewriter.models.reader import fill_table
from rewriter.schemas import op_key

ANNOTATION = "quant_parameter_tensor_names"  # where `ir.serde` keeps a quantization annotation, in `Value.meta`


class IrSource:
    """An onnx_ir.Model in memory."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model

    def read(self) -> Table:
        model = self.model
        if not model.graph.opset_imports:
            raise ModelError("the model states no opset (graph.opset_imports)")
        table = Table(IrAccess(model), model.ir_version or 0)
        main = (model.graph, model.graph.name or "", opsets_of(model.graph))
        functions = [(f.graph, op_key(f.domain, f.name), opsets_of(f.graph)) for f in model.functions.values()]
        fill_table(table, IrView(), main, functions)
        return table

    def write(self, table: Table, output: Path | None, in_place: bool) -> ir.Model:
        if output is not None:
            raise TypeError("output is for models given as a path; this one is an onnx_ir.Model")
        if not table.is_changed:
            return self.model
        from rewriter.models.onnx_ir_sink import write_ir

        return write_ir(table, self.model, in_place)


def opsets_of(graph: ir.Graph) -> dict[str, int]:
    return {("" if domain == "ai.onnx" else domain): version for domain, version in graph.opset_imports.items()}


def name_of(value: ir.Value | None, node: ir.Node | None = None) -> str:
    """The name of a value, "" for an absent one. Raises ModelError where it has none yet."""
    if value is None:
        return ""
    if value.name is None:
        place = f"node {node.name or node.op_type!r}" if node is not None else "the graph"
        raise ModelError(f"a value of {place} has no name; onnx_ir.passes.common.NameFixPass gives it one")
    return value.name


def value_type(value: ir.Value) -> ValueType | None:
    """The tensor type that a value states, None where it states none."""
    known = value.type
    if known is not None and not isinstance(known, ir.TensorType):
        return None
    if known is None and value.shape is None:
        return None
    shape = value.shape
    dtype = known.dtype if known is not None else None
    return ValueType(
        None if dtype == ir.DataType.UNDEFINED else dtype,
        None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape),
    )


def attribute_value(attribute: ir.Attr) -> Any:
    """An attribute as a Python value, in the form that `models.proto.attribute_value` gives it."""
    if attribute.is_ref():
        from rewriter.engine.scope import AttributeReference

        return AttributeReference(attribute.ref_attr_name or "", attribute.type.value)
    value = attribute.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return list(value) if isinstance(value, tuple) else value


def graphs_of(model: ir.Model) -> list[ir.Graph]:
    """The main graph, the functions' graphs, and every body in them."""
    roots = [model.graph, *(f.graph for f in model.functions.values())]
    return [graph for root in roots for graph in (root, *root.subgraphs())]


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a graph itself defines."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


class IrView:
    """Graphs of an onnx_ir.Model (those inside functions too), for the reader."""

    def inputs(self, graph: ir.Graph) -> Iterable[str]:
        return [name_of(value) for value in graph.inputs]

    def outputs(self, graph: ir.Graph) -> Iterable[str]:
        return [name_of(value) for value in graph.outputs]

    def initializers(self, graph: ir.Graph) -> Iterable[tuple[str, ir.Value]]:
        return graph.initializers.items()

    def sparse_initializers(self, graph: ir.Graph) -> Iterable[str]:
        return ()

    def nodes(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, str, str, Sequence[str], Sequence[str]]]:
        for node in graph:
            inputs = [name_of(value, node) for value in node.inputs]
            yield node, node.op_type, node.domain, inputs, [name_of(value, node) for value in node.outputs]

    def bodies(self, node: ir.Node) -> Iterable[tuple[str, ir.Graph]]:
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                yield attribute.name, attribute.as_graph()
            elif attribute.type == ir.AttributeType.GRAPHS:
                for position, graph in enumerate(attribute.as_graphs()):
                    yield f"{attribute.name}[{position}]", graph


class IrAccess:
    """What the table reads behind its handles when its source is an onnx_ir.Model."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._declared: dict[int, dict[str, ValueType]] = {}
        self._inferred: dict[str, ValueType] | None = None
        self._annotated: set[str] | None = None

    def attributes(self, handle: ir.Node) -> dict[str, Any]:
        return {a.name: attribute_value(a) for a in handle.attributes.values()}

    def node_name(self, handle: ir.Node) -> str:
        return handle.name or ""

    def tensor(self, handle: Any) -> ir.TensorProtocol:
        if not isinstance(handle, ir.Value):
            return tensor_of(handle)
        if handle.const_value is None:
            raise ModelError(f"initializer {handle.name!r} has no tensor (const_value)")
        return handle.const_value

    def declared_type(self, scope: Scope, name: str) -> ValueType | None:
        declared = self._declared.get(scope.id)
        if declared is None:
            found = ((value.name or "", value_type(value)) for value in values_of(scope.handle))
            declared = {text: known for text, known in found if known is not None}
            self._declared[scope.id] = declared
        return declared.get(name)

    def is_annotated(self, name: str) -> bool:
        """Whether a quantization annotation names this value."""
        if self._annotated is None:
            self._annotated = set()
            for graph in graphs_of(self.model):
                for value in values_of(graph):
                    note = value.meta.get(ANNOTATION) if value.meta else None
                    if note:
                        self._annotated.update((value.name or "", *note.values()))
        return name in self._annotated

    def other_names(self, scopes: Iterable[Scope]) -> set[str]:
        return {node.name or "" for scope in scopes for node in scope.handle}

    def inferred_types(self) -> Mapping[str, ValueType]:
        if self._inferred is None:
            from rewriter.models.proto import infer_types

            try:  # the one thing for which the model is converted: onnx infers on protobuf only
                self._inferred = infer_types(ir.to_proto(self.model))
            except Exception:  # a model that cannot be converted has unknown types
                self._inferred = {}
        return self._inferred
