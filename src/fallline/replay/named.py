"""What the user calls a tensor. Several names may show parts of one storage: `X`, and `xb = X[60:70]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fallline.replay.tensors import storage

__all__ = ["NamedTensors"]

Index = list[int]


class NamedTensors:
    """The tensors that a user's names stand for, or lie in the lists and dictionaries they stand for."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self._by_storage: dict[int, list[tuple[str, Tensor]]] = {}
        for name, value in (values or {}).items():
            for text, tensor in _tensors(name, value, 0):
                self._by_storage.setdefault(storage(tensor), []).append((text, tensor))

    def called(self, how: str) -> NamedTensors:
        """The same, with names that say more: `how` is a text with `{}` for the name."""
        told = NamedTensors()
        for key, known in self._by_storage.items():
            told._by_storage[key] = [(how.format(name), tensor) for name, tensor in known]
        return told

    def __or__(self, others: NamedTensors) -> NamedTensors:
        """These, and for a storage that has no name among them, the others."""
        both = NamedTensors()
        both._by_storage = others._by_storage | self._by_storage
        return both

    def find(self, tensor: Tensor, index: Index | None) -> tuple[str | None, Index | None]:
        """The smallest named tensor that shows this element, and the element's index in that tensor."""
        known = self._by_storage.get(storage(tensor), [])
        for name, shown in sorted(known, key=lambda one: one[1].numel()):
            if _view(shown) == _view(tensor):
                return name, index
            there = _index_in(shown, tensor, index)
            if there is not None:
                return name, there
        return None, index


def _tensors(name: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
    match value:
        case Tensor():
            yield name, value
        case list() | tuple() if depth < 3:
            for i, item in enumerate(value[:16]):
                yield from _tensors(f"{name}[{i}]", item, depth + 1)
        case dict() if depth < 3:
            for key, item in list(value.items())[:32]:
                yield from _tensors(f"{name}[{key!r}]", item, depth + 1)


def _view(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _index_in(shown: Tensor, tensor: Tensor, index: Index | None) -> Index | None:
    """Where the element of one tensor is in another one of the same storage; None where it is not."""
    if index is None or shown.dtype != tensor.dtype:
        return None
    steps = zip(index, tensor.stride(), strict=True)
    ahead = sum(i * step for i, step in steps)
    rest = int(tensor.storage_offset()) + ahead - int(shown.storage_offset())
    there, strides = [0] * shown.dim(), shown.stride()
    for d in sorted(range(shown.dim()), key=lambda d: -strides[d]):
        if strides[d] and shown.shape[d] > 1:
            there[d], rest = divmod(rest, strides[d])
    inside = all(0 <= i < size for i, size in zip(there, shown.shape, strict=True))
    return there if rest == 0 and inside else None
