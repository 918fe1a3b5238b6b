"""Plans: what a rule set would do to a model, before anything is written.

A plan is a run whose result is not written yet. It shows what would become of the model, lets single rewrites be left
out (then the rest is found anew, since a rewrite may be what made another one possible), and writes when it is told to.
"""

from __future__ import annotations

import difflib
import html
import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from rewriter import schemas
from rewriter.api import Result, check_rules, perform
from rewriter.engine.driver import Identity
from rewriter.engine.held import Held, dtype_of, shape_of
from rewriter.engine.table import Table
from rewriter.errors import ModelError
from rewriter.models.source import Source, open_source
from rewriter.pause import collector_paused
from rewriter.report import Declined, Report, Rewrite
from rewriter.rule import RuleSet


class Plan:
    """The rewrites that a rule set would make of a model; made by `plan`."""

    def __init__(self, model: Any, rules: RuleSet, left_out: frozenset[Identity] = frozenset()) -> None:
        self._model = model
        self._rules = rules
        self._left_out = left_out
        self._source: Source | None = open_source(model)
        self._stamp = stamp(model)
        self._before: list[str] | None = None
        with collector_paused():
            self._table = self._source.read()
            self.report: Report = perform(self._source, self._table, rules, left_out=left_out)
        self.changed = self._table.is_changed

    @property
    def rewrites(self) -> list[Rewrite]:
        """What would be done, in order: nodes changed, removed and added, and the notes of the rule."""
        return self.report.rewrites

    @property
    def declined(self) -> list[Declined]:
        """What would be left alone, and why."""
        return self.report.declined

    @property
    def initializers(self) -> dict[str, str]:
        """New initializers, as `name: "int8[8,3,3,3]"`."""
        table = self._table
        return {table.name[v]: _held(held) for v, held in table.made_initializers()}

    def without(self, *rewrites: Rewrite | int) -> Plan:
        """The plan that leaves these out: rewrites of this plan, or their places in `rewrites`. The rest is found anew.

        Raises ValueError for a rewrite that is not in this plan.
        """
        places = {id(one): number for number, one in enumerate(self.rewrites)}
        chosen: set[Identity] = set()
        for one in rewrites:
            number = one if isinstance(one, int) else places.get(id(one), -1)
            if not 0 <= number < len(self.rewrites):
                what = f"of {one.node!r} by {one.rule!r}" if isinstance(one, Rewrite) else f"number {one!r}"
                raise ValueError(f"the plan has no rewrite {what}")
            chosen.add(self.report.matches[number])
        return Plan(self._model, self._rules, self._left_out | chosen)

    def diff(self, context: int = 1) -> str:
        """A unified diff of the graph as text, a line for each node and each initializer that comes or goes."""
        before = self._before or self._lines_before()
        after = list(lines_of(self._table, self._table))
        found = list(difflib.unified_diff(before, after, "before", "after", n=context, lineterm=""))
        return "\n".join(found)

    def _lines_before(self) -> list[str]:
        self._check_unchanged()
        return list(lines_of(open_source(self._model).read(), self._table))

    def _check_unchanged(self) -> None:
        if stamp(self._model) != self._stamp:
            raise ModelError("the model was changed since it was planned; make the plan again")

    def apply(self, output: str | PathLike[str] | None = None, *, in_place: bool = False) -> Result[Any]:
        """Make the rewrites of the plan; arguments and result as `rewriter.run`.

        The model is read again if the plan was applied before.
        """
        if in_place and output is not None:
            raise TypeError("in_place replaces the input, output writes beside it: give one of them")
        self._check_unchanged()
        if in_place:
            self._before = self._lines_before()
        source, table, report = self._source, self._table, self.report
        if source is None:
            again = Plan(self._model, self._rules, self._left_out)
            source, table, report = again._source, again._table, again.report
        assert source is not None
        self._source = None
        with collector_paused():
            written = source.write(table, None if output is None else Path(output), in_place)
        self._stamp = stamp(self._model)
        return Result(written, report, table.is_changed)

    def __str__(self) -> str:
        """A line for each rewrite, and for each reason for which nodes would be left alone."""
        return str(self.report) or "nothing to do"

    def _repr_html_(self) -> str:
        colors = {"+": "#1a7f37", "-": "#cf222e", "@": "#6e7781"}
        rows = "\n".join(
            f'<span style="color:{colors.get(line[:1], "inherit")}">{html.escape(line)}</span>'
            for line in self.diff().splitlines()
        )
        return f"<pre>{html.escape(str(self))}</pre><details><summary>diff</summary><pre>{rows}</pre></details>"


def plan(model: Any, rules: RuleSet) -> Plan:
    """What rules would do to a model: see it, leave rewrites out, then `apply()` it.

    Args:
        model: an onnx.ModelProto, an onnx_ir.Model, or the path of an ONNX file; it is left alone until then.
        rules: a rule set or a single rule.

    Raises as `rewriter.apply`.
    """
    return Plan(model, check_rules(rules))


def stamp(model: Any) -> tuple[int, ...]:
    """What tells, mostly, whether a model was changed: the size of a message, the time and size of a file."""
    if isinstance(model, onnx.ModelProto):
        return (model.ByteSize(),)
    if isinstance(model, ir.Model):
        return (len(model.graph), len(model.graph.initializers))
    status = os.stat(model)
    return status.st_mtime_ns, status.st_size


# -- the graph as text -----------------------------------------------------------------------------


def lines_of(table: Table, edited: Table) -> Iterator[str]:
    """A line for each node, scope by scope; and for the initializers that the edits of a table add or take away, before
    the node that reads them first."""
    concerned = {edited.name[v] for v in (*edited.new_initializers, *edited.dead_initializers)}
    for scope in table.scopes:
        if scope.owner and not table.op[scope.owner]:
            continue  # its node is gone
        head = table.title(scope)
        if head:
            yield head
        for node in table.nodes(scope):
            for value in table.inputs[node]:
                name = table.name[value]
                if name in concerned and value in table.initializer:
                    concerned.discard(name)
                    yield f"  {name}: {_stored(table, value)}"
            yield f"  {_node(table, node)}"


def _node(table: Table, node: int) -> str:
    outputs = ", ".join(table.name[v] or "_" for v in table.outputs[node])
    inputs = ", ".join(table.name[v] or "_" for v in table.inputs[node])
    stated = sorted(table.attributes(node).items())
    attributes = ", ".join(f"{name}={_attribute(value)}" for name, value in stated)
    _, op = schemas.split_key(table.op[node])
    return f"{outputs} = {op}({inputs})" + (f" {{{attributes}}}" if attributes else "")


def _attribute(value: Any) -> str:
    return repr(value) if isinstance(value, (int, float, str, list)) else f"<{type(value).__name__}>"


def _stored(table: Table, value: int) -> str:
    held = table.initializer[value]
    return _held(held if value in table.new_initializers else table.access.tensor(held))


def _held(held: Held) -> str:
    return f"{dtype_of(held).name.lower()}[{','.join(map(str, shape_of(held)))}]"
