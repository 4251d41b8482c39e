"""Which of torch's operations a piece of code runs: what can be counted is the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["operations"]


def operations(code: Callable[[], object]) -> Counter[str]:
    """How often each operation ran: {"_foreach_norm": 1, ...}."""

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[func.overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))

    seen: Counter[str] = Counter()
    with Count():
        code()
    return seen
