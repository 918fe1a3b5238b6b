"""Rule sets by name: what `--rules` and `--set` of the command line stand for.

A name is one that the package `rules` ships (`weight_bias`), an attribute of any module
(`package.module:name`) or of a file (`my_rules.py:name`). Options are the fields of a rule set's dataclass,
read as the type that the field is declared with. Every mistake is a `RuleNameError` of one line.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
import types
import typing
import zlib
from collections.abc import Iterable, Sequence
from functools import reduce
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from rewriter.errors import RewriterError
from rewriter.rule import Combined, Rule, RuleSet


class RuleNameError(RewriterError):
    """A name or an option that stands for nothing."""


def shipped() -> dict[str, RuleSet]:
    """The rule sets of the package `rules`, and those that installed packages add by the entry point group
    `rewriter.rules`, by name."""
    module = importlib.import_module("rules")
    found = {name: getattr(module, name) for name in sorted(module.__all__)}
    sets = {name: value for name, value in found.items() if isinstance(value, RuleSet)}
    for entry in sorted(entry_points(group="rewriter.rules"), key=lambda e: e.name):
        try:
            added = entry.load()
        except (Exception, SystemExit) as error:  # whatever somebody's package raises
            raise RuleNameError(f"cannot load the rule set {entry.name!r} ({entry.value}): {brief(error)}") from error
        if isinstance(added, RuleSet):
            sets.setdefault(entry.name, added)
    return sets


def resolve(names: Sequence[str], settings: Sequence[str] = ()) -> RuleSet:
    """The rule sets of these names, run together, with `key=value` options set where a set has them."""
    sets = [rule_set(name) for name in names]
    taken: set[str] = set()
    parsed = [setting(text) for text in settings]
    sets = [configured(one, parsed, taken) for one in sets]
    for key, _ in parsed:
        if key not in taken:
            known = sorted({field.name for one in sets for field in options(one)})
            raise RuleNameError(f"{', '.join(names)} has no option {key!r}; {listed(key, known, 'options')}")
    try:
        return reduce(lambda a, b: a + b, sets)
    except TypeError as error:
        raise RuleNameError(f"{' + '.join(names)}: {error}") from None


def advised(backend: str, settings: Sequence[str] = ()) -> RuleSet:
    """The rule sets that the package `rules` advises for a backend, with `key=value` options of theirs."""
    sets = shipped().values()
    known = {field.name: one for one in sets for field in options(one)}
    values: dict[str, Any] = {}
    for key, text in map(setting, settings):
        if key not in known:
            raise RuleNameError(f"there is no option {key!r}; {listed(key, known, 'options')}")
        collect(values, key, parse(key, text, declared(known[key], key)))
    try:
        found: RuleSet = importlib.import_module("rules").for_backend(backend, **values)
    except (TypeError, ValueError) as error:
        raise RuleNameError(str(error)) from None
    return found


def rule_set(name: str) -> RuleSet:
    """The rule set of a name."""
    place, colon, attribute = name.rpartition(":")
    if colon and not (place and attribute):
        raise RuleNameError(f"{name!r} names no rule set; it is written module:attribute or file.py:attribute")
    if not colon:
        if name.endswith(".py"):
            module = load_file(Path(name))
            names = [n for n, value in vars(module).items() if isinstance(value, RuleSet)]
            raise RuleNameError(f"which rule set of {name}? write {name}:NAME; {listed('', names, 'rule sets')}")
        known = shipped()
        if name not in known:
            raise RuleNameError(
                f"the package rules has no rule set {name!r}; {listed(name, known, 'rule sets')} "
                "(others are named module:attribute or file.py:attribute)"
            )
        return known[name]
    module = load_file(Path(place)) if place.endswith(".py") else load_module(place)
    found = getattr(module, attribute, None)
    if isinstance(found, type) and issubclass(found, RuleSet):
        try:
            found = found()
        except TypeError as error:
            raise RuleNameError(f"{name}: {error}") from None
    if not isinstance(found, RuleSet):
        names = [n for n, value in vars(module).items() if isinstance(value, RuleSet)]
        raise RuleNameError(f"{place} has no rule set {attribute!r}; {listed(attribute, names, 'rule sets')}")
    return found


def load_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does; a console script has its own folder there
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a person's module raises
        raise RuleNameError(f"cannot import {name}: {brief(error)}") from error


def load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RuleNameError(f"there is no file {path}")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)  # for what it imports from beside it
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_{zlib.crc32(str(path.resolve()).encode()):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # ONNX Script and dataclasses look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RuleNameError(f"cannot load {path}: {brief(error)}") from error
    return module


def brief(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    if isinstance(error, RewriterError):
        return " ".join(text)
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RuleNameError(f"--set wants key=value, got {text!r}")
    return key.strip(), value.strip()


def options(rules: RuleSet) -> tuple[dataclasses.Field[Any], ...]:
    """The fields that a person may set."""
    held: Any = rules
    if isinstance(held, (Rule, Combined)) or not dataclasses.is_dataclass(held):
        return ()
    return tuple(field for field in dataclasses.fields(held) if field.init)


def configured(rules: RuleSet, settings: Iterable[tuple[str, str]], taken: set[str]) -> RuleSet:
    """The rule set with those of the settings that it has; `taken` gets their names."""
    known = {field.name for field in options(rules)}
    values: dict[str, Any] = {}
    for key, text in settings:
        if key in known:
            taken.add(key)
            collect(values, key, parse(key, text, declared(rules, key)))
    if not values:
        return rules
    try:
        made: RuleSet = dataclasses.replace(rules, **values)  # type: ignore[type-var]
    except (TypeError, ValueError) as error:
        raise RuleNameError(f"--set {', '.join(values)}: {error}") from None
    return made


def collect(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets an option; one that holds several values gets more of them."""
    values[key] = values[key] + value if key in values and isinstance(value, tuple) else value


def declared(rules: RuleSet, key: str) -> tuple[type, ...]:
    """The types that an option may have: as its field is annotated, else that of its value now."""
    try:
        hint = typing.get_type_hints(type(rules)).get(key)
    except Exception:  # whatever a person's annotations raise
        hint = None
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found = tuple(typing.get_origin(kind) or kind for kind in kinds)
    return found if all(isinstance(kind, type) for kind in found) else (type(getattr(rules, key)),)


def parse(key: str, text: str, kinds: tuple[type, ...]) -> Any:
    """The text as a value of the first of these types that there is a form for."""
    if text.lower() == "none" and type(None) in kinds:
        return None
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    kind = next((one for one in (bool, int, float, tuple) if one in kinds), str)
    try:
        if kind is bool:
            return words[text.lower()]
        if kind in (int, float):
            return kind(text)
    except (KeyError, ValueError):
        what = "true or false" if kind is bool else f"a number ({kind.__name__})"
        what += " or none" if type(None) in kinds else ""
        raise RuleNameError(f"--set {key}: expected {what}, got {text!r}") from None
    if kind is tuple:
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if not parts:
            raise RuleNameError(f"--set {key}: expected one or more values with commas between them, got {text!r}")
        return parts
    return text


def listed(word: str, known: Iterable[str], what: str) -> str:
    """A hint: the name that was probably meant, else all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1, 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"its {what} are {', '.join(names)}" if names else f"it has no {what}"


def summary(rules: RuleSet) -> str:
    """The first line of a rule set's documentation."""
    text = inspect.getdoc(rules) or inspect.getdoc(type(rules)) or ""
    return text.strip().splitlines()[0] if text.strip() else ""
