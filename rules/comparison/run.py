"""`compare`: runs two models beside each other in ONNX Runtime and sums up how far their values are apart.

Values are watched one sample at a time and, where those of a sample are large, in groups of layers, so that memory
does not grow with the number of samples or of layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

import rewriter
from rewriter import ModelError
from rules.comparison.figures import Tally
from rules.comparison.graph import Graph, Quantizer, read_by
from rules.comparison.inputs import given_feeds, inputs_of, random_feeds, require_equal
from rules.comparison.layers import CODES, FED, Matched, common, fed, layers
from rules.comparison.result import Comparison, Layer, Output
from rules.running import Feeds, Runnable, watched

AT_ONCE = 1 << 28
"""Bytes of watched values of one sample and one model that are held at once."""


def compare(
    a: Any,
    b: Any,
    inputs: Any = None,
    *,
    samples: int = 4,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Comparison:
    """How far model B is from model A, the reference, at its outputs and in every layer that both have.

    a, b: an onnx.ModelProto, an onnx_ir.Model or a path each; they are left as they are. Both run without optimization,
    B also as ONNX Runtime optimizes it by default. inputs: None for `samples` random ones made from `seed`, with
    `shapes` for inputs that have no fixed one; else the path of an .npz, arrays by the names of inputs (with one more
    axis in front: several samples), or feeds. docs/compare.md says what the figures mean.

    Raises ModelError for a model that cannot be read or run, ValueError for models whose inputs differ or that have no
    output in common, and for inputs that do not fit, ModuleNotFoundError without onnxruntime.
    """
    for model in (a, b):
        if isinstance(model, (str, PathLike)):
            rewriter.read(model)  # for what it says of a file that is no model
    one, other = Runnable(a), Runnable(b)
    sides = Graph(one.proto, one.folder), Graph(other.proto, other.folder)
    required = inputs_of(sides[0])
    require_equal(required, inputs_of(sides[1]))
    if samples < 1:
        raise ValueError("there must be a sample at least")
    if inputs is None:
        feeds: list[Feeds] = list(random_feeds(required, sides, shapes or {}, samples, seed))
    else:
        feeds = given_feeds(required, inputs)
    if not feeds:
        raise ValueError("there is no sample among the inputs")
    notes: list[str] = []
    outputs, unmatched = compare_outputs(one, other, sides, feeds, notes)
    found = compare_layers(one, other, sides, feeds, notes)
    return Comparison(len(feeds), seed if inputs is None else None, outputs, found, unmatched, notes)


def compare_outputs(
    a: Runnable, b: Runnable, sides: tuple[Graph, Graph], feeds: list[Feeds], notes: list[str]
) -> tuple[list[Output], list[tuple[str, str]]]:
    """The outputs that both have, and the others with the model that has them."""
    reference, plain = a.session(), b.session()
    types = [{each.name: each.type for each in session.get_outputs()} for session in (reference, plain)]
    unmatched = [(name, "A") for name in types[0] if name not in types[1]]
    unmatched += [(name, "B") for name in types[1] if name not in types[0]]
    both = [name for name in types[0] if name in types[1]]
    if not both:
        told = (", ".join(each) for each in types)
        raise ValueError("the models have no output in common: A has {}; B has {}".format(*told))
    names = [name for name in both if all(is_number(each[name]) for each in types)]
    notes += [f"the output {name} is no tensor of numbers, and is not compared" for name in both if name not in names]
    values = []
    for name in names:
        p, q = sides[0].quantizer(name), sides[1].quantizer(name)
        codes = p is not None and q is not None and all(each[name] in CODES for each in types)
        values.append(Matched(name, "", "", p, q, codes, None))
    tallies = [(Tally(v.step, scores=True), Tally(v.step, scores=True)) for v in values]
    try:
        optimized = b.session(optimized=True)
    except ModelError as error:
        optimized = None
        notes.append(f"optimized: {error}")
    for feed in feeds:
        wanted, got = run(reference, a, names, feed), run(plain, b, names, feed)
        last = None
        if optimized is not None:
            try:
                last = run(optimized, b, names, feed)
            except ModelError as error:
                optimized = None
                notes.append(f"optimized: {error}")
        for k, value in enumerate(values):
            tallies[k][0].add(in_a(wanted[k], value), in_b(got[k], value))
            if last is not None:
                tallies[k][1].add(in_a(wanted[k], value), in_b(last[k], value))
    found = [
        Output(v.name, first.figures(), None if optimized is None else second.figures())
        for v, (first, second) in zip(values, tallies, strict=True)
    ]
    return found, unmatched


def compare_layers(
    a: Runnable, b: Runnable, sides: tuple[Graph, Graph], feeds: list[Feeds], notes: list[str]
) -> list[Layer]:
    """The layers that both have, in the order of A."""
    names = common(*sides)
    if not names:
        return []
    probes = a.session(watched(a.proto, names)), b.session(watched(b.proto, names))
    kinds = ({each.name: each.type for each in probe.get_outputs()} for probe in probes)
    found = layers(*sides, {n: (x, y) for (n, x), y in zip(next(kinds).items(), next(kinds).values(), strict=True)})
    sizes = {each.name: bytes_of(each, dims(probes[0], feeds[0])) for each in probes[0].get_outputs()}
    groups = list(grouped(found, sizes))
    cuts = {one.name: one.elem_type for one in found if one.elem_type is not None}
    tallies = {one.name: (Tally(one.step), Tally(one.step)) for one in found}
    broken: set[str] = set()
    for group in groups:
        inside = [one.name for one in group]
        alone = Alone(b, sides[1], inside, cuts)
        seen = list(dict.fromkeys([*inside, *alone.reads]))
        if len(groups) > 1:
            probes = a.session(watched(a.proto, seen)), b.session(watched(b.proto, inside))
        for feed in feeds:
            values = dict(zip(seen, run(probes[0], a, seen, feed), strict=True))
            others = run(probes[1], b, inside, feed)
            for one, other in zip(group, others, strict=True):
                tallies[one.name][0].add(in_a(values[one.name], one), in_b(other, one))
            if inside[0] in broken:
                continue
            try:
                others = alone.run({**feed, **{name + FED: values[name] for name in alone.reads}})
            except ModelError as error:
                broken.update(inside)
                notes.append(f"{len(inside)} layers cannot be run alone: {error}")
                continue
            for one, other in zip(group, others, strict=True):
                tallies[one.name][1].add(in_a(values[one.name], one), in_b(other, one))
    figures = {name: tally.figures() for name, (tally, _) in tallies.items()}
    front = in_front(sides[1], tallies)
    return [
        Layer(
            one.name,
            one.node,
            one.op,
            min((snr for n in front[one.name] if (snr := figures[n].snr) is not None), default=math.inf),
            figures[one.name],
            None if one.name in broken else tallies[one.name][1].figures(),
        )
        for one in found
    ]


class Alone:
    """Layers of a model that run each on the values that are fed to it. reads: the names of those."""

    def __init__(self, model: Runnable, graph: Graph, names: list[str], cuts: Mapping[str, int]) -> None:
        self.model, self.names = model, names
        self.proto = fed(graph, names, cuts)
        self.inputs = [each.name for each in self.proto.graph.input]
        self.reads = [name.removesuffix(FED) for name in self.inputs if name.endswith(FED)]
        self.session: Any = None

    def run(self, feed: Feeds) -> list[np.ndarray]:
        if self.session is None:
            self.session = self.model.session(self.proto)
        return run(self.session, self.model, self.names, {n: v for n, v in feed.items() if n in self.inputs})


def run(session: Any, model: Runnable, names: list[str], feed: Feeds) -> list[np.ndarray]:
    """The values of these outputs. Raises ModelError where the model stops."""
    try:
        found: list[np.ndarray] = session.run(names, dict(feed))
        return found
    except Exception as error:  # what onnxruntime raises has no base but this
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in feed.items())
        raise ModelError(f"ONNX Runtime cannot run {model.name} on {shapes}: {' '.join(str(error).split())}") from error


def is_number(kind: str) -> bool:
    return kind.startswith("tensor(") and kind != "tensor(string)" and "float8" not in kind and "bfloat" not in kind


def in_a(value: np.ndarray, matched: Matched) -> np.ndarray:
    """A value of A as it is, or what its codes stand for."""
    return dequantized(value, matched.a) if matched.codes and matched.a else value


def in_b(value: np.ndarray, matched: Matched) -> np.ndarray:
    """A value of B as it is, what its codes stand for, or what its quantizer leaves of it."""
    if matched.kept is not None:
        clipped: np.ndarray = np.clip(value, *matched.kept)
        return clipped
    return dequantized(value, matched.b) if matched.codes and matched.b else value


def dequantized(codes: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    scale, zero, *_ = quantizer
    return (codes.astype(np.float64) - zero) * scale


def dims(session: Any, feed: Feeds) -> dict[str, int]:
    """What the named dims of the inputs come to."""
    found: dict[str, int] = {}
    for each in session.get_inputs():
        shape = feed[each.name].shape if each.name in feed else ()
        found.update((d, size) for d, size in zip(each.shape or (), shape, strict=False) if isinstance(d, str))
    return found


def bytes_of(output: Any, named: Mapping[str, int]) -> int:
    """How large a value is, about: a dim that nobody knows counts as 16."""
    return 4 * math.prod(d if isinstance(d, int) else named.get(d, 16) for d in output.shape or ())


def grouped(found: Iterable[Matched], sizes: Mapping[str, int]) -> Iterator[list[Matched]]:
    """The layers in their order, in groups of AT_ONCE bytes at most."""
    group: list[Matched] = []
    total = 0
    for one in found:
        if group and total + sizes[one.name] > AT_ONCE:
            yield group
            group, total = [], 0
        group.append(one)
        total += sizes[one.name]
    if group:
        yield group


def in_front(graph: Graph, names: Iterable[str]) -> dict[str, set[str]]:
    """For each of these values of a model, the nearest others of them that it is computed from."""
    chosen = set(names)
    nearest: dict[str, set[str]] = {}
    reached: dict[str, set[str]] = {}
    for node in graph.nodes:
        sources = (({name} if name in chosen else reached.get(name, set())) for name in read_by(node))
        behind = set[str]().union(*sources)
        for name in node.output:
            reached[name] = behind
            if name in chosen:
                nearest[name] = behind
    return nearest
