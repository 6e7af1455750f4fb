"""Repairing a log that does not open: a plan that names all losses, then applying it (docs/repair.md)."""

from walstore.care.repair import (
    KEPT_NAME,
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
