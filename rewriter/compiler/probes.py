"""The second emission: what a rule asks as separate little functions, for those who want to know every answer.

The matcher stops at the first "no" and says nothing, which is what makes it fast. An explanation wants to go on, and to
know at which question it was. So the same positions and questions are emitted again, by the same expressions, but each
as a function of its own. Nothing of it is made before somebody asks for an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rewriter.compiler.emit import Emitter, compile_source
from rewriter.compiler.lower import Lowered
from rewriter.compiler.ordering import step_positions
from rewriter.compiler.questions import Question, Space
from rewriter.engine import walk
from rewriter.engine.table import Table

Ask = Callable[..., Any]

_HEADER = """\
def bind(t, chain_up, chain_down, both, lanes, same, holds, literal, dim):
    op, ins, outs, prod, uses, out_count = t.op, t.inputs, t.outputs, t.producer, t.uses, t.output_count
    attr = t.attribute
    at, ask, lane = {}, [], {}
"""
_NO_EXPRESSION = ("anchor", "operand", "any_user", "lane", "lanes")


@dataclass(frozen=True)
class Probes:
    """On one table: where a position is, given where its parent is; the answer to a question, given what stands at its
    positions; each way of a lane, given its value and what it reads outside."""

    at: dict[int, Ask]
    answers: dict[Question, Ask]
    lanes: dict[str, Ask]


class _ProbeEmitter(Emitter):
    def source(self, questions: Sequence[Question], positions: Sequence[int]) -> str:
        self.lines = _HEADER.splitlines()
        for one in self.lowered:
            for lane in one.lanes:
                self.lane(lane)
                self.write(1, f"lane[{lane.name!r}] = {lane.name}")
        for position in positions:
            parent = self.variable(self.space.positions[position].parent)
            self.write(1, f"at[{position}] = lambda {parent}: ({self.expression(position)})")
        for question in questions:
            own = ", ".join(map(self.variable, question.positions))
            self.write(1, f"ask.append(lambda {own}: {self.condition(question)})")
        self.write(1, "return at, ask, lane")
        return "\n".join(self.lines) + "\n"


def probes_for(lowered: Sequence[Lowered], space: Space, table: Table, title: str) -> Probes:
    """What these variants ask, bound to a table."""
    steps = [step for one in lowered for step, _ in one.steps]
    steps += [step for one in lowered for lane in one.lanes for step in lane.steps]
    questions = list(dict.fromkeys(step for step in steps if isinstance(step, Question)))
    emitter = _ProbeEmitter(space, list(lowered), title)
    wanted = {position for step in steps for position in step_positions(step)}
    wanted.update(position for one in lowered for position in emitter.captured(one))
    found: set[int] = set()
    for position in wanted:
        while position >= 0 and position not in found:
            found.add(position)
            position = space.positions[position].parent
    positions = [p for p in sorted(found) if space.positions[p].kind not in _NO_EXPRESSION]
    bind: Any = compile_source(emitter.source(questions, positions), f"questions of {title}", space.constants)
    at, ask, lanes = bind(
        table, walk.chain_up, walk.chain_down, walk.both, walk.lanes, walk.same, walk.holds, walk.literal, walk.dim
    )
    return Probes(at, dict(zip(questions, ask, strict=True)), lanes)
