"""How far the completed file is from the file that went in, beside ONNX Runtime's own quantizer, on the real
models.

python -m benchmarks.accuracy [nearest|balanced]

The claim is that weights and biases can be quantized offline, without data, and that the numbers stay those
of the input file at least as well as ONNX Runtime's calibrated per-channel quantizer keeps them. So for
each file of `actqdq/` the signal-to-noise ratio of our result is printed beside those of `ortfull/`,
measured here and now in the same way: all outputs of all four inputs of `inputs/` as one vector, in
float64, at ORT_DISABLE_ALL, against the input file at ORT_DISABLE_ALL (a session with optimizers quantizes
the weights itself). Beside it stand the integer kernels that a session at ORT_ENABLE_EXTENDED makes of our
file, and the weighted ops that stay float there, each as "ours/MODELS.md". The exit status is 1 when a row
falls more than 0.5 dB below `pc`, or has fewer integer kernels than MODELS.md says.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

import rewriter
import rules
from tests import real_models, sessions

SLACK = 0.5  # dB

Complete = Callable[[onnx.ModelProto], onnx.ModelProto]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    row: real_models.Row
    ours: float
    pt: float | None
    pc: float | None
    fused: int
    left: int

    @property
    def good(self) -> bool:
        return self.fused >= self.row.fused and (self.pc is None or self.ours >= self.pc - SLACK)


def snr(reference: Floats, other: Floats) -> float:
    """In dB; infinite where nothing differs."""
    noise = float(np.square(reference - other).sum())
    return math.inf if noise == 0 else 10 * math.log10(float(np.square(reference).sum()) / noise)


def outputs(model: onnx.ModelProto | Path, feeds: Sequence[sessions.Feeds]) -> Floats:
    """All outputs for all inputs, one after the other."""
    session = sessions.session(model)
    arrays = [array for feed in feeds for array in session.run(None, dict(feed))]
    return np.concatenate([np.ravel(array).astype(np.float64) for array in arrays])


def measure(row: real_models.Row, complete: Complete) -> Line:
    feeds = real_models.inputs(row)
    reference = outputs(row.path, feeds)
    ours = complete(onnx.load(row.path))
    pt, pc = (snr(reference, outputs(path, feeds)) if path.is_file() else None for path in map(row.full, ("pt", "pc")))
    optimized = sessions.optimized(ours)
    counts = sessions.op_counts(optimized)
    left = sum(counts[op] for op in sessions.LEFT)
    return Line(row, snr(reference, outputs(ours, feeds)), pt, pc, sessions.integer_kernels(optimized), left)


def text(line: Line) -> str:
    snrs = [" " * 6 if value is None else f"{value:6.1f}" for value in (line.ours, line.pt, line.pc)]
    counts = [f"{line.fused}/{line.row.fused}", f"{line.left}/{sum(line.row.left)}"]
    return (
        f"{line.row.name:25}"
        + "  ".join([*snrs, *(f"{count:>6}" for count in counts)])
        + ("" if line.good else "  <--")
    )


def main(arguments: Sequence[str]) -> int:
    rows = real_models.table()
    if not rows:
        print(f"no real models at {real_models.SHARED} (set SHARED)", file=sys.stderr)
        return 2
    generic = rules.WeightBias(backend="generic", rounding=arguments[0] if arguments else "nearest")
    print(f"{'SNR in dB':25}" + "  ".join(f"{title:>6}" for title in ("ours", "pt", "pc", "fused", "left")))
    lines = []
    for row in rows:
        lines.append(measure(row, lambda model: rewriter.apply(model, generic)))
        print(text(lines[-1]), flush=True)
    return 0 if all(line.good for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
