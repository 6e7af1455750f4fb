"""For one more version: where ``walstore.repair`` was imported from."""

from walstore.core.runtime.old_names import warn_old
from walstore.repair import apply_repair, plan_repair

__all__ = ["apply_repair", "plan_repair"]

warn_old(
    "walstore.repair.repairing is walstore.repair; import apply_repair and plan_repair from there"
)
