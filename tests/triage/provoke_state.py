"""Errors of precision, checkpoints and seeds, provoked. A function's name is its claim's."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ALSO = {
    "half_in_attention": "half-meets-float",
    "float_meets_half": "half-meets-float",
    "scatter_types": "types-after-autocast",
    "dot_types": "types-after-autocast",
}


def half_meets_float() -> None:
    torch.bmm(torch.ones(2, 3, 4).half(), torch.ones(2, 4, 3))


def float_meets_half() -> None:
    F.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2).half())


def half_in_attention() -> None:
    k = torch.ones(1, 2, 4)
    F.scaled_dot_product_attention(k.half(), k, k)


def types_after_autocast() -> None:
    torch.zeros(3)[torch.tensor([0])] = torch.ones(1).half()


def scatter_types() -> None:
    torch.zeros(3).scatter_(0, torch.tensor([0]), torch.ones(1).half())


def dot_types() -> None:
    torch.dot(torch.ones(2).half(), torch.ones(2))


def pickled_class_missing() -> None:
    import __main__

    made = type("GoneNet", (nn.Module,), {"__module__": "__main__"})
    __main__.GoneNet = made  # type: ignore[attr-defined]
    file = io.BytesIO()
    torch.save(made(), file)
    del __main__.GoneNet  # type: ignore[attr-defined]
    file.seek(0)
    torch.load(file, weights_only=False)


def initial_lr_missing() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1, last_epoch=5)


def shared_tensors() -> None:
    from safetensors.torch import save_file

    weight = torch.ones(2)
    with tempfile.TemporaryDirectory() as folder:
        save_file({"a": weight, "b": weight}, Path(folder) / "x.safetensors")


def whole_checkpoint_loaded() -> None:
    nn.Linear(2, 2).load_state_dict({"epoch": 3, "model": nn.Linear(2, 2).state_dict()})


def plain_file_into_compiled() -> None:
    torch.compile(nn.Linear(2, 2), backend="eager").load_state_dict(nn.Linear(2, 2).state_dict())  # type: ignore[attr-defined]


def optimizer_is_none() -> None:
    optimizer: Any = None
    optimizer.param_groups  # noqa: B018
