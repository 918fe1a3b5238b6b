"""Scales fitted to balanced rounding: another scale, a little larger, where the errors of a channel cancel better.

Balancing takes what a few flips give, and in a short channel that is left to luck: nine weights have nine errors to
choose from. A scale a hair larger draws all of them anew and costs next to nothing (the squares grow by twice the
hair). So short channels try a few scales above their own, and keep the one of the least objective.

So do those of any length in which a scheme of ONNX Runtime would come out better (`rivals`); where none of the tried
beats it, its scale is taken, and balanced rounding, which is never worse than nearest at one scale, does the rest. So
no channel is worse than under any scheme of ONNX Runtime whose codes this form can hold. Others remain: a symmetric
weight has no zero point to move, so that a channel of one sign has half the step under an asymmetric scheme, and where
the input's mean is 0 no rounding makes up for that. And where one scale serves the tensor, the sum over the channels is
what is never worse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .moments import InputMoments
from .objective import objective_of
from .rivals import Fits, best_offer
from .scales import round_trip_is_finite
from .scheme import Scheme
from .tensor import QuantizedTensor, along
from .weight import codes_of

_SHORT = 128
_TRIED, _HAIR = 16, 2.0**-8
_BETTER = 1 - 2.0**-40
_EPS = 2.0**-22
_CHUNK = 1 << 20

Array = NDArray[Any]


def fitted(
    w: Array,
    q: QuantizedTensor,
    ranges: tuple[Array, Array],
    scheme: Scheme,
    moments: InputMoments,
    fits: Fits,
    fixed: NDArray[np.bool_],
    *,
    axis: int,
    alpha: float = 1.0,
    repeat: int = 1,
) -> tuple[QuantizedTensor, NDArray[np.bool_]]:
    """q, balanced codes of alpha * w, with other scales and codes wherever these have a smaller objective.

    axis: of the output channels; repeat: as in `quantize_unit`. ranges: of alpha * w, a number or [C] each, as
    `finite_range`. fits: which scales are admitted, elementwise. fixed: [C], short channels that are left alone.

    Smaller by more than float32 can tell, that is: its square root by K max|w| 2^-22, of K weights.

    Returns the codes, and where they are new, shape of q's scale. Nothing changes with rounding to nearest, which is
    asked for to have its very codes, or with powers of two, which leave no choice.
    """
    new = np.zeros(q.scale.shape, bool)
    if scheme.rounding == "nearest" or scheme.power_of_two or w.size == 0:
        return q, new
    search = _Search(scheme, moments, axis, {"alpha": alpha, "repeat": repeat})
    own = search.objective(w, q)
    offer = best_offer(
        w, (q.scale, q.zero_point), own, ranges, scheme, moments, fits, axis=axis, alpha=alpha, repeat=repeat
    )
    depth = w.size // w.shape[axis]
    # float32 does not tell quotients apart by less: what lies on a grid is left there.
    noise = np.square(depth * _EPS * np.maximum(-ranges[0], ranges[1]))
    own = own - np.minimum(own, noise * (w.shape[axis] if q.axis is None else 1))
    largest = _above(q.scale, _TRIED)
    roomy = fits(largest) & round_trip_is_finite(largest, scheme.span)
    if q.axis is None:
        scale, zero, least = offer[0][0], offer[1][0], offer[2].sum()
        return search.run(w, q, own, (scale, zero, least), roomy) if least < own * _BETTER else (q, new)
    short = ~fixed & roomy if depth <= _SHORT else new
    wanted = np.flatnonzero((own > 0) & (short | (offer[2] < own * _BETTER)))
    scale, zero, codes = q.scale.copy(), q.zero_point.copy(), q.codes
    size = max(1, _CHUNK // depth)
    for at in (wanted[start : start + size] for start in range(0, len(wanted), size)):
        part = QuantizedTensor(np.take(q.codes, at, axis), q.scale[at], q.zero_point[at], axis)
        found, new[at] = search.run(np.take(w, at, axis), part, own[at], tuple(v[at] for v in offer), roomy[at])
        if codes is q.codes:
            codes = codes.copy()
        np.moveaxis(codes, axis, 0)[at] = np.moveaxis(found.codes, axis, 0)
        scale[at], zero[at] = found.scale, found.zero_point
    return replace(q, codes=codes, scale=scale, zero_point=zero), new


def _above(scale: Array, hairs: int) -> Array:
    return np.asarray(scale.astype(np.float64) * (1 + hairs * _HAIR)).astype(scale.dtype)


@dataclass(frozen=True)
class _Search:
    """What all channels of a weight have in common. options: alpha and repeat."""

    scheme: Scheme
    moments: InputMoments
    axis: int
    options: dict[str, Any]

    def objective(self, w: Array, q: QuantizedTensor) -> NDArray[np.float64]:
        """Shape of q's scale: of a channel, or the sum of all."""
        found = objective_of(w, q, self.moments, axis=self.axis, **self.options)
        return np.asarray(found.sum()) if q.axis is None else found

    def run(
        self, w: Array, q: QuantizedTensor, own: Array, offer: tuple[Array, ...], roomy: Array
    ) -> tuple[QuantizedTensor, NDArray[np.bool_]]:
        """The best of q, the scales above its own, and what is offered: scale, zero point, objective when nearest.

        own: the objective of q. roomy: whether all scales above fit. Returns where it is new, too.
        """
        beaten = offer[2] < own * _BETTER
        tried, reached = self.above(w, q)
        better = roomy & (reached < np.where(beaten, offer[2], own) * _BETTER)
        found, rest = _where(better, tried, q), beaten & ~better
        if rest.any():
            scale, zero = np.where(rest, offer[0], found.scale), np.where(rest, offer[1], found.zero_point)
            found = _where(rest, self.codes(w, scale, zero, q.axis), found)
        return found, better | rest

    def above(self, w: Array, q: QuantizedTensor) -> tuple[QuantizedTensor, NDArray[np.float64]]:
        """Of the scales above those of q the best ones, with their codes and objectives.

        As many at once as fit a chunk, as so many times the channels: for a small weight, calls are what costs.
        """
        best, least = q, np.full(q.scale.shape, np.inf)
        together = max(1, _CHUNK // max(1, w.size)) if q.axis is not None else 1
        for first in range(1, _TRIED + 1, together):
            hairs = range(first, min(first + together, _TRIED + 1))
            scales = np.stack([_above(q.scale, one) for one in hairs])
            flat = scales.reshape(-1) if q.axis is not None else scales[0]
            many = np.concatenate([w] * len(hairs), axis=q.axis) if len(hairs) > 1 else w
            zeros = np.broadcast_to(q.zero_point, scales.shape).reshape(flat.shape)
            tried = self.codes(many, flat, zeros, q.axis)
            reached = np.asarray(self.objective(many, tried)).reshape(scales.shape)
            one = reached.argmin(axis=0)
            picked = self.pick(tried, one, q)
            value = np.take_along_axis(reached, one[None], axis=0)[0]
            best, least = _where(value < least, picked, best), np.minimum(value, least)
        return best, least

    @staticmethod
    def pick(many: QuantizedTensor, one: Array, like: QuantizedTensor) -> QuantizedTensor:
        """Of so many times the channels, each channel as it is in the repetition that is its one."""
        if like.axis is None:
            return many
        at = one * len(like.scale) + np.arange(len(like.scale))
        return replace(
            like, codes=np.take(many.codes, at, like.axis), scale=many.scale[at], zero_point=many.zero_point[at]
        )

    def codes(self, w: Array, scale: Array, zero_point: Array, axis: int | None) -> QuantizedTensor:
        """Balanced codes at these scales and zero points."""
        clipping = replace(self.scheme, search="mse")  # what is offered may clip half a step
        options: dict[str, Any] = {"channel_axis": self.axis, "moments": self.moments, **self.options}
        return codes_of(w, np.asarray(scale), np.asarray(zero_point), axis, clipping, **options)


def _where(mask: Array, a: QuantizedTensor, b: QuantizedTensor) -> QuantizedTensor:
    codes = np.where(along(np.asarray(mask), a.codes.ndim, a.axis), a.codes, b.codes)
    scale, zero = (np.asarray(np.where(mask, *v)) for v in ((a.scale, b.scale), (a.zero_point, b.zero_point)))
    return replace(b, codes=codes, scale=scale, zero_point=zero)
