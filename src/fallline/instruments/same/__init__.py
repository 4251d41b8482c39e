"""Whether a script gives the same bits twice; if not, the first update, parameter and operation that differ, and why."""

from fallline.instruments.same.measure import measure_same
from fallline.instruments.same.report import Same

__all__ = ["Same", "measure_same"]
