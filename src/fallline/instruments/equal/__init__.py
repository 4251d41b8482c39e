"""Whether one update of a loop is the update it is meant to be: the same samples in other ways, and the gradients compared.

`way` says what is varied, `vary` and its neighbours turn it, `record` keeps the gradients of one update, `pieces` compares two of
them, `explain` says what the difference means, `measure` plans the runs, `mother` makes them in forked processes whose writes go
nowhere (`instruments.aside`).
"""

from fallline.instruments.equal.measure import equal
from fallline.instruments.equal.report import Comparison, Equal

__all__ = ["Comparison", "Equal", "equal"]
