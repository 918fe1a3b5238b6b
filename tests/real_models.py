"""The real models that were handed to this project, for tests and benchmarks.

They lie in a folder beside the repository (`../shared`, or the environment variable SHARED) and are never
copied into it: their licenses differ, and some are larger than all of our code. So whoever uses them says
what happens without the folder: tests carry the mark `needs_shared`, which skips them and names the path
that was looked for. What is known of each file is read from the folder's own MODELS.md, so that a number is
kept in one place only.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

SHARED = Path(os.environ.get("SHARED", Path(__file__).resolve().parents[2] / "shared"))
TABLE = SHARED / "MODELS.md"

needs_shared = pytest.mark.skipif(not TABLE.is_file(), reason=f"the real models are not at {SHARED} (set SHARED)")

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Row:
    """What MODELS.md says of a file of `actqdq/`: counts at ORT_ENABLE_EXTENDED, and SNRs in dB."""

    name: str  # without ".onnx"
    float_weights: int
    float_biases: int
    qlinear_conv: int
    qgemm: int
    left: tuple[int, int, int, int]  # Conv, ConvTranspose, Gemm and MatMul that stay float
    weights_left: int
    session: float | None
    pt: float | None
    pc: float | None
    balanced: float | None

    @property
    def path(self) -> Path:
        """The file with quantized activations and float weights: the input of the main job."""
        return SHARED / "actqdq" / f"{self.name}.onnx"

    @property
    def fused(self) -> int:
        return self.qlinear_conv + self.qgemm

    def full(self, kind: str) -> Path:
        """ONNX Runtime's own fully quantized file, "pt" per tensor or "pc" per channel."""
        return SHARED / "ortfull" / f"{self.name}.{kind}.onnx"


def table() -> list[Row]:
    """The rows of the table on `actqdq/`; none where the folder is absent, so that tests can be collected."""
    if not TABLE.is_file():
        return []
    _, _, section = TABLE.read_text().partition("\n## actqdq/")
    lines = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [_row([cell.strip() for cell in cells]) for cells in lines if ".onnx" in cells[0]]


def model(name: str) -> Path:
    """A file of `models/`, the originals."""
    return SHARED / "models" / name


def inputs(row: Row) -> list[dict[str, Array]]:
    """The inputs that the SNRs of the table are taken on, in the types which the model's inputs have."""
    dtypes = {
        i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        for i in onnx.load(row.path, load_external_data=False).graph.input
    }
    feeds: dict[int, dict[str, Array]] = {}
    with np.load(SHARED / "inputs" / f"{row.name}.npz") as arrays:
        for key in arrays.files:
            index, name = key.split("/", 1)
            feeds.setdefault(int(index), {})[name] = arrays[key].astype(dtypes[name])
    return [feeds[i] for i in sorted(feeds)]


def _row(cells: list[str]) -> Row:
    name, floats, conv, gemm, left, weights_left, *snrs = cells
    weights, biases = map(int, floats.split(","))
    convs, transposed, gemms, matmuls = map(int, left.split(","))
    session, pt, pc, balanced = (float(snr) if snr else None for snr in snrs)
    return Row(
        name.removesuffix(".onnx"),
        weights,
        biases,
        int(conv),
        int(gemm),
        (convs, transposed, gemms, matmuls),
        int(weights_left),
        session,
        pt,
        pc,
        balanced,
    )
