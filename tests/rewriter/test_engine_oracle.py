"""The compiled matcher against the plainest one that there could be: every way of laying a pattern on a model.

Patterns and models are random and small; the plain matcher tries every choice of nodes, so it needs no anchor, no
order and no tree. Both must find the same sets of nodes, for one pattern and for many compiled together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rewriter
from rewriter import RuleError
from rewriter.compiler.variants import variants_of
from rewriter.pattern.graph import PatternGraph, Place, PNode, PValue
from rewriter.rule import Combined, Definition, Rule

OPS = {"Relu": 1, "Neg": 1, "Add": 2, "Sub": 2, "Mul": 2}
COMMUTATIVE = ("Add", "Mul")
HERE = Place("oracle", 1)


def random_pattern(rng: np.random.Generator, nodes: int) -> PatternGraph:
    """A pattern whose returned values are those that no node of it reads."""
    parameters = {name: PValue(HERE, name=name, parameter=True) for name in "abc"}
    values = list(parameters.values())
    made: list[PNode] = []
    for _ in range(nodes):
        kind = str(rng.choice([*OPS]))
        inputs: list[PValue | None] = [values[rng.integers(len(values))] for _ in range(OPS[kind])]
        node = PNode(HERE, (kind,), inputs)
        node.outputs.append(PValue(HERE, node=node))
        made.append(node)
        values.append(node.outputs[0])
    read = {id(v) for n in made for v in n.inputs}
    outputs = [n.outputs[0] for n in made if id(n.outputs[0]) not in read]
    used = {k: p for k, p in parameters.items() if id(p) in read}
    return PatternGraph("random", HERE, used, {}, outputs, {"": 17})


def random_model(rng: np.random.Generator, patterns: list[PatternGraph]) -> onnx.ModelProto:
    """Some of the patterns one after the other, with operands swapped and now and then another one."""
    values = ["x", "w"]
    made: list[onnx.NodeProto] = []
    while len(made) < 14:
        names: dict[int, str] = {}
        for node in patterns[rng.integers(len(patterns))].nodes():
            inputs = [names.setdefault(id(v), str(rng.choice(values[-4:]))) for v in node.inputs]
            if rng.random() < 0.1:
                inputs[0] = str(rng.choice(values))
            made.append(helper.make_node(node.types[0], inputs[:: rng.choice([1, -1])], [f"v{len(made)}"]))
            values.append(made[-1].output[0])
            names[id(node.outputs[0])] = values[-1]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "w", values[-1])]
    graph = helper.make_graph(made, "g", infos[:2], infos[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def plain_matches(pattern: PatternGraph, model: onnx.ModelProto) -> set[frozenset[str]]:
    """Every set of nodes on which the pattern can be laid."""
    nodes = pattern.nodes()
    kinds = [[n for n in model.graph.node if n.op_type == p.types[0]] for p in nodes]
    found: set[frozenset[str]] = set()
    for chosen in itertools.product(*kinds):
        names = frozenset(n.output[0] for n in chosen)
        if len(names) == len(nodes) and any(fits(nodes, chosen, o) for o in orders(nodes)):
            found.add(names)
    return found


def orders(nodes: list[PNode]) -> Iterator[tuple[bool, ...]]:
    return itertools.product(*([False, True] if n.types[0] in COMMUTATIVE else [False] for n in nodes))


def fits(nodes: list[PNode], chosen: tuple[onnx.NodeProto, ...], swapped: tuple[bool, ...]) -> bool:
    bound = {id(p.outputs[0]): n.output[0] for p, n in zip(nodes, chosen, strict=True)}
    for p, n, swap in zip(nodes, chosen, swapped, strict=True):
        inputs = list(n.input)[::-1] if swap else list(n.input)
        for value, name in zip(p.inputs, inputs, strict=True):
            if bound.setdefault(id(value), name) != name:
                return False
    return True


def rule_of(pattern: PatternGraph, name: str) -> Rule:
    return Rule(Definition(name, HERE, (pattern,), None, lambda m: None, {}, True, None, None, None, None))


def is_connected(pattern: PatternGraph) -> bool:
    try:
        rule_of(pattern, "probe").source()
    except RuleError:
        return False
    return len(variants_of(pattern)) == 1


@pytest.mark.parametrize("seed", range(25))
def test_the_compiled_matcher_finds_what_the_plain_one_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    patterns = [random_pattern(rng, int(rng.integers(1, 5))) for _ in range(12)]
    patterns = [p for p in patterns if is_connected(p)]
    assert patterns
    rules = [rule_of(p, f"p{k}") for k, p in enumerate(patterns)]
    for _ in range(4):
        model = random_model(rng, patterns)
        together: dict[str, set[frozenset[str]]] = {}
        for match in rewriter.find(model, Combined((tuple(rules),))):
            together.setdefault(match.rule.name, set()).add(frozenset(n.name for n in match.matched))
        for pattern, rule in zip(patterns, rules, strict=True):
            expected = plain_matches(pattern, model)
            alone = {frozenset(n.name for n in match.matched) for match in rewriter.find(model, rule)}
            assert alone == expected
            assert together.get(rule.name, set()) == expected
