"""Rules and rule sets: what an author writes, as values.

`@rule(source, target)` turns a replacement callback into a `Rule`: the scripts are read at once, so that a mistake is
an error where it was made. A rule set is a frozen dataclass whose fields are options and whose methods decorated with
`@rule` are its rules; a single rule is a set of one. Sets are combined without being run: `a + b` run together, `a >>
b` one after the other, `.only(...)` and `.without(...)` choose by name.
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import onnxscript

from rewriter import schemas
from rewriter.errors import RuleError
from rewriter.pattern.graph import PatternGraph, Place

if TYPE_CHECKING:
    from rewriter.compiler.edits import EditScript
    from rewriter.compiler.variants import Variant
    from rewriter.engine.match import Match

Callback = Callable[..., Mapping[str, Any] | None]
Script = onnxscript.OnnxFunction[..., Any]
Window = tuple[int, int | None]
Bound = Callable[..., Any]


class RuleSet:
    """Rules that belong together. Subclass it as a frozen dataclass, with `@rule` methods.

    confluent: whether the set claims that the result does not depend on the order in which matches are rewritten,
    byte for byte. (That order is always the same: so it is a promise about the rules, for those who change them.)
    """

    confluent: ClassVar[bool] = False

    def stages(self) -> tuple[tuple[Rule, ...], ...]:
        """The rules, stage by stage; those of one stage run together until nothing changes."""
        found: dict[str, None] = {}
        for base in reversed(type(self).__mro__):
            for name, item in vars(base).items():
                if isinstance(item, Rule):
                    found.setdefault(name)
        rules = (getattr(self, name) for name in found)
        return (tuple(r for r in rules if isinstance(r, Rule) and r.is_enabled()),)

    def _repr_html_(self) -> str:
        from rewriter.notebook import rules_html

        return rules_html(self)

    def rules(self) -> tuple[Rule, ...]:
        """The rules of all stages."""
        return tuple(r for stage in self.stages() for r in stage)

    def __add__(self, other: RuleSet) -> RuleSet:
        if not isinstance(other, RuleSet):
            return NotImplemented
        mine, theirs = self.stages(), other.stages()
        if len(mine) > 1 or len(theirs) > 1:
            raise TypeError("`+` joins rule sets of one stage; write a >> (b + c) to say when the others run")
        return Combined((mine[0] + tuple(r for r in theirs[0] if r not in mine[0]),))

    def __rshift__(self, other: RuleSet) -> RuleSet:
        if not isinstance(other, RuleSet):
            return NotImplemented
        return Combined(self.stages() + other.stages())

    def only(self, *names: str) -> RuleSet:
        """The rules whose name fits one of these patterns (`"conv*"`). Raises ValueError where none does."""
        return self._choose(names, True)

    def without(self, *names: str) -> RuleSet:
        """All but the rules whose name fits one of these patterns. Raises ValueError where none does."""
        return self._choose(names, False)

    def _choose(self, names: Sequence[str], keep: bool) -> RuleSet:
        known = [r.name for r in self.rules()]
        for pattern in names:
            if not fnmatch.filter(known, pattern):
                raise ValueError(f"no rule is called {pattern!r}; there are {', '.join(sorted(set(known)))}")
        return Combined(
            tuple(
                tuple(r for r in stage if any(fnmatch.fnmatchcase(r.name, n) for n in names) == keep)
                for stage in self.stages()
            )
        )

    def source(self) -> str:
        """The compiled matcher of these rules, as Python source."""
        from rewriter.compiler.program import program_for

        return "\n\n".join(program_for(stage, {}).source for stage in self.stages())


@dataclass(frozen=True, eq=False)
class Combined(RuleSet):
    """What `+`, `>>`, `only` and `without` make."""

    parts: tuple[tuple[Rule, ...], ...]

    def stages(self) -> tuple[tuple[Rule, ...], ...]:
        return self.parts


@dataclass(frozen=True, eq=False)
class Definition:
    """What `@rule` was given, read: shared by every bound form of one rule."""

    name: str
    place: Place
    sources: tuple[PatternGraph, ...]
    target: PatternGraph | None
    callback: Callback | None
    inherit: Mapping[str, str | tuple[str, ...]]
    commute: bool
    benefit: int | None
    opset: Window | None
    measure: Callable[[Match], int] | None
    enabled: Callable[[Any], bool] | None
    module: str = ""  # where it was written
    bound: Bound | None = None

    @cached_property
    def variants(self) -> tuple[tuple[Variant, EditScript | None], ...]:
        """Every concrete form of every source, with the edit script that leads from it to the target."""
        from rewriter.compiler.edits import edit_script
        from rewriter.compiler.variants import variants_of

        found: list[tuple[Variant, EditScript | None]] = []
        for graph in self.sources:
            for variant in variants_of(graph):
                script = None if self.target is None else edit_script(variant, self.target, self.inherit)
                found.append((variant, script))
        return tuple(found)

    def window(self, variant: Variant) -> dict[str, Window]:
        """Per domain, the opset versions at which the variant means what its author wrote."""
        found: dict[str, Window] = {}
        graphs = [(variant.graph, variant.nodes)]
        if self.target is not None:
            graphs.append((self.target, self.target.nodes()))
        for graph, nodes in graphs:
            for node in nodes:
                for key in node.types:
                    domain, _ = schemas.split_key(key)
                    if domain == "" and self.opset is not None:
                        found[""] = self.opset
                        continue
                    version = graph.opsets.get(domain, 1)
                    low, high = schemas.agreeing_versions(key, version, frozenset(node.attributes))
                    known = found.get(domain, (1, None))
                    highs = [h for h in (high, known[1]) if h is not None]
                    found[domain] = (max(low, known[0]), min(highs) if highs else None)
        return found


@dataclass(frozen=True, eq=False)
class Rule(RuleSet):
    """One rule; on an instance of a rule set, bound to it. Made by `@rule`."""

    definition: Definition
    owner: Any = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def place(self) -> Place:
        return self.definition.place

    @property
    def module(self) -> str:
        """The module that the rule was written in."""
        return self.definition.module

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        callback = self.definition.callback
        return callback.__doc__ if callback is not None else None

    def stages(self) -> tuple[tuple[Rule, ...], ...]:
        return ((self,),)

    def is_enabled(self) -> bool:
        enabled = self.definition.enabled
        return enabled is None or bool(enabled(self.owner))

    def __get__(self, instance: Any, owner: type | None = None) -> Rule:
        return self if instance is None else replace(self, owner=instance)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and other.definition is self.definition and other.owner == self.owner

    def __hash__(self) -> int:
        return id(self.definition)

    def __repr__(self) -> str:
        return f"Rule({self.name!r}, {self.place})"

    def _repr_html_(self) -> str:
        from rewriter.notebook import rule_html

        return rule_html(self)

    def call(self, match: Match) -> Mapping[str, Any] | None:
        """Run the callback on a match."""
        callback = self.definition.callback
        if callback is None:
            return {}
        return callback(match) if self.owner is None else callback(self.owner, match)

    def bounds(self, match: Match) -> tuple[Any, ...]:
        """By how much each returned value may differ, in units of that value, elementwise: 0 where nothing is declared.

        Asked after the callback has returned, so that what it noted (`match.notes`) can be used.

        Raises RuleError where the bound's function fails, or gives another number of bounds than there are values.
        """
        count = len(self.definition.sources[0].outputs)
        if self.definition.bound is None:
            return (0.0,) * count
        try:
            bound = self.definition.bound
            found = bound(match) if self.owner is None else bound(self.owner, match)
        except Exception as error:
            raise RuleError(f"rule {self.name!r} ({self.place}): its bound failed: {error!r}") from error
        each = found if isinstance(found, tuple) else (found,)
        if len(each) != count:
            raise RuleError(f"rule {self.name!r} ({self.place}): {len(each)} bound(s) for {count} returned value(s)")
        return each


def rule(
    source: Script | Sequence[Script],
    target: Script | None = None,
    *,
    inherit: Mapping[str, str | tuple[str, ...]] | None = None,
    commute: bool = True,
    benefit: int | None = None,
    opset: Window | int | None = None,
    measure: Callable[[Match], int] | None = None,
    enabled: Callable[[Any], bool] | None = None,
    bound: Bound | None = None,
    name: str | None = None,
) -> Callable[[Callback], Rule]:
    """Make a rule of a replacement callback.

    The callback takes a `Match` (after `self`, in a rule set) and returns values for those parameters of `target`
    that no source binds, as a dict. Without `target` it edits through `m.edit`.

    Args:
        source: the pattern, or several for one target (associations, opset forms).
        target: what it becomes.
        inherit: source name -> target name(s): a new node that takes over the attributes (and, for P.Op, the type)
            of a matched one.
        commute: match commutative ops in either order.
        benefit: matches of higher benefit are rewritten first; default: the number of matched nodes.
        opset: (lowest, highest or None) version of ai.onnx at which the rule holds; default: where the schemas of all
            that it uses agree with those at the scripts' version.
        measure: a number that must fall each time the rule is applied to what it made itself.
        enabled: says from the rule set's options whether the rule takes part.
        bound: `bound(match)` (after `self`, in a rule set), asked once the callback has returned: by how much the
            returned value may differ from what the source gives, absolute, in units of that value (codes, for an
            integer one); a number or an array that broadcasts to the value, a tuple of those for several values.
            `check` and `verify` hold the rule to it; default: not at all.
        name: the rule's name; default: the callback's.

    Raises:
        RuleError: for mistakes in the scripts that can be known now, naming file:line.
    """

    def decorate(callback: Callback) -> Rule:
        return make_rule(
            name or callback.__name__,
            place_of(callback),
            source,
            target,
            callback,
            inherit=inherit or {},
            commute=commute,
            benefit=benefit,
            opset=opset,
            measure=measure,
            enabled=enabled,
            bound=bound,
        )

    return decorate


def rewrite(source: Script | Sequence[Script], target: Script, *, name: str | None = None, **options: Any) -> Rule:
    """A rule without a callback: the target's parameters are all bound by the source."""
    first = source if isinstance(source, onnxscript.OnnxFunction) or callable(source) else source[0]
    if not isinstance(first, onnxscript.OnnxFunction) or not isinstance(target, onnxscript.OnnxFunction):
        wrong = target if isinstance(first, onnxscript.OnnxFunction) else first
        raise RuleError(f"{wrong!r} is no @script() function; decorate it with @script(default_opset=...)")
    options.setdefault("inherit", {})
    for option in ("benefit", "opset", "measure", "enabled", "bound"):
        options.setdefault(option, None)
    options.setdefault("commute", True)
    return make_rule(name or target.name, place_of(first.function), source, target, None, **options)


