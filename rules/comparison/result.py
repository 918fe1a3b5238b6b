"""What a comparison found: per output, per layer, and where the error enters, in words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rules.comparison.figures import Figures

SCHEMA, VERSION = "qdq-rewriter/comparison", 1
LONG = 60
"""Names of nodes beyond this are left out of sentences."""


@dataclass(frozen=True)
class Output:
    """An output of both models. plain: B as it stands (ORT_DISABLE_ALL) against A. optimized: B as ONNX Runtime
    optimizes it by default against A, None where it cannot run so."""

    name: str
    plain: Figures
    optimized: Figures | None


@dataclass(frozen=True)
class Layer:
    """A value inside both models, named as there. node, op: what gives it in A.

    figures: in B as a whole, with what the layers before it passed on. alone: where B's layer gets what A's got, so the
    difference is its own; None where it could not be run so. inputs_snr: the lowest SNR of the layers in front of it in
    B, infinite where there are none.
    """

    name: str
    node: str
    op: str
    inputs_snr: float
    figures: Figures
    alone: Figures | None

    @property
    def adds(self) -> bool:
        """Whether it differs from A by itself."""
        return self.alone is not None and self.alone.snr != math.inf


@dataclass(frozen=True)
class Comparison:
    """Two models side by side. layers: in the order of A. unmatched: outputs that only one has, with its name, A or B.

    samples: how many were run. seed: of random inputs, None where they were given. notes: what could not be done.
    """

    samples: int
    seed: int | None
    outputs: list[Output]
    layers: list[Layer]
    unmatched: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def enters(self) -> Layer | None:
        """Where most of the error enters: the layer with the lowest SNR on the inputs that it has in A, so whose SNR
        falls most against that of its inputs; the first of equal ones. None where no layer differs by itself."""
        known = [
            (layer.alone.snr, k) for k, layer in enumerate(self.layers) if layer.alone and layer.alone.snr is not None
        ]
        wrong = [layer for layer in self.layers if layer.alone is not None and layer.alone.snr is None]
        if wrong:
            return wrong[0]  # another shape
        lowest, k = min(known, default=(math.inf, 0))
        return None if lowest == math.inf else self.layers[k]

    @property
    def worst_snr(self) -> float:
        """The lowest SNR of any output, plain or optimized, in dB; -infinite where shapes differ."""
        found = [each.snr for one in self.outputs for each in (one.plain, one.optimized) if each is not None]
        return min((-math.inf if snr is None else snr for snr in found), default=math.inf)

    @property
    def where(self) -> str:
        """Where the error enters, in words."""
        layer = self.enters
        if layer is None:
            if not self.layers:
                return "The models have no layer in common, so where the error enters is unknown."
            if all(one.alone is None for one in self.layers):
                return "No layer could be run alone, so where the error enters is unknown."
            if self.worst_snr == math.inf or all(one.plain.snr == math.inf for one in self.outputs):
                return "Nowhere: every layer of B gives what that of A gives."
            return "No common layer differs by itself: the error enters behind the last of them."
        assert layer.alone is not None
        node = "" if layer.node == layer.name or len(layer.node) > LONG else layer.node
        title = f"{layer.name} ({' '.join(filter(None, [layer.op, node]))})"
        if layer.alone.snr is None:
            return f"The error enters at {title}: {layer.alone.note}."
        first = next(one for one in self.layers if one.adds)
        others = [one.alone.snr for one in self.layers if one.adds and one is not layer and one.alone and one.alone.snr]
        told = (
            f"The error enters mostly at {title}: on the inputs that it has in A it gives {decibel(layer.alone.snr)} dB"
        )
        if not others:
            told = told.replace("mostly ", "") + "; every other layer gives what A gives"
        else:
            told += f", the next worst layer {decibel(min(others))} dB"
        told += (
            f". In B its inputs come with {decibel(layer.inputs_snr)} dB and it leaves {decibel(layer.figures.snr)} dB."
        )
        return told if first is layer else f"{told} The first layer that differs is {first.name}."

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON takes it (docs/compare.md): an infinite number is "Infinity" or "-Infinity"."""
        found: dict[str, Any] = plain(asdict(self))
        enters = self.enters
        unmatched = [{"name": name, "only_in": model} for name, model in self.unmatched]
        told = {"enters": enters and enters.name, "where": self.where, "worst_snr": plain(self.worst_snr)}
        return {"schema": SCHEMA, "version": VERSION, **found, "unmatched": unmatched, **told}

    def __str__(self) -> str:
        """The outputs and where the error enters, in a few lines."""
        lines = []
        for one in self.outputs:
            lines.append(f"{one.name}: {words(one.plain)}")
            if one.optimized is not None and one.optimized != one.plain:
                lines.append(f"{one.name}, optimized: {words(one.optimized)}")
        lines += [f"{name}: an output of {model} only" for name, model in self.unmatched]
        return "\n".join([*lines, *self.notes, self.where])


def words(figures: Figures) -> str:
    parts = [f"SNR {decibel(figures.snr)} dB"] if figures.snr is not None else []
    if figures.max_difference is not None:
        steps = "" if figures.max_steps is None else f" ({figures.max_steps:.3g} steps)"
        parts.append(f"off by at most {figures.max_difference:.3g}{steps}")
    if figures.cosine is not None:
        parts.append(f"cosine {figures.cosine:.6f}")
    if figures.top1 is not None:
        parts.append(f"top-1 agrees in {figures.top1:.1%}")
    return ", ".join([*parts, *filter(None, [figures.note])])


def decibel(snr: float | None) -> str:
    return "?" if snr is None else f"{snr:.1f}"


def plain(value: Any) -> Any:
    """The value without tuples and infinities."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
