"""What a note can tell beside its line: the protocol by which reports show figures of which the engine knows nothing.

`match.note(unit=...)` takes any object. Its `str` is its line; each method below is optional, is asked for only when a
report is made of the run (as JSON or as a page), and gives plain values, so that a rule set needs nothing but them:

- `as_dict()`: every figure by name, for JSON (without it, `figures`, else the line);
- `figures()`: the few that stand in a table, by a label that ends with the unit, "SNR [dB]" (None where there is none).
  The first of them is drawn for all rewrites in one chart, and those after it in the same unit beside it;
- `error()`: how much is lost, by which rewrites are sorted, largest first; None where that is not known;
- `sizes()`: bytes of what was replaced, and of what replaces it;
- `histograms()`: title -> series ("before", "after") -> counts [n] and edges [n + 1], as `numpy.histogram` gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rewriter.report import Rewrite

Figures = Mapping[str, "float | int | None"]
Histograms = Mapping[str, Mapping[str, tuple[Sequence[Any], Sequence[Any]]]]


@runtime_checkable
class AsDict(Protocol):
    def as_dict(self) -> Mapping[str, Any]: ...


@runtime_checkable
class HasFigures(Protocol):
    def figures(self) -> Figures: ...


@runtime_checkable
class HasError(Protocol):
    def error(self) -> float | None: ...


@runtime_checkable
class HasSizes(Protocol):
    def sizes(self) -> tuple[int, int]: ...


@runtime_checkable
class HasHistograms(Protocol):
    def histograms(self) -> Histograms: ...


def figures(rewrite: Rewrite) -> dict[str, float | int | None]:
    """Of all notes of a rewrite; of equal labels the first counts."""
    found: dict[str, float | int | None] = {}
    for note in rewrite.notes.values():
        if isinstance(note, HasFigures):
            found = {**note.figures(), **found}
    return found


def error(rewrite: Rewrite) -> float | None:
    """The largest that a note of the rewrite tells; None where none does."""
    told = [note.error() for note in rewrite.notes.values() if isinstance(note, HasError)]
    return max((one for one in told if one is not None), default=None)


def sizes(rewrites: Iterable[Rewrite]) -> tuple[int, int] | None:
    """Bytes before and after, summed over the notes that tell them; None where none does."""
    told = [note.sizes() for one in rewrites for note in one.notes.values() if isinstance(note, HasSizes)]
    return (sum(before for before, _ in told), sum(after for _, after in told)) if told else None


def has_histograms(rewrite: Rewrite) -> bool:
    """Whether a note has any to give, without asking for them."""
    return any(isinstance(note, HasHistograms) for note in rewrite.notes.values())


def histograms(rewrite: Rewrite) -> dict[str, Mapping[str, tuple[Sequence[Any], Sequence[Any]]]]:
    """Of all notes of a rewrite, by title."""
    told = (note.histograms() for note in rewrite.notes.values() if isinstance(note, HasHistograms))
    return {title: series for one in told for title, series in one.items()}


def by_error(rewrites: Sequence[Rewrite]) -> list[int]:
    """The indices of rewrites, the largest error first; those without one last, in their order."""
    errors = [error(one) for one in rewrites]
    known = sorted((-e, i) for i, e in enumerate(errors) if e is not None and e == e)
    listed = {i for _, i in known}
    return [i for _, i in known] + [i for i in range(len(rewrites)) if i not in listed]


def plain_notes(rewrite: Rewrite) -> dict[str, Any]:
    """The notes that are plain values."""
    return {key: note for key, note in rewrite.notes.items() if is_plain(note)}


def is_plain(note: Any) -> bool:
    """Whether a note is shown beside its name, and not by a line of its own."""
    return note is None or isinstance(note, (str, int, float, list, tuple, dict))