def make_rule(
    name: str,
    place: Place,
    source: Script | Sequence[Script],
    target: Script | None,
    callback: Callback | None,
    *,
    inherit: Mapping[str, str | tuple[str, ...]],
    commute: bool,
    benefit: int | None,
    opset: Window | int | None,
    measure: Callable[[Match], int] | None,
    enabled: Callable[[Any], bool] | None,
    bound: Bound | None,
) -> Rule:
    from rewriter.reading import read_script

    where = f"rule {name!r} ({place})"
    scripts = [source] if isinstance(source, onnxscript.OnnxFunction) else list(source)
    for script in (*scripts, *([] if target is None else [target])):
        if not isinstance(script, onnxscript.OnnxFunction):
            raise RuleError(f"{where}: {script!r} is no @script() function")
    sources = tuple(read_script(s, "source") for s in scripts)
    goal = None if target is None else read_script(target, "target")
    window: Window | None = (opset, None) if isinstance(opset, int) else opset
    written: Any = callback or scripts[0].function if scripts else callback
    definition = Definition(
        name, place, sources, goal, callback, inherit, commute, benefit, window, measure, enabled,
        getattr(written, "__module__", "") or "", bound,
    )  # fmt: skip
    if not sources:
        raise RuleError(f"{where}: it has no source")
    check_sides(definition, where)
    try:
        definition.variants  # noqa: B018 - mistakes show when variants and edit scripts are made
    except RuleError as error:
        raise RuleError(f"{where}: {error}") from None
    return Rule(definition)


