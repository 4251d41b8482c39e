"""Errors that strangers pasted on 2026-11-18, provoked. A function's name is its claim's."""

from __future__ import annotations

import torch
from torch import nn


def gather_dimensions() -> None:
    torch.gather(torch.zeros(4, 2), 1, torch.ones(4).long())


def dot_of_columns() -> None:
    torch.dot(torch.ones(2, 1), torch.ones(2, 1))


def permute_dimensions() -> None:
    torch.ones(2, 3, 4, 5).permute(1, 0, 2)


def nothing_left_to_convolve() -> None:
    nn.MaxPool2d(4)(torch.ones(1, 3, 2, 2))


def tuple_where_a_tensor_was_meant() -> None:
    nn.LSTM(2, 2)(torch.ones(3, 1, 2))[:, 0]


def unpacked_too_little() -> None:
    for _, (_, _) in [(0, 5)]:  # type: ignore[misc]
        pass


def name_of_the_module_taken() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.modules = nn.ModuleDict({"first": nn.Linear(1, 1)})  # type: ignore[assignment]

    Net().modules["first"]  # type: ignore[index]
