"""What the report page shows of a unit: the weight before and after as histograms, whole and of its worst channel.

The engine draws whatever a note tells by its `figures`, `error`, `sizes` and `histograms` (see `docs/report.md`); here
is what those are of a unit. Before and after share their edges, so that they can be laid over one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rules import quantization as qm

if TYPE_CHECKING:
    from rules.qdq_unit.unit_report import UnitReport, Weight

BINS = 64

Histogram = tuple[np.ndarray, np.ndarray]


def figures(unit: UnitReport) -> dict[str, float | None]:
    """Those that stand in a table; without a weight, or without constant scales, some are None."""
    shown = {
        "SNR of the weight [dB]": unit.snr,
        "its worst channel [dB]": None if unit.worst_channel is None else unit.worst_channel[1],
        "bias off by [steps]": unit.bias_error,
        "output off by at most [steps]": unit.bound_in_steps,
    }
    if unit.measured is not None:
        shown["measured SNR of the output [dB]"] = unit.measured.snr
    return shown


def error(unit: UnitReport) -> float | None:
    """The noise of the weight relative to it, root mean square."""
    return None if unit.snr is None else float(10 ** (-unit.snr / 20))


def histograms(unit: UnitReport) -> dict[str, dict[str, Histogram]]:
    """Of the weight, and of the channel that loses most: counts and edges of the values that it had and has."""
    weight = unit.weight
    if weight is None or not weight.after.codes.size:
        return {}
    before = weight.before.numpy().astype(np.float64) * weight.alpha
    after = qm.dequantize(weight.after, np.float64)
    shown = {f"weight {weight.name}": both(before, after)}
    if unit.worst_channel is not None:
        channel, ratio = unit.worst_channel
        parts = (of_channel(weight, array, channel) for array in (before, after))
        shown[f"its worst channel, {channel} ({ratio:.1f} dB)"] = both(*parts)
    return shown


def both(before: np.ndarray, after: np.ndarray) -> dict[str, Histogram]:
    """Histograms with the same edges."""
    finite = before[np.isfinite(before)]
    low, high = min(finite.min(initial=0), after.min(initial=0)), max(finite.max(initial=0), after.max(initial=0))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    return {"before": np.histogram(finite, edges), "after": np.histogram(after, edges)}


def of_channel(weight: Weight, array: np.ndarray, channel: int) -> np.ndarray:
    """The elements of an output channel, numbered as `quantization.channel_errors` numbers them."""
    rank, axis = array.ndim, weight.axis
    moved: Any
    if axis is None:
        deep = max(0, rank - 2)
        moved = np.moveaxis(array, deep, -1).reshape(-1, array.shape[deep])
    elif weight.groups == 1:
        moved = np.moveaxis(array, axis, 0)
    else:
        grouped = array.reshape(weight.groups, -1, *array.shape[1:])
        moved = np.moveaxis(grouped, 2, 1).reshape(-1, grouped.shape[1], *array.shape[2:])
    return np.asarray(moved[channel])
