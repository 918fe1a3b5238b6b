"""How fast weights are quantized, as ratios measured side by side: no figure here is a machine's.

python -m benchmarks.throughput [MiB]

Quantizing a weight to nearest reads it twice (range, codes) and writes a quarter of it. So it should run near the
rate at which the machine copies the tensor into fresh memory, and that copy is the yardstick: `copy / nearest` is to
be 0.7 or more. Beside it stands ONNX Runtime's own `quantize_data`, called channel by channel as its quantizer does,
and balanced rounding against nearest. Each figure is a ratio of medians of 5 runs taken in turn, so that what else
the machine does meets all alike. Peak extra memory is what `tracemalloc` sees beyond the result, in MiB. The exit
status is 1 where a claim does not hold.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization.quant_utils import quantize_data

import rules.quantization as qu
from benchmarks.timing import medians

COPY, PEER, BALANCED, MEMORY = 0.7, 3.0, 3.0, 64.0
MODERATE = qu.InputMoments.of_range(0.1, 0, 0, 255)
SPATIAL = qu.InputMoments.of_range(0.1, 0, 0, 255, spatial=True)
NEAREST = qu.Scheme(search="minmax", rounding="nearest")
EVEN = qu.Scheme(search="minmax")
SEARCHED = qu.Scheme(search="grid", rounding="nearest"), qu.Scheme(search="grid")

Array = NDArray[Any]


@dataclass(frozen=True)
class Line:
    """copy, peer: their time over that of nearest. balanced, searched: its time over that of nearest. extra: MiB beyond
    the codes."""

    name: str
    copy: float
    peer: float
    balanced: float
    searched: float
    extra: float

    @property
    def good(self) -> bool:
        return (
            self.copy >= COPY
            and self.peer >= PEER
            and max(self.balanced, self.searched) <= BALANCED
            and self.extra < MEMORY
        )


def channel_by_channel(w: Array, axis: int) -> list[Any]:
    """ONNX Runtime's quantizer of symmetric int8 weights, as `quantize_weight_per_channel` calls it."""
    return [quantize_data(w.take(i, axis), onnx.TensorProto.INT8, True)[-1] for i in range(w.shape[axis])]


def extra_memory(work: Callable[[], qu.QuantizedTensor]) -> float:
    tracemalloc.start()
    q = work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (peak - q.codes.nbytes) / 2**20


def measure(name: str, shape: tuple[int, ...], axis: int) -> Line:
    w = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    moments = SPATIAL if len(shape) > 2 else MODERATE

    def nearest() -> qu.QuantizedTensor:
        return qu.quantize_weight(w, axis, NEAREST)

    def balanced() -> qu.QuantizedTensor:
        return qu.quantize_weight(w, axis, EVEN, moments=moments)

    def searched(scheme: qu.Scheme) -> qu.QuantizedTensor:
        return qu.quantize_weight(w, axis, scheme, moments=moments)

    copied, ours, peer, even, *both = medians(
        w.copy, nearest, lambda: channel_by_channel(w, axis), balanced,
        *(partial(searched, scheme) for scheme in SEARCHED),
    )  # fmt: skip
    return Line(
        name,
        copied / ours,
        peer / ours,
        even / ours,
        both[1] / both[0],
        max(extra_memory(nearest), extra_memory(balanced)),
    )


def shapes(mib: int) -> list[tuple[str, tuple[int, ...], int]]:
    size = mib << 18  # elements
    return [
        ("Conv 3x3", (size // (9 * 512), 512, 3, 3), 0),
        ("Gemm transB", (size // 4096, 4096), 0),
        ("MatMul", (4096, size // 4096), 1),
    ]


def main(arguments: list[str]) -> int:
    mib = int(arguments[0]) if arguments else 64
    titles = ("copy/nearest", "ort/nearest", "balanced/nearest", "beside a search", "extra MiB")
    print(f"{f'float32, {mib} MiB':18}" + "".join(f"{title:>18}" for title in titles))
    lines = []
    for name, shape, axis in shapes(mib):
        lines.append(line := measure(name, shape, axis))
        values = (line.copy, line.peer, line.balanced, line.searched, line.extra)
        print(f"{line.name:18}" + "".join(f"{value:18.2f}" for value in values), flush=True)
    wanted = (f">= {COPY}", f">= {PEER}", f"<= {BALANCED}", f"<= {BALANCED}", f"< {MEMORY}")
    print(f"{'wanted':18}" + "".join(f"{value:>18}" for value in wanted))
    return 0 if all(line.good for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
