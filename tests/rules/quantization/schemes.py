"""Every scheme there is, all of them or drawn, and our quantizers as the properties take them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import InputMoments, QuantizedTensor, Scheme

Array = NDArray[Any]

TYPES = ("int8", "uint8", "int4", "uint4", "int16")
FORMS = [(kind, symmetric) for kind in TYPES for symmetric in (True, False)]
GRANULARITIES = ("tensor", "channel", "block")
SCALE_TYPES = ("float32", "float16", "bfloat16")
SEARCHES = ("minmax", "mse", "grid", "auto")
ROUNDINGS = ("nearest", "balanced")
BLOCK = 5

RELU, CENTRED, COMMON = InputMoments(2.0, 1.0, 0.5), InputMoments(0.0, 1.0), InputMoments(1.0, 0.0)


def every_scheme(
    forms: Sequence[tuple[str, bool]] = FORMS,
    granularities: Sequence[str] = GRANULARITIES,
    scale_types: Sequence[str] = SCALE_TYPES,
    searches: Sequence[str] = SEARCHES,
    roundings: Sequence[str] = ROUNDINGS,
    powers: Sequence[bool] = (False, True),
) -> Iterator[Scheme]:
    """All combinations, each 8-bit form also with reduced range."""
    for (kind, symmetric), granularity, scale, search, rounding, power in itertools.product(
        forms, granularities, scale_types, searches, roundings, powers
    ):
        for reduced in (False, True) if kind.endswith("int8") else (False,):
            yield Scheme(
                weight_type=kind, symmetric=symmetric, granularity=granularity, reduce_range=reduced, search=search,
                block_size=BLOCK if granularity == "block" else 0, rounding=rounding, power_of_two=power,
                scale_type=scale,
            )  # fmt: skip


@st.composite
def schemes(draw: st.DrawFn, /, **fixed: Any) -> Scheme:
    kind, symmetric = draw(st.sampled_from(FORMS))
    granularity = fixed.get("granularity") or draw(st.sampled_from(GRANULARITIES))
    options: dict[str, Any] = {
        "weight_type": kind,
        "symmetric": symmetric,
        "granularity": granularity,
        "block_size": draw(st.integers(2, 5)) if granularity == "block" else 0,
        "reduce_range": kind.endswith("int8") and draw(st.booleans()),
        "search": draw(st.sampled_from(SEARCHES)),
        "rounding": draw(st.sampled_from(ROUNDINGS)),
        "scale_type": draw(st.sampled_from(("float32", *SCALE_TYPES))),
        "power_of_two": draw(st.booleans()),
    }
    return Scheme(**{**options, **fixed})


@st.composite
def moments(draw: st.DrawFn) -> InputMoments:
    mean, deviation = draw(st.sampled_from([(0.0, 1.0), (1.0, 1.0), (3.0, 1.0), (-2.0, 0.5), (1.0, 0.0)]))
    return InputMoments(mean, deviation, draw(st.sampled_from([0.0, 0.5, 1.0])))


def of_weight(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    """The weight alone; blocks along axis 1."""
    block_axis = 1 if scheme.granularity == "block" else None
    return qu.quantize_weight(w, axis, scheme, block_axis=block_axis, moments=moments)


def of_unit(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    """The weight as a unit has it, where scales may be fitted; blocks, which no unit has, alone."""
    if scheme.granularity == "block":
        return of_weight(w, axis, scheme, moments)
    x_scale = np.asarray(1.0).astype(scheme.scale_dtype)
    return qu.quantize_unit(w, None, x_scale, axis=axis, scheme=scheme, inputs=moments).weight
