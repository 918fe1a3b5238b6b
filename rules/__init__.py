"""Rule sets that complete quantized models.

`weight_bias` makes full QDQ units of units whose weight and bias are still float; `uint8_activations` turns int8
activations into uint8, which is what ONNX Runtime fuses on x86. Both are values: `WeightBias(...)` and
`Uint8Activations(...)` are the same with other options. `for_backend` gives those that an expert would apply for a
backend, and `legal` says of each unit of a model whether it runs there as an integer kernel. `unit_reports` gives the
figures of each unit that a run completed, and `measure` adds what its output lost. `compare` runs two models and says
how far they are apart, and where that begins.
"""

from rules.activations import Uint8Activations
from rules.comparison import Comparison, compare
from rules.legality import Verdict, for_backend, legal
from rules.measurement import measure
from rules.qdq_unit import UnitReport, WeightBias, unit_reports

weight_bias = WeightBias()
"""DQ -> Conv/ConvTranspose/Gemm/MatMul(float W, float B) -> Q becomes a full QDQ unit."""

uint8_activations = Uint8Activations()
"""int8 activations become uint8, every value exactly the same."""

__all__ = [
    "Comparison",
    "Uint8Activations",
    "UnitReport",
    "Verdict",
    "WeightBias",
    "compare",
    "for_backend",
    "legal",
    "measure",
    "uint8_activations",
    "unit_reports",
    "weight_bias",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        import rewriter

        return rewriter.__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
