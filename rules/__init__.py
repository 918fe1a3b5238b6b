"""Rule sets that complete quantized models.

`weight_bias` makes full QDQ units of units whose weight and bias are still float; `uint8_activations` turns int8
activations into uint8, which is what ONNX Runtime fuses on x86. Both are values: `WeightBias(...)` and
`Uint8Activations(...)` are the same with other options.
"""

from rules.activations import Uint8Activations
from rules.qdq_unit import WeightBias

weight_bias = WeightBias()
"""DQ -> Conv/ConvTranspose/Gemm/MatMul(float W, float B) -> Q becomes a full QDQ unit."""

uint8_activations = Uint8Activations()
"""int8 activations become uint8, every value exactly the same."""

__all__ = ["Uint8Activations", "WeightBias", "uint8_activations", "weight_bias"]
