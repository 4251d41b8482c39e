"""Train on one process, on several CPUs, or on several GPUs, unchanged:

    python examples/engine_distributed.py
    torchrun --nproc-per-node=2 examples/engine_distributed.py

Run it twice with the same folder and the second run goes on where the first one stopped.
"""

import math
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import fallline

EPOCHS, BATCH, ACCUMULATE = 3, 16, 4


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else "checkpoints"
    data = torch.Generator().manual_seed(0)
    inputs = torch.randn(500, 16, generator=data)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())

    with fallline.distributed(seed=0) as ranks:
        model = ranks.wrap(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)))
        loader = ranks.loader(dataset, batch_size=BATCH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        updates = math.ceil(len(dataset) / (BATCH * ACCUMULATE * ranks.world_size)) * EPOCHS
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
        stepper = fallline.Stepper(model, optimizer, accumulate=ACCUMULATE, clip_norm=1.0, scheduler=scheduler)
        fallline.load_checkpoint(folder, stepper=stepper)

        while stepper.epoch < EPOCHS:
            for x, y in stepper.over(loader):
                x, y = x.to(ranks.device), y.to(ranks.device)
                with stepper.micro_batch() as micro:
                    loss = nn.functional.mse_loss(model(x), y, reduction="sum")
                    micro.backward(loss, weight=y.numel())
            fallline.save_checkpoint(folder, stepper=stepper)
            if ranks.is_main:
                print(f"epoch {stepper.epoch}: {stepper.updates} updates, gradient norm {stepper.last.norm:.3f}")

        if ranks.is_main:
            print(f"done on {ranks.world_size} rank{'s' if ranks.world_size > 1 else ''} ({ranks.device.type})")


if __name__ == "__main__":
    main()
