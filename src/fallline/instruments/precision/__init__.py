"""Which operation fails in half precision, what to change, and whether it is worth it: measured, not guessed."""

from fallline.instruments.precision.probe import precision_probe
from fallline.instruments.precision.report import PrecisionReport

__all__ = ["PrecisionReport", "precision_probe"]
