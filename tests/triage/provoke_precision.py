"""Errors of mixed precision, provoked. A function's name is its claim's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

Lin = nn.Linear
ones = torch.ones


def unscale_per_micro_batch() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2)).sum()).backward()
    s.unscale_(o)
    s.unscale_(o)


def unscale_after_step() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2)).sum()).backward()
    s.step(o)
    s.unscale_(o)


def scaler_step_twice() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2)).sum()).backward()
    s.step(o)
    s.step(o)


def no_inf_checks() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    s.scale(ones(1))
    s.step(torch.optim.SGD(m.parameters(), lr=0.1))


def no_inf_checks_update() -> None:
    s = torch.amp.GradScaler("cpu")
    s.scale(ones(1))
    s.update()


def scaler_not_initialised() -> None:
    m = Lin(2, 1)
    m(ones(1, 2)).sum().backward()
    torch.amp.GradScaler("cpu").step(torch.optim.SGD(m.parameters(), lr=0.1))


def amp_master_weights() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1).half()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2).half()).sum().float()).backward()
    s.unscale_(o)


def amp_deprecated() -> None:
    torch.cuda.amp.GradScaler(enabled=False)


def autocast_deprecated() -> None:
    torch.cuda.amp.autocast(enabled=False)


def bce_autocast() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    # autocast itself asks for a device; its dispatcher does not
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode():
            p = torch.empty(2, device="cuda", dtype=torch.float16)
            F.binary_cross_entropy(p, p)
    finally:
        torch.set_autocast_enabled("cuda", False)


def scaler_no_cuda() -> None:
    torch.amp.GradScaler("cuda")


def autocast_no_cuda() -> None:
    torch.autocast("cuda")
