"""The account of a run as one HTML page that needs nothing else: no network, no script, no second file.

What a rewrite lost, in figures and histograms, its notes tell (`rewriter.report.notes`); what it did to the model is
drawn from the models themselves. Text of the model is escaped by the template, and the page forbids itself (by a
Content-Security-Policy) to run or load anything. The libraries that this takes are the extra `report`, imported when a
page is made.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rewriter.errors import RewriterError
from rewriter.report import Report, Rewrite, charts, notes
from rewriter.report.neighbourhood import Drawable, around
from rewriter.report.picture import picture
from rewriter.report.plain import plain
from rewriter.report.text import shown, what_was_done

if TYPE_CHECKING:
    from rewriter.api import Result

MOST_ROWS = 1000
MOST_DOTS = 80
MOST_HISTOGRAMS = 30  # matplotlib takes a tenth of a second for one; a picture takes a hundredth of that


class MissingLibrary(RewriterError, ImportError):
    """A library that an extra brings is not installed."""


class Page(str):
    """The HTML text; a notebook shows the page itself."""

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 720px; border: 1px solid #d1d5db"
        return f'<iframe srcdoc="{html.escape(self)}" style="{style}"></iframe>'


def require_libraries() -> None:
    """Raises MissingLibrary where the extra `report` is not installed."""
    for name in ("grandalf", "jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise MissingLibrary(f"the HTML report needs {name}: python -m pip install 'qdq-rewriter[report]'")


def html_report(result: Result[Any], before: Any = None, *, title: str | None = None, drawn: int = 100) -> Page:
    """What a run did and did not do, as one self-contained HTML page: the same for the same arguments.

    Args:
        result: what `rewriter.run` gave.
        before: the model that was passed to it, unchanged (onnx.ModelProto, onnx_ir.Model or path). Without it there
            are no pictures of the model before, and nothing that was counted in it.
        title: of the page [default: the name of the model].
        drawn: how many rewrites are shown with pictures, those of the largest error first, and the first 30 of them
            with histograms. Of what is left out, here and in tables beyond 1000 rows, the page says how much there is.

    Raises:
        MissingLibrary: the extra `report` is not installed.
        ModelError: a model cannot be read again.
    """
    require_libraries()
    import jinja2
    from markupsafe import Markup

    report = result.report
    new = Drawable(result.model)
    old = None if before is None else Drawable(before)
    order = notes.by_error(report.rewrites)
    detailed = order[: max(0, drawn)]
    figures = [notes.figures(one) for one in report.rewrites]
    columns = list(dict.fromkeys(label for one in figures for label in one))
    compared, comparable = _compared(figures, columns)
    dotted = sorted([index for index in order if index in comparable][:MOST_DOTS])

    def dots() -> Markup:
        links = [f"#{'rewrite' if index in detailed else 'row'}-{index + 1}" for index in dotted]
        values = [[_finite(figures[index].get(label)) for label in compared] for index in dotted]
        names = [report.rewrites[index].node for index in dotted]
        return Markup(charts.dots("figures", list(zip(names, links, values, strict=True)), compared))

    def details(index: int) -> dict[str, Any]:
        rewrite = report.rewrites[index]
        earlier, later, gone = around(rewrite, old, new)
        shown_in = [(word, one) for word, one in (("before", earlier), ("after", later)) if one is not None]
        bars = notes.histograms(rewrite) if index in order[:MOST_HISTOGRAMS] else {}
        return {
            "number": index + 1,
            "rewrite": rewrite,
            "what": what_was_done(rewrite),
            "first": _first(figures[index]),
            "pictures": [(word, picture(one)) for word, one in shown_in],
            "gone": gone,
            "histograms": Markup(charts.histograms(f"histogram-{index + 1}", bars)) if bars else None,
            "figures": _listed(rewrite),
        }

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(figure=_figure, size=_size)
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text("utf-8"))
    return Page(
        template.render(
            title=title or _name(result.model, new),
            report=report,
            new=new,
            old=old,
            operators=_operators(old, new),
            sizes=notes.sizes(report.rewrites),
            columns=columns,
            by_error=any(notes.error(one) is not None for one in report.rewrites),
            plain_notes=any(map(notes.plain_notes, report.rewrites)),
            rows=[_row(report, index, figures[index], columns, index in detailed) for index in order[:MOST_ROWS]],
            most_rows=MOST_ROWS,
            compared=compared,
            dots=dots() if dotted else None,
            dots_left_out=len(comparable) - len(dotted),
            dots_without=len(report.rewrites) - len(comparable),
            details=[details(index) for index in detailed],
            histograms_left_out=sum(
                map(notes.has_histograms, (report.rewrites[i] for i in detailed[MOST_HISTOGRAMS:]))
            ),
        )
    )


def _row(
    report: Report, index: int, figures: dict[str, float | int | None], columns: Sequence[str], linked: bool
) -> dict[str, Any]:
    rewrite = report.rewrites[index]
    return {
        "number": index + 1,
        "rewrite": rewrite,
        "linked": linked,
        "figures": [figures.get(label) for label in columns],
        "sizes": notes.sizes([rewrite]),
        "plain": ", ".join(f"{key}={shown(value)}" for key, value in notes.plain_notes(rewrite).items()),
    }


def _compared(figures: Sequence[dict[str, float | int | None]], columns: Sequence[str]) -> tuple[list[str], set[int]]:
    """The labels that are charted, which share the first one's unit, and the rewrites that have a finite figure."""
    if not columns:
        return [], set()
    unit = columns[0].rpartition("[")[2]
    labels = [label for label in columns if label == columns[0] or ("[" in label and label.rpartition("[")[2] == unit)]
    rows = {k for k, one in enumerate(figures) if any(_finite(one.get(label)) is not None for label in labels)}
    return labels, rows


def _operators(old: Drawable | None, new: Drawable) -> list[tuple[str, int, int]]:
    """Op types of which there are more or fewer than before: how many before and after."""
    if old is None:
        return []
    before, after = old.op_types(), new.op_types()
    names = sorted({**before, **after})
    return [(name, before.get(name, 0), after.get(name, 0)) for name in names if before.get(name) != after.get(name)]


def _listed(rewrite: Rewrite) -> list[tuple[str, str]]:
    """Every figure that the notes tell, by name; those of a note that is an object stand without the note's name."""
    listed: list[tuple[str, str]] = []
    for key, note in rewrite.notes.items():
        value = plain(note)
        pairs = (
            value.items()
            if isinstance(note, notes.AsDict | notes.HasFigures) and isinstance(value, dict)
            else [(key, value)]
        )
        listed += [(name, shown(one)) for name, one in pairs if one is not None]
    return listed


def _name(model: Any, drawable: Drawable) -> str:
    if isinstance(model, str | PathLike):
        return PurePath(model).name
    return drawable.model.graph.name or "model"


def _first(figures: dict[str, float | int | None]) -> str:
    """The first figure in words."""
    for label, value in figures.items():
        return (
            "" if value is None else f"{label.partition(' [')[0]} {_figure(value)} {label.partition('[')[2].strip(']')}"
        )
    return ""


def _finite(value: float | int | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _figure(value: float | int | None) -> str:
    """A figure as the page shows it."""
    if value is None:
        return ""
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _size(count: int) -> str:
    """Bytes, in the unit that suits."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"
