"""What a rule says: the pattern operators `P`, the markers of parameters, and the graph that both are read into."""

from rewriter.pattern.markers import (
    Boolean,
    Const,
    Dims,
    DType,
    Float,
    Integer,
    Many,
    Marker,
    Maybe,
    NotConst,
    NotFrom,
    Overridable,
    Rank,
    Scalar,
    Tensor,
    Where,
)
from rewriter.pattern.ops import P

__all__ = [
    "Boolean",
    "Const",
    "DType",
    "Dims",
    "Float",
    "Integer",
    "Many",
    "Marker",
    "Maybe",
    "NotConst",
    "NotFrom",
    "Overridable",
    "P",
    "Rank",
    "Scalar",
    "Tensor",
    "Where",
]
