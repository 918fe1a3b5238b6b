"""The arithmetic of weight and bias quantization, numpy only: arrays in; codes, scales, proved bounds out.

It knows no graph and no operator, so that it can be read, tested and used without them.
"""

from .bias import (
    INT32_MAX,
    bias_is_right,
    bias_only_scale,
    bias_scale,
    quantize_bias,
    raise_for_bias,
    requantize_bias,
)
from .bounds import (
    accumulator_depth,
    accumulator_fits,
    bias_bound,
    element_bound,
    output_bound,
    output_bound_any_input,
)
from .errors import BiasOverflow, NotQuantizable, first_bad
from .onnxruntime_scheme import ort_bias, ort_weight
from .scales import symmetric_scale
from .tensor import QuantizedTensor, dequantize
from .unit import QuantizedUnit, quantize_bias_for, quantize_unit
from .weight import quantize_symmetric, quantize_with_scale

__all__ = [
    "INT32_MAX",
    "BiasOverflow",
    "NotQuantizable",
    "QuantizedTensor",
    "QuantizedUnit",
    "accumulator_depth",
    "accumulator_fits",
    "bias_bound",
    "bias_is_right",
    "bias_only_scale",
    "bias_scale",
    "dequantize",
    "element_bound",
    "first_bad",
    "ort_bias",
    "ort_weight",
    "output_bound",
    "output_bound_any_input",
    "quantize_bias",
    "quantize_bias_for",
    "quantize_symmetric",
    "quantize_unit",
    "quantize_with_scale",
    "raise_for_bias",
    "requantize_bias",
    "symmetric_scale",
]
