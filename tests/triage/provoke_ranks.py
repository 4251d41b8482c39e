"""Errors of starting and sharding that one process can give. A function's name is its claim's."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def port_in_use() -> None:
    from torch.distributed import TCPStore

    first = TCPStore("127.0.0.1", 0, 1, True)
    TCPStore("127.0.0.1", first.port, 1, True)


def fsdp_generate() -> None:
    F.embedding(torch.tensor([0]), torch.ones(4))
