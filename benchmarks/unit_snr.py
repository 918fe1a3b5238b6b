"""What rounding costs or gains inside a model: the signal-to-noise ratio of every rewritten unit, file by file.

python -m benchmarks.unit_snr

The outputs of a model are few numbers, and the ratio of theirs moves by 2 to 10 dB from one set of inputs to another.
The units inside are many: so *unit SNR* is the mean, over all units that were rewritten, of the ratio in dB of the
unit's output before its QuantizeLinear, in the rewritten model against the input model. Errors propagate from unit to
unit, both models run at ORT_DISABLE_ALL on the inputs of `inputs/`, and a value is capped at 60 dB, since an exact unit
would else outweigh all others. For each file: unit SNR with rounding to nearest and balanced, the difference, and
the same for the model's outputs. The exit status is 1 where balanced rounding gains less on average than it should
(over all files in unit SNR; over all but `kws_fp32`, whose codes are exact, in the SNR of the outputs), or loses
anywhere.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

import rewriter
import rules
from benchmarks.accuracy import Floats, snr
from tests import oracle, real_models, sessions

CAP = 60.0  # dB
UNIT_GAIN = 2.8  # dB, on average over the files
OUTPUT_GAIN = 2.5  # dB, on average over the files without EXACT
EXACT = "kws_fp32"  # lies on the int8 grid: nothing is lost, nothing to gain

Complete = Callable[[onnx.ModelProto], onnx.ModelProto]


@dataclass(frozen=True)
class Measured:
    """In dB: the mean over the units, and of all outputs of the model together (infinite without any error)."""

    units: float
    outputs: float


@dataclass(frozen=True)
class Line:
    name: str
    nearest: Measured
    balanced: Measured

    @property
    def unit_gain(self) -> float:
        return self.balanced.units - self.nearest.units

    @property
    def output_gain(self) -> float:
        if self.balanced.outputs == self.nearest.outputs:
            return 0.0  # both may be infinite
        return self.balanced.outputs - self.nearest.outputs


def rewritten_units(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """For each unit whose weight or bias was rewritten: the name of the value that its QuantizeLinear reads."""
    old, new = oracle.units(before), oracle.units(after)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in before.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return [_before_q(name, readers) for name, unit in old.items() if new.get(name) != unit]


def _before_q(name: str, readers: dict[str, list[onnx.NodeProto]]) -> str:
    while (reader := readers[name][0]).op_type != "QuantizeLinear":
        name = reader.output[0]
    return name


def watched(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A copy of the model that also gives these values out."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    given = {output.name for output in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in given)
    return copy


def run(model: onnx.ModelProto, feeds: Sequence[sessions.Feeds]) -> dict[str, Floats]:
    """Every output by name, for all inputs one after the other."""
    session = sessions.session(model)
    names = [output.name for output in session.get_outputs()]
    runs = [session.run(None, dict(feed)) for feed in feeds]
    return {
        name: np.concatenate([np.ravel(arrays[i]).astype(np.float64) for arrays in runs])
        for i, name in enumerate(names)
    }


def unit_snrs(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Sequence[sessions.Feeds]
) -> tuple[dict[str, float], float]:
    """The SNR of each rewritten unit, not capped, by the name of its value before Q; and that of the outputs."""
    names = rewritten_units(before, after)
    reference, other = run(watched(before, names), feeds), run(watched(after, names), feeds)
    outputs = [output.name for output in before.graph.output]
    ends = [np.concatenate([found[name] for name in outputs]) for found in (reference, other)]
    return {name: snr(reference[name], other[name]) for name in names}, snr(*ends)


def measure(row: real_models.Row, complete: Complete) -> Measured:
    before = onnx.load(row.path)
    units, outputs = unit_snrs(before, complete(onnx.load(row.path)), real_models.inputs(row))
    capped = [min(value, CAP) for value in units.values()]
    return Measured(sum(capped) / len(capped), outputs)


def completer(rounding: str) -> Complete:
    option = rules.WeightBias(rounding=rounding)
    return lambda model: rewriter.apply(model, option)


def compare(row: real_models.Row) -> Line:
    return Line(row.name, measure(row, completer("nearest")), measure(row, completer("balanced")))


def mean_gains(lines: Sequence[Line]) -> tuple[float, float]:
    """The mean gain in unit SNR, and that in the SNR of the outputs."""
    outputs = [line.output_gain for line in lines if line.name != EXACT]
    return sum(line.unit_gain for line in lines) / len(lines), sum(outputs) / len(outputs)


def text(line: Line) -> str:
    values = (
        line.nearest.units, line.balanced.units, line.unit_gain,
        line.nearest.outputs, line.balanced.outputs, line.output_gain,
    )  # fmt: skip
    return f"{line.name:25}" + "  ".join(f"{value:8.2f}" for value in values) + ("  <--" if line.unit_gain < 0 else "")


def main() -> int:
    rows = real_models.table()
    if not rows:
        print(f"no real models at {real_models.SHARED} (set SHARED)", file=sys.stderr)
        return 2
    titles = ("nearest", "balanced", "gain", "nearest", "balanced", "gain")
    print(f"{'SNR in dB':25}{'of the units':30}of the outputs")
    print(f"{'':25}" + "  ".join(f"{title:>8}" for title in titles))
    lines = []
    for row in rows:
        lines.append(compare(row))
        print(text(lines[-1]), flush=True)
    unit_gain, output_gain = mean_gains(lines)
    print(
        f"mean gain: units {unit_gain:.2f} dB (wanted {UNIT_GAIN}), outputs {output_gain:.2f} dB (wanted {OUTPUT_GAIN})"
    )
    good = unit_gain >= UNIT_GAIN and output_gain >= OUTPUT_GAIN and all(line.unit_gain >= 0 for line in lines)
    return 0 if good and math.isfinite(unit_gain) else 1


if __name__ == "__main__":
    sys.exit(main())
