"""What became of one unit, with the figures that a person wants to see of it.

A rewrite notes one `UnitReport` (`rules.unit_reports(report)` lists them). It holds the tensors from before and after
and nothing else: every figure is computed when somebody asks for it, so that a run which nobody asks pays nothing. The
floats are read again from where the input model has them; so ask before that model is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from rewriter import Report
from rules import quantization as qm
from rules.qdq_unit import unit_figures
from rules.qdq_unit.float_types import CODES

CODED_BEFORE = 2.0**-22
"""What a bias was off, relatively, that was quantized already: two roundings to float32."""


class Stored(Protocol):
    """A tensor that is read when asked: an `onnx_ir` tensor, or an array that was computed."""

    @property
    def nbytes(self) -> int: ...

    def numpy(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight before and after.

    axis, groups: as `quantization.channel_errors`. alpha: folded into the codes. dtype: the type in which it comes
    back. search: "grid", "minmax", "mse" or "auto", on_grid: how many of its scales are those of a grid that the weight
    lay on; raised: how many grew for the bias' sake. rounding: "balanced" or "nearest". code_range: of the scheme.
    """

    name: str
    before: Stored
    after: qm.QuantizedTensor
    axis: int | None
    groups: int
    alpha: float
    dtype: Any
    search: str
    rounding: str
    code_range: tuple[int, int]
    on_grid: int = 0
    raised: int = 0

    @property
    def scheme(self) -> str:
        """Type, granularity, symmetry, search and rounding, in words."""
        q = self.after
        kind = q.four_bit or q.codes.dtype.name
        per = "per tensor" if q.axis is None else f"per channel (axis {q.axis})"
        if q.block_size:
            per = f"per block of {q.block_size} (axis {q.axis})"
        middle = 0 if not kind.startswith("u") else (sum(self.code_range) + 1) // 2
        skew = [] if np.all(q.zero_point == middle) else ["asymmetric"]
        used = self.search
        if self.on_grid:
            used = "on a grid" if self.on_grid == q.scale.size else f"{self.on_grid} of {q.scale.size} on a grid"
        grown = [f"{self.raised} raised for the bias"] if self.raised else []
        return ", ".join([f"{kind} {per}", *skew, used, *grown, self.rounding])

    @cached_property
    def errors(self) -> qm.ChannelErrors:
        """By output channel."""
        return qm.channel_errors(
            self.before.numpy(), self.after, axis=self.axis, groups=self.groups, alpha=self.alpha, dtype=self.dtype
        )

    @cached_property
    def largest_sum(self) -> np.ndarray:
        """Bounds sum |w - w'| of each output channel by its scales: what rounding can do, not what it did."""
        steps, beyond = qm.clipping(
            self.before.numpy(), self.after, self.code_range, axis=self.axis, groups=self.groups, alpha=self.alpha
        )
        types = (self.after.scale.dtype, np.dtype(self.dtype))
        (least, most), zero = self.code_range, self.after.zero_point
        span = max(most - int(zero.min(initial=most)), int(zero.max(initial=least)) - least)
        return qm.summed_element_bound(
            steps, beyond, self.errors.depth, span,
            scale_type=min(types, key=lambda t: t.itemsize), balanced=self.rounding == "balanced",
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Bias:
    """A bias before (beta folded in) and after. bytes_before: as it was stored, scale and zero point with it."""

    name: str
    before: qm.BiasValues
    after: qm.QuantizedTensor
    bytes_before: int
    coded: bool = False

    @cached_property
    def errors(self) -> tuple[float, np.ndarray]:
        """In steps at most, and in units of the output for each channel, [C] or [1]."""
        return qm.bias_errors(self.before, self.after, rounding=CODED_BEFORE if self.coded else 0.0)


@dataclass(frozen=True, eq=False)
class Activation:
    """How x or y is quantized: its constant scale and zero point, None where that is absent.

    dtype: numpy's name of the type of the floats. kind: the type of the codes where no zero point has it.
    """

    scale: Stored
    zero_point: Stored | None
    dtype: str
    kind: str | None = None

    @cached_property
    def step(self) -> float | None:
        """The scale, None where it is per axis."""
        held = self.scale.numpy()
        return float(held.reshape(-1)[0]) if held.size == 1 else None

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """The smallest and the largest value that comes back, None where the type is unknown."""
        zero = None if self.zero_point is None else self.zero_point.numpy().reshape(-1)[0]
        kind = self.kind or "uint8" if zero is None else zero.dtype.name
        if kind not in CODES or self.step is None:
            return None
        info, held, zero = np.iinfo(kind), self.scale.numpy(), int(zero or 0)
        low, high = qm.input_range(held, zero, int(info.min), int(info.max))
        once_more = 1.0 if self.dtype == held.dtype.name else 1 + 2.0**-8  # output_dtype rounds what the scale gave
        return low * once_more, high * once_more


@dataclass(frozen=True)
class Measured:
    """What a run of the unit before and after gave: the largest |y - y'| (before Q), and the ratio of y to it in dB."""

    error: float
    snr: float


@dataclass(frozen=True, eq=False)
class UnitReport:
    """What became of one unit.

    node, op: of its Conv, ConvTranspose, Gemm or MatMul. output: the value that it gives before any Relu, Clip and Q.
    weight, bias: those that were quantized, or None. x, y: its input and output; None where scale or zero point are no
    constants. backend, reason: whom it was completed for, and why it is no
    integer kernel there (None: it is, or `generic` was asked for, which has none). folded: where alpha went into the
    scales of a weight that was quantized already, a bound on what that moved a channel's weights in all.
    """

    node: str
    op: str
    output: str
    weight: Weight | None
    bias: Bias | None
    x: Activation | None
    y: Activation | None
    backend: str = "generic"
    reason: str | None = None
    folded: float = 0.0
    measured: Measured | None = None

    @property
    def inputs(self) -> tuple[float, float] | None:
        """The smallest and the largest value that x can have; None where that is unknown."""
        return None if self.x is None else self.x.range

    @property
    def y_scale(self) -> float | None:
        """The step of the output."""
        return None if self.y is None else self.y.step

    @property
    def is_integer(self) -> bool | None:
        """Whether the backend runs it as an integer kernel; None for `generic`."""
        return None if self.backend == "generic" else self.reason is None

    @property
    def scale_range(self) -> tuple[float, float] | None:
        """The smallest and the largest scale of the weight."""
        held = None if self.weight is None else self.weight.after.scale
        return None if held is None or not held.size else (float(held.min()), float(held.max()))

    @property
    def snr(self) -> float | None:
        """Of the weight, in dB: infinite where nothing is lost."""
        return None if self.weight is None else self.weight.errors.snr

    @property
    def worst_channel(self) -> tuple[int, float] | None:
        """The output channel whose weights lose most, and its ratio in dB; None where nothing is lost."""
        worst = None if self.weight is None else self.weight.errors.worst
        return None if self.weight is None or worst is None else (worst, float(self.weight.errors.channel_snr[worst]))

    @property
    def bias_error(self) -> float | None:
        """The largest |b - q s_b| / s_b: half a step, but for rounding."""
        return None if self.bias is None else self.bias.errors[0]

    @property
    def bound(self) -> float | None:
        """The largest |y - y'| before Q over all inputs that x can have: proved, and attained (`worst_output`)."""
        if self.inputs is None:
            return None
        none = np.zeros(1)
        errors = (none, none) if self.weight is None else (self.weight.errors.above, self.weight.errors.below)
        above, below = (one + self.folded for one in errors)
        return _most(qm.worst_output(above, below, self._bias_bound, *self.inputs))

    @property
    def bound_by_scale(self) -> float | None:
        """The same bound as the scales alone give it, whatever the weights: `K s_x max|x| s_w / 2 + s_b / 2`."""
        if self.inputs is None:
            return None
        summed = np.zeros(1) if self.weight is None else self.weight.largest_sum
        largest = max(-self.inputs[0], self.inputs[1])
        return _most(((summed + self.folded) * largest + self._bias_bound) * (1 + 2.0**-48))

    @property
    def bound_in_steps(self) -> float | None:
        """The same in steps of the output; codes behind Q differ by at most one more, half a step for each rounding."""
        return None if self.bound is None or not self.y_scale else self.bound / self.y_scale

    @property
    def _bias_bound(self) -> np.ndarray:
        return np.zeros(1) if self.bias is None else self.bias.errors[1]

    @property
    def bytes_before(self) -> int:
        """Of the weight and the bias that were replaced, as the input model stores them for this unit."""
        weight = 0 if self.weight is None else self.weight.before.nbytes
        return weight + (0 if self.bias is None else self.bias.bytes_before)

    @property
    def bytes_after(self) -> int:
        """Of the codes, scales and zero points that replace them."""
        weight = 0 if self.weight is None else self.weight.after.nbytes
        return weight + (0 if self.bias is None else self.bias.after.nbytes - self.bias.after.zero_point.nbytes)

    def as_dict(self) -> dict[str, Any]:
        """Every figure, as plain Python values."""
        weight, bias = self.weight, self.bias
        return {
            "node": self.node,
            "op": self.op,
            "weight": None if weight is None else weight.name,
            "shape": None if weight is None else list(weight.after.codes.shape),
            "scheme": None if weight is None else weight.scheme,
            "scale_range": self.scale_range,
            "snr": self.snr,
            "worst_channel": self.worst_channel,
            "bias": None if bias is None else bias.name,
            "bias_shape": None if bias is None else list(bias.after.codes.shape),
            "bias_error": self.bias_error,
            "bound": self.bound,
            "bound_in_steps": self.bound_in_steps,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "backend": self.backend,
            "is_integer": self.is_integer,
            "reason": self.reason,
            "measured_error": None if self.measured is None else self.measured.error,
            "measured_snr": None if self.measured is None else self.measured.snr,
        }

    def figures(self) -> dict[str, float | None]:
        """Those that a report shows in its table, by label and unit; None where there is none."""
        return unit_figures.figures(self)

    def error(self) -> float | None:
        """By which a report sorts: the noise of the weight relative to it, root mean square."""
        return unit_figures.error(self)

    def sizes(self) -> tuple[int, int]:
        """Bytes before and after."""
        return self.bytes_before, self.bytes_after

    def histograms(self) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Of the weight and of its worst channel, each "before" and "after": counts [64] and edges [65]."""
        return unit_figures.histograms(self)

    def __eq__(self, other: object) -> bool:
        """Whether every figure is the same."""
        return isinstance(other, UnitReport) and repr(self.as_dict()) == repr(other.as_dict())

    def __hash__(self) -> int:
        return hash((self.node, self.output))

    def __repr__(self) -> str:
        return f"UnitReport({self.node!r}, {self.op!r})"

    def __str__(self) -> str:
        """One line with what counts."""
        parts = []
        if self.weight is not None:
            parts.append(f"{self.weight.name} {list(self.weight.after.codes.shape)} {self.weight.scheme}")
            if self.scale_range is not None:
                low, high = self.scale_range
                parts.append(f"scale {low:.3g}" if low == high else f"scales {low:.3g} to {high:.3g}")
            parts.append(f"SNR {self.snr:.1f} dB")
            if self.worst_channel is not None:
                parts[-1] += " (channel {}: {:.1f})".format(*self.worst_channel)
        if self.bias is not None:
            name = "" if self.weight is not None else f" {self.bias.name} {list(self.bias.after.codes.shape)}"
            parts.append(f"bias{name} off by {self.bias_error:.3g} steps")
        if self.bound_in_steps is not None:
            parts.append(f"output by at most {self.bound_in_steps:.3g}")
        if self.measured is not None and self.y_scale:
            parts.append(f"measured {self.measured.error / self.y_scale:.3g} (SNR {self.measured.snr:.1f} dB)")
        parts.append(f"{self.bytes_before} -> {self.bytes_after} bytes")
        if self.is_integer is not None:
            parts.append("integer kernel" if self.is_integer else f"no integer kernel: {self.reason}")
        return "; ".join(parts)


def _most(values: np.ndarray) -> float:
    return float(values.max(initial=0.0))


def unit_reports(report: Report) -> list[UnitReport]:
    """The units that a run of `WeightBias` completed, in the order in which they were."""
    notes = (rewrite.notes.get("unit") for rewrite in report.rewrites)
    return [note for note in notes if isinstance(note, UnitReport)]
