"""The rules of `WeightBias`: patterns of QDQ units, what a match tells of its unit, and the replacement callbacks."""

from rules.qdq_unit.rule_set import WeightBias

__all__ = ["WeightBias"]
