"""Repairing a log that does not open."""

from walstore.repair.plan import KEPT_NAME
from walstore.repair.repairing import (
    Copy,
    Interval,
    Keep,
    RepairPlan,
    apply_repair,
    plan_repair,
)

__all__ = [
    "KEPT_NAME",
    "Copy",
    "Interval",
    "Keep",
    "RepairPlan",
    "apply_repair",
    "plan_repair",
]
