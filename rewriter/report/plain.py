"""A report as plain values: what JSON can hold, the same for the same run.

The form is versioned, and `schema.json` beside this file says what it is. JSON knows no infinities, and null would not
tell a ratio without noise from one that nobody computed: so they are the strings "Infinity", "-Infinity" and "NaN",
which `float` reads in Python and `Number` in JavaScript.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Set
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from rewriter.report.notes import AsDict, HasFigures

if TYPE_CHECKING:
    from rewriter.report import Report

SCHEMA = "qdq-rewriter/report"
VERSION = 1


def report_as_dict(report: Report) -> dict[str, Any]:
    """The whole report."""
    statistics = report.statistics
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "counts": dict(report.counts),
        "rewrites": [
            {
                "rule": one.rule,
                "node": one.node,
                "added": list(one.added),
                "changed": list(one.changed),
                "removed": list(one.removed),
                "notes": plain(one.notes),
            }
            for one in report.rewrites
        ],
        "declined": [{"rule": one.rule, "node": one.node, "reason": one.reason} for one in report.declined],
        "skipped": dict(report.skipped),
        "stop_reason": report.stop_reason,
        "sweeps": report.sweeps,
        "statistics": None if statistics is None else plain(dataclasses.asdict(statistics)),
    }


def plain(value: Any) -> Any:
    """A value as JSON can hold it: a note by its `as_dict` or `figures`, an array as a list, else by its line."""
    if isinstance(value, AsDict):
        value = value.as_dict()
    elif isinstance(value, HasFigures):
        value = value.figures()
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else json.dumps(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Set):
        return sorted((plain(one) for one in value), key=repr)
    return str(value)


def report_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `report_as_dict`."""
    found: dict[str, Any] = json.loads(files(__package__).joinpath("schema.json").read_text("utf-8"))
    return found
