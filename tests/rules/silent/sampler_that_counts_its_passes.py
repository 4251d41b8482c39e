import math

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.sampler import RandomSampler, Sampler


class DistributedSampler(Sampler):
    def __init__(self, dataset, shuffle=True):
        self.dataset, self.shuffle, self.epoch = dataset, shuffle, 0
        self.world, self.rank = dist.get_world_size(), dist.get_rank()

    def __iter__(self):
        order = list(range(len(self.dataset)))
        self.epoch += 1
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.epoch)
            order = torch.randperm(len(self.dataset), generator=generator).tolist()
        return iter(order[self.rank :: self.world])

    def __len__(self):
        return math.ceil(len(self.dataset) / self.world)

    def set_epoch(self, epoch):
        self.epoch = epoch


def make_sampler(dataset, shuffle, distributed):
    if distributed:
        return DistributedSampler(dataset, shuffle=shuffle)
    return RandomSampler(dataset)


def train(model, optimizer, loader):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main(args, dataset, model):
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        dataset, batch_size=8, sampler=make_sampler(dataset, True, args.distributed)
    )
    for epoch in range(args.epochs):
        train(model, optimizer, loader)
