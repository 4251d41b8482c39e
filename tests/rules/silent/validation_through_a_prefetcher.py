"""The order of validation data does not matter, also where an object gives the batches."""

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)

    def next(self):
        return next(self.loader, (None, None))


def train(loader, model, optimizer):
    prefetcher = Prefetcher(loader)
    model.train()
    x, y = prefetcher.next()
    while x is not None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        x, y = prefetcher.next()


def validate(loader, model):
    model.eval()
    prefetcher = Prefetcher(loader)
    x, y = prefetcher.next()
    right = 0
    while x is not None:
        with torch.no_grad():
            right += (model(x).argmax(1) == y).sum().item()
        x, y = prefetcher.next()
    return right


def main(model, train_set, val_set):
    sampler, val_sampler = DistributedSampler(train_set), DistributedSampler(val_set)
    loader = DataLoader(train_set, 8, sampler=sampler)
    val_loader = DataLoader(val_set, 8, sampler=val_sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(9):
        sampler.set_epoch(epoch)
        train(loader, model, optimizer)
        print(validate(val_loader, model))
