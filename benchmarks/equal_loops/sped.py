"""DeepSpeed's engine on the CPU, with a switch for what is wrong with it."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

import deepspeed
import torch
from equal_loops.plain import evaluate, net, pictures
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

K = 4


def train(fault: str = "") -> None:
    """`engine.backward` divides the loss by gradient_accumulation_steps, `engine.step` steps where it is due."""
    logging.disable(logging.WARNING)
    _one_process_is_a_job_too()
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    own = net()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1 if fault == "undivided" else K,
        "zero_optimization": {"stage": next((n for n in (1, 2, 3) if f"zero {n}" in fault), 0)},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.05 if "right" in fault and "clip" in fault else 0.0,
    }
    engine, _, _, _ = deepspeed.initialize(
        model=own, optimizer=torch.optim.SGD(own.parameters(), lr=0.1), config=config
    )
    data = pictures(44 if fault == "remainder" else 32)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=1))
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(engine(x), y)
            if "divided twice" in fault:
                loss = loss / K
            if "by ranks twice" in fault:
                loss = loss / torch.distributed.get_world_size()
            engine.backward(loss)
            if fault == "wiped" and i % K == 1:
                own.zero_grad()
            if fault == "clip each":
                torch.nn.utils.clip_grad_norm_(own.parameters(), 0.05)
            if fault != "undivided" or (i + 1) % K == 0:
                engine.step()
        print(evaluate(engine, DataLoader(pictures(24), batch_size=8), fault))


def _one_process_is_a_job_too() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():  # fmt: skip
        os.environ.setdefault(name, value)


LOOPS = {"train": train}

if __name__ == "__main__":
    train(" ".join(sys.argv[1:]))