def check_sides(definition: Definition, where: str) -> None:
    """What can be known before any model is seen."""
    target = definition.target
    if target is None:
        if definition.callback is None:
            raise RuleError(f"{where}: it has neither a target nor a callback")
        return
    for graph in definition.sources:
        if len(graph.outputs) != len(target.outputs):
            raise RuleError(
                f"{where}: {graph.name!r} returns {len(graph.outputs)} value(s), its target {target.name!r} "
                f"{len(target.outputs)}; the k-th replaces the k-th"
            )
    if definition.callback is None:
        bound = set.intersection(*({*g.parameters, *g.attribute_parameters} for g in definition.sources))
        free = [n for n in (*target.parameters, *target.attribute_parameters) if n not in bound]
        free = [
            n for n in free if n not in target.attribute_parameters or target.attribute_parameters[n].default is None
        ]
        if free:
            raise RuleError(
                f"{where}: nothing provides {', '.join(map(repr, free))} of the target {target.name!r} "
                f"({target.place}); bind it in every source, or write a callback that returns it"
            )
    names = {v.name for g in definition.sources for n in g.nodes() for v in n.outputs if v.name}
    for name in definition.inherit:
        if name not in names:
            raise RuleError(f"{where}: inherit names {name!r}, which no source assigns")


def place_of(function: Callable[..., Any]) -> Place:
    code = inspect.unwrap(function).__code__
    return Place(code.co_filename, code.co_firstlineno)
