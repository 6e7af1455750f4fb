"""What tests of simulations share."""

from tests.porcupine.fixtures import check_history, porcupine

__all__ = ["check_history", "porcupine"]
