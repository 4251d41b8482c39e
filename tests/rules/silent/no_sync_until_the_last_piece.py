"""Every piece of a batch but the last runs under no_sync; how many there are is known to the loop alone."""

import contextlib

import torch


class Trainer:
    def __init__(self, model, loader):
        self.model = torch.nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.loader = loader

    def train(self):
        for batch in self.loader:
            self.optimizer.zero_grad()
            pieces = self.cut(batch)
            for number, piece in enumerate(pieces):
                last = number == len(pieces) - 1
                with contextlib.nullcontext() if last else self.model.no_sync():
                    (self.model(piece).mean() / len(pieces)).backward()
            self.optimizer.step()
