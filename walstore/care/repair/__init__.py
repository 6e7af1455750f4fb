"""Repairing a log that does not open."""

from walstore.care.repair.heal import Copy
from walstore.care.repair.plan import KEPT_NAME, Interval, RepairPlan
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.repair.runs import Keep

__all__ = [
    "KEPT_NAME",
    "Copy",
    "Interval",
    "Keep",
    "RepairPlan",
    "apply_repair",
    "plan_repair",
]
