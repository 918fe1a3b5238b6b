"""Two models beside each other in ONNX Runtime: how far their outputs and layers are apart, and where that begins."""

from rules.comparison.figures import Figures
from rules.comparison.result import Comparison, Layer, Output
from rules.comparison.run import compare

__all__ = ["Comparison", "Figures", "Layer", "Output", "compare"]
