"""A neighbourhood as a picture: boxes in layers, data flowing down, as inline SVG.

The layers and the order in them are grandalf's (Sugiyama's method). A box has the op type and the node's name, and a
line for each constant that it reads; full names, types and shapes are in its title, which a browser shows when pointed
at. Nothing here escapes text: the template does, for everything that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unicodedata import east_asian_width

import onnx_ir as ir

from rewriter.report.neighbourhood import Around, label, op_type

MOST_LETTERS = 30
LETTER = 6.4  # the width of one, in the size that the page has
LINE = 15.0
APART = 22.0
NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}  # where numpy's name is another than ONNX's


@dataclass(frozen=True)
class Line:
    text: str
    title: str


@dataclass
class Box:
    """role: "removed", "changed", "added", "near" or "end" (an input or output of the graph). x, y: its middle."""

    title: str
    heading: str
    lines: list[Line]
    role: str
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        letters = max([1.15 * _letters(self.heading), *(_letters(one.text) for one in self.lines)])
        return max(64.0, letters * LETTER + 18)

    @property
    def height(self) -> float:
        return 22 + LINE * len(self.lines)


@dataclass(frozen=True)
class Arrow:
    title: str
    path: str
    end: tuple[float, float]


@dataclass(frozen=True)
class Picture:
    """What the template draws, in a frame from (0, 0)."""

    boxes: list[Box]
    arrows: list[Arrow]
    width: float
    height: float
    left_out: int


def picture(around: Around) -> Picture | None:
    """None where there is nothing to draw."""
    if not around.nodes:
        return None
    boxes = [_box(node, around.role.get(label(node), "near")) for node in around.nodes]
    ends, edges = _edges(around.nodes)
    boxes += ends
    routes, width, height = _laid_out(boxes, [(a, b) for a, b, _ in edges])
    arrows = [Arrow(title, _path(route), route[-1]) for route, (_, _, title) in zip(routes, edges, strict=True)]
    return Picture(boxes, arrows, width, height, around.left_out)


def _box(node: ir.Node, role: str) -> Box:
    lines = [Line(_short(label(node)), label(node))]
    constants = [value for value in node.inputs if value is not None and value.const_value is not None]
    lines += [
        Line(_short(f"{value.name} {_type(value)}", keep=len(_type(value))), described(value)) for value in constants
    ]
    return Box(f"{op_type(node)} {label(node)}", op_type(node), lines, role)


def _edges(nodes: list[ir.Node]) -> tuple[list[Box], list[tuple[int, int, str]]]:
    """Boxes of the graph's inputs and outputs, and between which boxes there are arrows (nodes come first)."""
    index = {node: k for k, node in enumerate(nodes)}
    ends: dict[tuple[str, str | None], int] = {}
    boxes: list[Box] = []
    edges: dict[tuple[int, int, str], None] = {}

    def end(value: ir.Value, kind: str) -> int:
        key = (kind, value.name)
        if key not in ends:
            ends[key] = len(nodes) + len(boxes)
            boxes.append(
                Box(f"{kind} {described(value)}", kind, [Line(_short(value.name or ""), value.name or "")], "end")
            )
        return ends[key]

    for node in nodes:
        for value in node.inputs:
            if value is None or value.const_value is not None:
                continue
            producer = value.producer()
            if producer in index:
                edges[index[producer], index[node], described(value)] = None
            elif value.is_graph_input():
                edges[end(value, "input"), index[node], described(value)] = None
        for value in node.outputs:
            if value.is_graph_output():
                edges[index[node], end(value, "output"), described(value)] = None
    return boxes, list(edges)


def _laid_out(boxes: list[Box], edges: Iterable[tuple[int, int]]) -> tuple[list[list[Any]], float, float]:
    """Moves the boxes to their places; the points of each edge, and the size of the whole."""
    from grandalf.graphs import Edge, Graph, Vertex
    from grandalf.layouts import SugiyamaLayout
    from grandalf.routing import EdgeViewer, route_with_lines

    vertices = [Vertex(k) for k in range(len(boxes))]
    for vertex, box in zip(vertices, boxes, strict=True):
        vertex.view = _View(box.width, box.height)
    drawn = [Edge(vertices[a], vertices[b]) for a, b in edges]
    for edge in drawn:
        edge.view = EdgeViewer()
    left, height = 0.0, 0.0
    where: dict[int, float] = {}  # how far right the part of the graph that a box is in was moved
    for part in Graph(vertices, drawn).C:
        layout = SugiyamaLayout(part)
        layout.xspace, layout.yspace = APART, 34.0
        layout.route_edge = route_with_lines
        layout.init_all()
        layout.draw(3)
        views = [(vertex.data, vertex.view) for vertex in part.sV]
        points = [point for edge in part.sE for point in edge.view._pts]
        low = min([view.xy[0] - view.w / 2 for _, view in views] + [x for x, _ in points])
        high = max([view.xy[0] + view.w / 2 for _, view in views] + [x for x, _ in points])
        top = min(view.xy[1] - view.h / 2 for _, view in views)
        for k, view in views:
            boxes[k].x, boxes[k].y = view.xy[0] - low + left, view.xy[1] - top
            height = max(height, boxes[k].y + view.h / 2)
        where.update((k, left - low) for k, _ in views)
        for edge in part.sE:
            edge.view._pts = [(x - low + left, y - top) for x, y in edge.view._pts]
        left += high - low + APART
    return [_ends_moved(edge.view._pts, boxes, edge) for edge in drawn], left - APART, height


def _ends_moved(points: list[Any], boxes: list[Box], edge: Any) -> list[Any]:
    """A route from the lower side of the one box to the upper side of the other."""
    source, target = boxes[edge.v[0].data], boxes[edge.v[1].data]
    start, stop = (source.x, source.y + source.height / 2), (target.x, target.y - target.height / 2)
    return [start, *points[1:-1], stop]


def _path(points: list[Any]) -> str:
    """Curves that leave and reach each point vertically."""
    steps = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for (x, y), (u, v) in pairwise(points):
        middle = (y + v) / 2
        steps.append(f"C{x:.1f},{middle:.1f} {u:.1f},{middle:.1f} {u:.1f},{v:.1f}")
    return " ".join(steps)


@dataclass
class _View:
    """What grandalf wants to know of a box."""

    w: float
    h: float
    xy: tuple[float, float] = (0.0, 0.0)


def described(value: ir.Value) -> str:
    return f"{value.name} {_type(value)}".strip()


def _type(value: ir.Value) -> str:
    dtype = "" if value.dtype is None else NAMES.get(value.dtype.name, value.dtype.name.lower())
    return dtype if value.shape is None else f"{dtype}[{', '.join(str(d) for d in value.shape)}]"


def _letters(text: str) -> float:
    """How wide a text is in letters: those of East Asia are wider."""
    return sum(1.8 if east_asian_width(letter) in "WF" else 1.0 for letter in text)


def _short(text: str, keep: int = MOST_LETTERS // 2) -> str:
    """As much of a text as a box holds, its end (`keep` letters at least) rather than its middle."""
    if len(text) <= MOST_LETTERS:
        return text
    head = max(4, MOST_LETTERS - 1 - max(keep, MOST_LETTERS // 2))
    return f"{text[:head]}…{text[head + 1 - MOST_LETTERS :]}"
