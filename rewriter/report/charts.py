"""The charts of the page, as inline SVG made by matplotlib: the same figures give the same bytes.

Text stays text, so that it can be read, found and scaled. What identifies a part of a picture is made of the picture's
name, for one page holds many pictures.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#8a94a6", "#c2410c", "#0f766e", "#7c3aed")
MOST_LETTERS = 44

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a name may hold dollars
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa3b2",
    "axes.labelcolor": "#4b5563",
    "xtick.color": "#9aa3b2",
    "ytick.color": "#9aa3b2",
    "xtick.labelcolor": "#4b5563",
    "ytick.labelcolor": "#4b5563",
    "legend.frameon": False,
}


def dots(name: str, rows: Sequence[tuple[str, str, Sequence[float | None]]], labels: Sequence[str]) -> str:
    """A row for each (label, link, figures), read from above; the same figure of all rows in one colour."""
    with _figure(name, 11.4, 0.8 + 0.175 * len(rows)) as figure:
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot()
        for k, label in enumerate(labels):
            known = [(x, place, link) for place, (_, link, figures) in enumerate(rows) if (x := figures[k]) is not None]
            drawn = axes.scatter(
                [x for x, _, _ in known], [y for _, y, _ in known], s=26, color=COLOURS[1 + k % 3], label=label,
                zorder=9 - k,
            )  # fmt: skip
            drawn.set_urls([link for _, _, link in known])
        for place, (_, _, figures) in enumerate(rows):
            held = [x for x in figures if x is not None]
            axes.plot([min(held), max(held)], [place, place], color="#cbd2dc", linewidth=2, zorder=2)
        axes.set_yticks(range(len(rows)), [_short(row[0]) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.tick_top()
        axes.spines["bottom"].set_visible(False)
        axes.grid(axis="x", color="#e5e7eb", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(labels), borderaxespad=1.8, handletextpad=0.1)
        return _svg(name, figure)


def histograms(name: str, shown: Mapping[str, Mapping[str, tuple[Sequence[Any], Sequence[Any]]]]) -> str:
    """Beside one another, one for each title; its series are laid over one another.

    Places and ticks are given, because matplotlib takes most of its time to find them.
    """
    count = len(shown)
    with _figure(name, 4.6 * count, 2.0) as figure:
        for k, (title, series) in enumerate(shown.items()):
            axes = figure.add_axes(((k + 0.12) / count, 0.13, 0.82 / count, 0.74))
            for place, (label, (counts, edges)) in enumerate(series.items()):
                axes.stairs(
                    counts, edges, label=label, color=COLOURS[place % len(COLOURS)], fill=not place, linewidth=1.1,
                    alpha=None if place else 0.55,
                )  # fmt: skip
            low = min(float(edges[0]) for _, edges in series.values())
            high = max(float(edges[-1]) for _, edges in series.values())
            most = max(max(counts, default=0) for counts, _ in series.values())
            ticks = [low, 0.0, high] if 0.08 * low > -high and low < -0.08 * high else [low, high]
            axes.set_xlim(low, high)
            axes.set_ylim(0, 1.05 * most or 1)
            axes.set_xticks(ticks, [f"{one:.3g}" for one in ticks])
            axes.set_yticks([0, most], ["0", f"{most:,}"])
            axes.set_title(_short(title), fontsize=9, loc="left", color="#374151")
            if not k:
                axes.legend(handlelength=1.2, borderaxespad=0.1, loc="upper right")
        return _svg(name, figure)


@contextmanager
def _figure(name: str, width: float, height: float) -> Iterator[Figure]:
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {**STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has its own fonts
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield Figure(figsize=(width, height))


def _svg(name: str, figure: Figure) -> str:
    """The svg element alone, without what a page should not hold: names that nobody refers to, and a global style."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = out.getvalue()
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    return re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS // 3]}…{text[1 - MOST_LETTERS * 2 // 3 :]}"
