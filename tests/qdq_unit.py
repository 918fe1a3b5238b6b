"""What a generated QDQ model may look like: one frozen value per model, and two ways of drawing such values.

The real files hold only bare DQ -> op -> Q units at opsets 13 to 20. Everything else that the main job
promises is described here by a `Unit`, of which `qdq_models.build` makes a model. Options are independent
fields, and `repair` turns any combination into the nearest one that the ONNX checker and ONNX Runtime
accept. So the hypothesis strategy `units()` (which shrinks towards the first option of every field) and the
seeded `draw(rng)` need no filter and share one table, and a combination is missing only where `repair` says
why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

# ONNX Runtime 1.32 loads ai.onnx up to 28 (onnx 1.23 defines 28), but has no QuantizeLinear kernel for 28.
NEWEST = 27
OPSETS = tuple(range(10, NEWEST + 1))

Op = Literal["Conv", "ConvTranspose", "Gemm", "MatMul", "MatMulAdd"]
Bias = Literal["none", "N", "1N", "scalar", "M1", "MN"]
BiasForm = Literal["float", "int32", "int32 of wrong scale", "input"]
WeightForm = Literal["float", "per tensor", "per channel", "per channel, negative axis"]
Source = Literal["initializer", "constant", "identity", "transpose", "reshape", "cast"]
Place = Literal["main", "then", "then, constants outside", "loop", "scan", "function"]
Output = Literal["float", "quantized", "also graph output", "second consumer", "no q"]
Beside = Literal["", "same dq", "same codes"]


@dataclass(frozen=True)
class Unit:
    """A model of `chain` equal units: DQ -> op(weight, bias) -> post* -> Q; maybe one more beside the first."""

    op: Op = "Conv"
    spatial: int = 2  # dimensions of Conv and ConvTranspose
    group: int = 1
    depthwise: bool = False  # group equals the channels
    trans_a: bool = False
    trans_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    rank: int = 2  # of MatMul's first input
    batched: bool = False  # MatMul's weight has a leading axis of 1
    bias: Bias = "N"
    bias_form: BiasForm = "float"
    weight_form: WeightForm = "float"
    weight_type: Literal["int8", "uint8"] = "int8"
    weight_zero_point: int = 0  # away from the middle of the weight's type
    x_type: str = "uint8"
    y_type: str = ""  # empty: x_type
    scale_shape: tuple[int, ...] = ()  # of the activations' scales and zero points: [] or [1]
    implicit_zero: bool = False  # the activations have no zero points: 0, of uint8
    domain: str = ""  # of Q and DQ
    opset: int = 13
    ir: int = 8
    post: tuple[str, ...] = ()
    redundant: bool = True  # y's scale is that of the values behind `post`, not before it
    place: Place = "main"
    source: Source = "initializer"  # where weights and biases come from
    chain: int = 1
    share: Literal["", "weight", "bias"] = ""  # among the units of the chain
    output: Output = "float"
    quantized_input: bool = False
    beside: Beside = ""  # what another unit shares with the first one of the chain

    @property
    def count(self) -> int:
        """How many units there are. Names tell which: that beside the first is the last."""
        return self.chain + bool(self.beside)

    @property
    def convolves(self) -> bool:
        return self.op in ("Conv", "ConvTranspose")

    @property
    def per_channel(self) -> bool:
        return self.weight_form.startswith("per channel")

    @property
    def axis(self) -> int:
        """The weight's axis of output channels."""
        return {"Conv": 0, "ConvTranspose": 1, "Gemm": 0 if self.trans_b else 1}.get(self.op, 1)


OPTIONS: Mapping[str, Sequence[Any]] = {
    "op": ("Conv", "ConvTranspose", "Gemm", "MatMul", "MatMulAdd"),
    "spatial": (2, 1, 3),
    "group": (1, 2, 3),
    "depthwise": (False, True),
    "trans_a": (False, True),
    "trans_b": (False, True),
    "alpha": (1.0, 0.5, 1.7),
    "beta": (1.0, 0.25, 3.0),
    "rank": (2, 3, 4),
    "batched": (False, True),
    "bias": ("N", "none", "1N", "scalar", "M1", "MN"),
    "bias_form": ("float", "int32", "int32 of wrong scale", "input"),
    "weight_form": ("float", "per tensor", "per channel", "per channel, negative axis"),
    "weight_type": ("int8", "uint8"),
    "weight_zero_point": (0, 5),
    "x_type": ("uint8", "int8", "uint16", "int16"),
    "y_type": ("", "uint8", "int8", "uint16", "int16"),
    "scale_shape": ((), (1,)),
    "implicit_zero": (False, True),
    "domain": ("", "com.microsoft"),
    "opset": OPSETS,
    "ir": (8, 3, 4, 7, 10, 12, 13),
    "post": ((), ("Relu",), ("Clip",), ("Relu", "Clip"), ("Clip", "Relu"), ("Relu", "Relu", "Clip")),
    "redundant": (True, False),
    "place": ("main", "then", "then, constants outside", "loop", "scan", "function"),
    "source": ("initializer", "constant", "identity", "transpose", "reshape", "cast"),
    "chain": (1, 2, 3),
    "share": ("", "weight", "bias"),
    "output": ("float", "quantized", "also graph output", "second consumer", "no q"),
    "quantized_input": (False, True),
    "beside": ("", "same dq", "same codes"),
}


