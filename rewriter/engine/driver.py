"""The driver: which match is rewritten next, and when to stop.

Matches wait in a heap by benefit, position of their root and order of the rules, so that the order of a search never
shows in a result. A match is asked again when it is taken, if anything was edited since. After an edit only the
anchors are asked again that can see what was touched (`Reach`); one sweep over everything at the end confirms that
nothing was missed. A decline is remembered until something that it looked at changes. What could go on for ever is
stopped: a rule's own measure must fall, and without one a node may not descend from more generations of rewrites
than there are nodes.
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rewriter.compiler.questions import sentence
from rewriter.engine.edit import Edit, Effect
from rewriter.engine.match import Match, flat
from rewriter.engine.pool import ConstantPool
from rewriter.engine.run import Failure, Raw, Run
from rewriter.engine.scope import NewNode
from rewriter.engine.script_edit import edit_of
from rewriter.engine.table import Table
from rewriter.errors import Decline, NoMatch, RewriterError, RuleError
from rewriter.origins import OLDEST_IR, origin
from rewriter.report import Declined, Report, Rewrite
from rewriter.rule import Rule

T = TypeVar("T")

SPARE_GENERATIONS = 64


Identity = tuple[str, tuple[int, ...]]  # of a match: its rule, and its nodes by their numbers
Progress = Callable[[int, int], object]  # rewrites that were made, matches that wait


def run_stage(
    table: Table,
    rules: Sequence[Rule],
    model: Any,
    report: Report,
    analyses: dict[Any, Any],
    limit: int | None,
    left_out: frozenset[Identity] = frozenset(),
    progress: Progress | None = None,
) -> None:
    """Apply the rules of one stage to the table until nothing changes, or `limit` rewrites are done.

    left_out: matches that are declined unasked, by `identity`."""
    made: type[Driver] = Driver
    if report.statistics is not None:
        from rewriter.engine.counting import CountingDriver

        made = CountingDriver
    made(Run(table, rules, model, analyses), report, limit, left_out, progress).drive()


class Driver:
    def __init__(
        self,
        run: Run,
        report: Report,
        limit: int | None,
        left_out: frozenset[Identity] = frozenset(),
        progress: Progress | None = None,
    ) -> None:
        self.left_out = left_out
        self.progress = progress
        self.run = run
        self.table = run.table
        self.report = report
        self.limit = limit
        self.pool = ConstantPool()
        self.heap: list[tuple[int, tuple[int, ...], int, int, int, Raw, int]] = []
        self.waiting: set[Raw] = set()
        self.pushed = 0
        self.edits = 0
        self.declined: dict[Raw, Declined | None] = {}  # None: no match, silently
        self.declined_at: dict[
            Raw, tuple[int, tuple[int, ...]]
        ] = {}  # its core node, and the node's place for the report
        self.watchers: dict[tuple[str, int], set[Raw]] = {}
        self.generation: dict[int, int] = {}
        self.lineage: dict[int, tuple[str, ...]] = {}
        self.measured: dict[tuple[int, int], int] = {}
        self.most_generations = SPARE_GENERATIONS + len(self.table.op)
        self.rewritten: set[int] = set()
        self.windows: dict[tuple[int, int], str | None] = {}  # by leaf and scope

    def drive(self) -> None:
        found, failures = self.run.sweep_with_failures()
        self.push(found)
        while self.heap:
            while self.heap:
                if self.limit is not None and len(self.report.rewrites) >= self.limit:
                    self.report.stop_reason = "limit"
                    return
                self.step()
                if self.progress is not None:
                    self.progress(len(self.report.rewrites), len(self.heap))
            found, failures = self.run.sweep_with_failures()
            self.report.sweeps += 1
            self.push(found)
        self.report.stop_reason = "saturated"
        self.report_declined(failures)

    # -- the queue ---------------------------------------------------------------------------------

    def push(self, found: list[Raw]) -> None:
        table = self.table
        for raw in found:
            if raw in self.declined or raw in self.waiting:
                continue
            leaf = self.run.leaf(raw)
            root = leaf.root_of(leaf.decode_nodes(raw[1]))
            self.pushed += 1
            self.waiting.add(raw)
            heapq.heappush(
                self.heap, (-leaf.benefit, table.place(root), leaf.rule_index, leaf.index, self.pushed, raw, self.edits)
            )

    def step(self) -> None:
        *_, raw, at = heapq.heappop(self.heap)
        self.waiting.discard(raw)
        if raw in self.declined:
            return
        if at != self.edits and raw not in self.run.ask((self.run.anchor(raw),)):
            return
        leaf = self.run.leaf(raw)
        rule = self.run.rules[leaf.rule_index]
        match = self.run.match(raw)
        place = (leaf.index, self.table.scope_of[match.root_id])
        if place not in self.windows:
            self.windows[place] = self.run.in_window(leaf, match.root_id)
        problem = self.windows[place]
        if problem is not None:
            self.report.skipped.setdefault(rule.name, problem)
            self.declined[raw] = None
            return
        try:
            if self.left_out and identity(rule, match) in self.left_out:
                raise Decline("left out of the plan")
            edit = self.edit(rule, match)
            placement = edit.check()
        except Decline as decline:
            self.remember(raw, match, Declined(rule.name, self.table.label(self.core(match)), decline.reason))
            return
        except NoMatch:
            self.remember(raw, match, None)
            return
        self.check_progress(rule, match)
        at_risk = edit.constants_at_risk()
        effect = edit.apply(placement, self.pool)
        self.account(rule, match, effect, at_risk)

    def edit(self, rule: Rule, match: Match) -> Edit:
        returned = self.call(rule, match)
        if returned is not None and not isinstance(returned, dict):
            raise RuleError(
                f"rule {rule.name!r} ({rule.place}), at node {match.root.name!r}: its callback returned "
                f"{type(returned).__name__}; a dict of the target's parameters (or None) was expected"
            )
        edit = match.edit if rule.definition.target is None else edit_of(match, returned)
        if edit.is_empty or self.is_idle(edit):
            raise RuleError(
                f"rule {rule.name!r} ({rule.place}), at node {match.root.name!r}: it claims a change without making "
                "one; raise NoMatch where there is nothing to do"
            )
        return edit

    def call(self, rule: Rule, match: Match) -> Any:
        """What the rule's callback returns."""
        return guarded(rule, match, "callback", rule.call)

    def is_idle(self, edit: Edit) -> bool:
        """Whether an edit would only take away nodes that are still needed, or write what is there already."""
        table = self.table
        if edit.nodes or edit.replacements or edit.inlined:
            return False
        if any(isinstance(v, int) is False or _input(table, n, k) != v for n, k, v in edit.inputs):
            return False
        if any(table.attributes(n).get(name) != value for n, name, value in edit.attributes):
            return False
        return all(any(table.uses[v] or table.output_count[v] for v in table.outputs[n]) for n in edit.removals)

    # -- after an edit -----------------------------------------------------------------------------

    def account(self, rule: Rule, match: Match, effect: Effect, at_risk: list[int]) -> None:
        table = self.table
        self.edits += 1
        table.types_known.clear()
        table.types_stated.clear()
        self.rewritten.add(self._core)
        self.rewritten.update(effect.changed)
        self.report.matches.append(identity(rule, match))
        self.report.rewrites.append(
            Rewrite(
                rule.name,
                self._name_of_match,
                tuple(table.label(n) for n in effect.added if table.op[n]),
                tuple(table.label(n) for n in effect.changed if table.op[n]),
                tuple(effect.removed),
                dict(match.notes),
            )
        )
        if table.ir_version >= OLDEST_IR:
            self.mark(rule, effect)
        for node in (*effect.added, *effect.changed):
            self.generation[node] = self._generation
            self.lineage[node] = self._lineage
            if self._measure is not None:
                self.measured[(id(rule.definition), node)] = self._measure
        nodes, values, produced = table.touched_nodes, table.touched_values, table.touched_producers
        anchors = self.run.reach.anchors(table, nodes, values, produced, at_risk)
        if self.watchers:
            for key in (*(("n", n) for n in nodes), *(("v", v) for v in (*values, *produced))):
                for watcher in self.watchers.pop(key, ()):
                    if self.declined.pop(watcher, self) is not self:
                        anchor = self.run.anchor(watcher)
                        if table.op[anchor]:
                            anchors.add(anchor)
        table.touched_nodes, table.touched_values, table.touched_producers = set(), set(), set()
        if effect.inlined:  # types that nobody could know become known: let every decline be asked again
            self.declined.clear()
        self.push(self.run.ask(sorted(anchors)))

    def mark(self, rule: Rule, effect: Effect) -> None:
        """Let the new nodes say where they come from."""
        for node in effect.added:
            handle = self.table.handle[node]
            if isinstance(handle, NewNode):
                handle.metadata = origin(rule, self._sources)

    def check_progress(self, rule: Rule, match: Match) -> None:
        """Stop what could go on for ever, before the edit. Raises RuleError."""
        matched = nodes_of(match)
        self._core = self.core(match)
        self._sources = [self.table.label(n) for n in matched]
        self._name_of_match = self.table.label(self._core)
        script = match._leaf.script
        measure = rule.definition.measure
        self._measure: int | None = None
        generation = 0
        self._lineage: tuple[str, ...] = (rule.name,)
        for node in matched:
            if self.generation.get(node, 0) > generation:
                generation = self.generation[node]
                self._lineage = (*self.lineage[node][-15:], rule.name)
        if measure is not None:
            self._measure = guarded(rule, match, "measure", measure)
            for node in matched:
                before = self.measured.get((id(rule.definition), node))
                if before is not None and self._measure >= before:
                    raise RuleError(
                        f"rule {rule.name!r} ({rule.place}), at node {match.root.name!r}: its measure must fall, "
                        f"but went from {before} to {self._measure}"
                    )
        elif script is None or not script.shrinks:
            generation += 1
        if generation > self.most_generations:
            names = ", ".join(map(repr, dict.fromkeys(self._lineage)))
            raise RuleError(
                f"rules chase each other without end at node {match.root.name!r}: {names}; "
                "give one of them a measure that falls, or a condition that its own result does not meet"
            )
        self._generation = generation

    # -- declines ----------------------------------------------------------------------------------

    def remember(self, raw: Raw, match: Match, declined: Declined | None) -> None:
        """Keep a decline until something that it looked at changes."""
        self.declined[raw] = declined
        self.declined_at[raw] = (self.core(match), self.table.place(match.root_id))
        for node in nodes_of(match):
            self.watchers.setdefault(("n", node), set()).add(raw)
        for bound in match._values.values():
            for value in bound if isinstance(bound, list) else (bound,):
                self.watchers.setdefault(("v", value), set()).add(raw)
        for value in match.read_values:
            self.watchers.setdefault(("v", value), set()).add(raw)

    def core(self, match: Match) -> int:
        """The node that a match is about: its core, else its root."""
        core = match._leaf.variant.core
        if core is not None and core.node is not None:
            return flat(match._nodes[id(core.node)])[0]
        return match.root_id

    def report_declined(self, failures: list[Failure]) -> None:
        """One reason per node: what a callback said, else the question that failed furthest along."""
        table, program = self.table, self.run.program
        said: dict[int, tuple[tuple[int, ...], Declined]] = {}
        for raw, declined in self.declined.items():
            if declined is None:
                continue
            core, _ = self.declined_at[raw]
            if table.op[core] and core not in said and core not in self.rewritten:
                said[core] = (table.place(core), declined)
        best: dict[int, tuple[int, Declined]] = {}
        for decline, core, seen in failures:
            if core in said or core in self.rewritten:
                continue
            info = program.declines[decline]
            for number in info.variants:
                leaf = program.leaves[number]
                if self.run.in_window(leaf, core) is not None:
                    continue
                progress = next(k for k, (step, _) in enumerate(leaf.lowered.steps) if step == info.step)
                progress -= len(leaf.lowered.steps)  # how many questions were left
                if core in best and best[core][0] >= progress:
                    continue
                labels = leaf.lowered.labels
                words = sentence(info.question, lambda p, labels=labels: labels.get(p, "a value"), table, seen)  # type: ignore[misc]
                best[core] = (progress, Declined(self.run.rules[leaf.rule_index].name, table.label(core), words))
        everything = [(place, d) for place, d in said.values()]
        everything += [(table.place(core), d) for core, (_, d) in best.items()]
        self.report.declined.extend(d for _, d in sorted(everything, key=lambda item: item[0]))


def nodes_of(match: Match) -> list[int]:
    return [n for captured in match._nodes.values() for n in flat(captured)]


def identity(rule: Rule, match: Match) -> Identity:
    """What tells a match from others of a run, and is the same in every run on the same model."""
    return rule.name, tuple(sorted(nodes_of(match)))


def guarded(rule: Rule, match: Match, what: str, call: Callable[[Match], T]) -> T:
    """Call an author's function; what it did not mean to raise becomes a RuleError with the line that raised it."""
    try:
        return call(match)
    except (Decline, NoMatch, RewriterError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split())
        raise RuleError(
            f"rule {rule.name!r} ({rule.place}), at node {match.root.name!r}: its {what} raised "
            f"{type(error).__name__}: {words} ({last.filename}:{last.lineno})"
        ) from error


def _input(table: Table, node: int, slot: int) -> int:
    inputs = table.inputs[node]
    return inputs[slot] if slot < len(inputs) else 0
