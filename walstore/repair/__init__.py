"""Repairing a log that does not open."""

from walstore.repair.heal import Copy
from walstore.repair.plan import KEPT_NAME, Interval, RepairPlan
from walstore.repair.repairing import apply_repair, plan_repair
from walstore.repair.runs import Keep

__all__ = [
    "KEPT_NAME",
    "Copy",
    "Interval",
    "Keep",
    "RepairPlan",
    "apply_repair",
    "plan_repair",
]
