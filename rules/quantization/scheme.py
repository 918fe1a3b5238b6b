"""How weights are to be quantized: the options as one value, checked once.

Types, ranges and granularity hang together (a symmetric uint8 weight has zero point 128 and no code 0; seven bits are a
matter of integer kernels of 8 bits), so they are validated where they are stated, with a sentence that names the
option, and everything behind can rely on them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

TYPES = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int16": 16}
GRANULARITIES = ("tensor", "channel", "block")
SEARCHES = ("minmax", "mse", "grid", "auto")
ROUNDINGS = ("nearest", "balanced")
SCALE_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Scheme:
    """The options of a quantized weight.

    weight_type: int8, uint8, int4, uint4 or int16. symmetric: zero point 0 (the middle code for unsigned types), and a
    range that is its own negative. granularity: one scale per "tensor", per output "channel", or per "block" of
    `block_size` weights along the axis that is summed over (DequantizeLinear of opset 21). reduce_range: 7 bits, so
    that kernels which add two products in int16 do not saturate. search: how scales are found (`search`). rounding:
    "nearest", or "balanced" (`rounding.balanced`). power_of_two: scales are powers of two. scale_type: the type of the
    scales, which is that of what DequantizeLinear gives.

    Raises ValueError, naming the option, for what is unknown or does not go together.
    """

    weight_type: str = "int8"
    symmetric: bool = True
    granularity: str = "channel"
    block_size: int = 0
    reduce_range: bool = False
    search: str = "auto"
    rounding: str = "balanced"
    power_of_two: bool = False
    scale_type: str = "float32"

    def __post_init__(self) -> None:
        _one_of("weight_type", self.weight_type, TYPES)
        _one_of("granularity", self.granularity, GRANULARITIES)
        _one_of("scale_search", self.search, SEARCHES)
        _one_of("rounding", self.rounding, ROUNDINGS)
        _one_of("scale_type", self.scale_type, SCALE_TYPES)
        if not isinstance(self.block_size, int):
            raise ValueError(f"block_size must be a whole number, not {self.block_size!r}")
        if self.granularity == "block" and self.block_size < 2:
            raise ValueError(f"block_size must be 2 or more for granularity 'block', not {self.block_size}")
        if self.granularity != "block" and self.block_size != 0:
            raise ValueError(f"block_size {self.block_size} needs granularity 'block', not {self.granularity!r}")
        if self.reduce_range and TYPES[self.weight_type] != 8:
            raise ValueError(f"reduce_range is about 8-bit weights, not {self.weight_type}")

    @property
    def is_signed(self) -> bool:
        return not self.weight_type.startswith("u")

    @property
    def dtype(self) -> DTypeLike:
        """The numpy type that holds the codes: 4-bit codes lie in 8 bits until they are stored."""
        return {"int16": np.int16, "int8": np.int8, "int4": np.int8}.get(self.weight_type, np.uint8)

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        return SCALE_TYPES[self.scale_type]

    @property
    def reach(self) -> int:
        """The largest |code - zero point| of a symmetric scheme: 127, 7, 32767; 64, or 63 for uint8, with 7 bits."""
        if self.reduce_range:
            return 64 if self.is_signed else 63
        return int(2 ** (TYPES[self.weight_type] - 1)) - 1

    @property
    def middle(self) -> int:
        """The zero point of a symmetric scheme."""
        if self.is_signed:
            return 0
        return 64 if self.reduce_range else int(2 ** (TYPES[self.weight_type] - 1))

    @property
    def code_range(self) -> tuple[int, int]:
        """The smallest and the largest code that this scheme uses."""
        if self.symmetric:
            return self.middle - self.reach, self.middle + self.reach
        if self.reduce_range:
            return (-64, 64) if self.is_signed else (0, 127)
        bits = TYPES[self.weight_type]
        return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if self.is_signed else (0, 2**bits - 1)

    @property
    def span(self) -> int:
        """The largest |code - zero point| that can occur: what one product can add to the accumulator."""
        low, high = self.code_range
        return self.reach if self.symmetric else high - low


def _one_of(name: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}; there are {', '.join(allowed)}")


def pair_sums_fit_int16(codes: NDArray[np.integer]) -> bool:
    """Whether the sum of two products of a uint8 and one of these codes always fits int16, so that it cannot saturate.

    x86 without VNNI (`vpmaddubsw`) multiplies pairs of uint8 and int8 and adds the two products in int16, with
    saturation. Proof: |x1 q1 + x2 q2| <= 255 (|q1| + |q2|) <= 2 * 255 * 64 = 32640 <= 32767 for |q| <= 64, and 2 *
    255 * 65 = 33150 is too much. (ONNX Runtime's reduce_range is the same: int8 within [-64, 64].)
    """
    return 2 * 255 * int(np.abs(codes.astype(np.int64)).max(initial=0)) <= 2**15 - 1
