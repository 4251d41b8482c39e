"""Each way of wrapping a model has its own way of clipping."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        if isinstance(self.model, FSDP):
            self.model.clip_grad_norm_(max_norm=1.0)
        elif isinstance(self.model, (DDP, torch.nn.DataParallel)):
            torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), max_norm=1.0)
        else:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.optimizer.step()


def main(args, loader):
    model = torch.nn.Linear(8, 8)
    if args.kind == "fsdp":
        model = FSDP(model)
    elif args.kind == "ddp":
        model = DDP(model)
    trainer = Trainer(model, torch.optim.AdamW(model.parameters()))
    for x, y in loader:
        trainer.step(x, y)
