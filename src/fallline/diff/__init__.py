"""Two recorded runs: what differs, first cause first, and whether more than noise does. Needs no torch."""

from fallline.diff.compare import compare
from fallline.diff.difference import Comparison, Difference

__all__ = ["Comparison", "Difference", "compare"]
