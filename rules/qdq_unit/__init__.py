"""The rules of `WeightBias`: patterns of QDQ units, what a match tells of its unit, and the replacement callbacks."""

from rules.qdq_unit.rule_set import WeightBias
from rules.qdq_unit.unit_report import UnitReport, unit_reports

__all__ = ["UnitReport", "WeightBias", "unit_reports"]
