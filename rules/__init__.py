"""Rule sets that complete quantized models.

`weight_bias` makes full QDQ units of units whose weight and bias are still float; `WeightBias(...)` is the same with
other options. The rules are made when they are first asked for.
"""

from rules.qdq_unit import WeightBias

weight_bias = WeightBias()
"""DQ -> Conv/ConvTranspose/Gemm/MatMul(float W, float B) -> Q becomes a full QDQ unit."""

__all__ = ["WeightBias", "weight_bias"]
