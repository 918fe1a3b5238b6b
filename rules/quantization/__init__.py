"""The arithmetic of weight and bias quantization, numpy only: arrays in; codes, scales, proved bounds out.

It knows no graph and no operator, so that it can be read, tested and used without them.
"""

from .bias import (
    INT32_MAX,
    BiasValues,
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
    balanced_bound,
    bias_bound,
    element_bound,
    input_range,
    output_bound,
    output_bound_any_input,
    summed_element_bound,
    worst_output,
)
from .candidates import preferred
from .channel_errors import ChannelErrors, bias_errors, channel_errors, clipping, decibels
from .errors import BiasOverflow, NotQuantizable, first_bad
from .grid import grid_scales
from .guards import PowerOfTwoBias, htp_refuses, power_of_two_bias
from .moments import InputMoments
from .onnxruntime_scheme import ort_bias, ort_weight
from .rounding import balance
from .scales import covering_scale, symmetric_scale
from .scheme import Scheme, pair_sums_fit_int16
from .tensor import QuantizedTensor, dequantize
from .unit import QuantizedUnit, quantize_bias_for, quantize_unit
from .weight import quantize_symmetric, quantize_weight, quantize_with_scale

__all__ = [
    "INT32_MAX",
    "BiasOverflow",
    "BiasValues",
    "ChannelErrors",
    "InputMoments",
    "NotQuantizable",
    "PowerOfTwoBias",
    "QuantizedTensor",
    "QuantizedUnit",
    "Scheme",
    "accumulator_depth",
    "accumulator_fits",
    "balance",
    "balanced_bound",
    "bias_bound",
    "bias_errors",
    "bias_is_right",
    "bias_only_scale",
    "bias_scale",
    "channel_errors",
    "clipping",
    "covering_scale",
    "decibels",
    "dequantize",
    "element_bound",
    "first_bad",
    "grid_scales",
    "htp_refuses",
    "input_range",
    "ort_bias",
    "ort_weight",
    "output_bound",
    "output_bound_any_input",
    "pair_sums_fit_int16",
    "power_of_two_bias",
    "preferred",
    "quantize_bias",
    "quantize_bias_for",
    "quantize_symmetric",
    "quantize_unit",
    "quantize_weight",
    "quantize_with_scale",
    "raise_for_bias",
    "requantize_bias",
    "summed_element_bound",
    "symmetric_scale",
    "worst_output",
]
