"""What autograd keeps alive: graph nodes, and bytes saved for a backward pass."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["SavedForBackward", "graph_nodes"]


def graph_nodes(tensors: Iterable[Tensor]) -> int:
    """How many autograd nodes these tensors keep alive."""
    seen = set()
    waiting = [tensor.grad_fn for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return len(seen)


class SavedForBackward:
    """Bytes held for a backward pass, `now` and at the `peak`; parameters do not count, they live anyway."""

    def __init__(self, model: nn.Module) -> None:
        self.now = self.peak = 0
        self._holders: Counter[int] = Counter()  # a storage saved twice takes its bytes once
        self._parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._hold, lambda held: held.tensor)

    def __enter__(self) -> SavedForBackward:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _hold(self, tensor: Tensor) -> _Held:
        held = _Held(tensor)
        address, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if address not in self._parameters:
            if not self._holders[address]:
                self.now += size
                self.peak = max(self.peak, self.now)
            self._holders[address] += 1
            weakref.finalize(held, self._release, address, size)
        return held

    def _release(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            self.now -= size


class _Held:
    """A tensor in the graph's keeping; it goes when the graph lets go of it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = (
            tensor.detach()
        )  # an output with its history would hold its own graph for ever