def repair(u: Unit) -> Unit:
    """The nearest unit that is a valid model; the identity on those that are."""
    u = _operator(u)
    if u.domain == "" and u.opset < 21:  # ai.onnx takes 16-bit integers from opset 21 on
        u = replace(u, x_type=u.x_type.replace("16", "8"), y_type=u.y_type.replace("16", "8"))
    if u.domain == "" and u.opset < 13 and u.per_channel:  # and has `axis` from 13 on
        u = replace(u, weight_form="per tensor")
    if u.count == 1:
        u = replace(u, share="")
    if {u.x_type, u.y_type or u.x_type} != {"uint8"}:  # what a Q without a zero point gives
        u = replace(u, implicit_zero=False)
    if u.chain > 1 and u.output == "no q":  # every unit of a chain but the last has a Q anyway
        u = replace(u, output="float")
    if u.place == "function":  # it has no initializers and no outer values, and came with IR 8
        u = replace(u, source="constant" if u.source == "initializer" else u.source, ir=max(u.ir, 8))
        u = replace(u, bias_form="float" if u.bias_form == "input" else u.bias_form)
    if u.place != "main":  # its one output is the sub-graph's
        u = replace(u, beside="", share=u.share if u.chain > 1 else "")
        u = replace(u, output="float" if u.output in ("also graph output", "second consumer") else u.output)
        # Up to IR 3 initializers must be graph inputs, and those of a body are what If, Loop and Scan pass.
        u = replace(u, ir=max(u.ir, 4))
    return u


def _operator(u: Unit) -> Unit:
    """Fields that another operator owns go back to their defaults."""
    d = Unit()
    if not u.convolves:
        u = replace(u, spatial=d.spatial, group=d.group, depthwise=d.depthwise)
    elif u.bias not in ("none", "N"):
        u = replace(u, bias="N")
    if u.depthwise:
        u = replace(u, group=1)
    if u.op != "Gemm":
        u = replace(u, trans_a=False, trans_b=False, alpha=1.0, beta=1.0)
    elif u.bias == "none" and u.opset < 11:  # C became optional at opset 11
        u = replace(u, bias="N")
    if not u.op.startswith("MatMul"):
        u = replace(u, rank=d.rank, batched=d.batched)
    if u.op == "MatMul":
        u = replace(u, bias="none")
    if u.op == "MatMulAdd" and u.bias == "none":
        u = replace(u, bias="N")
    if u.bias == "none":
        u = replace(u, bias_form="float", share="" if u.share == "bias" else u.share)
    if u.bias_form.startswith("int32") and u.per_channel:
        # One scale per channel needs an axis for it. A grouped ConvTranspose has fewer scales than biases.
        per_tensor = u.bias in ("scalar", "M1") or (u.op == "ConvTranspose" and (u.group > 1 or u.depthwise))
        u = replace(u, weight_form="per tensor" if per_tensor else u.weight_form)
    if u.batched and u.per_channel:  # the axis of output channels is another one
        u = replace(u, weight_form="per tensor")
    if u.weight_form == "float":
        u = replace(u, weight_type=d.weight_type, weight_zero_point=d.weight_zero_point)
        if u.bias_form.startswith("int32"):  # an int32 bias takes its scale from the weight's
            u = replace(u, bias_form="float")
    return u


def draw(rng: np.random.Generator, change: float = 0.3, **fixed: Any) -> Unit:
    """A random unit; every field leaves its first option with probability `change`, but for those `fixed`."""
    fields = {
        k: v[int(rng.integers(len(v)))] if rng.random() < change or k in ("op", "opset") else v[0]
        for k, v in OPTIONS.items()
    }
    return repair(Unit(**{**fields, **fixed}))


def units(**fixed: Any) -> st.SearchStrategy[Unit]:
    """Valid units, each field drawn from OPTIONS unless `fixed`."""
    fields = {k: st.just(fixed[k]) if k in fixed else st.sampled_from(v) for k, v in OPTIONS.items()}
    return st.builds(Unit, **fields).map(repair)
