import torch
from torch import nn


class LossWeightsScheduler:
    """Class weights that go from balanced to equal over the epochs."""

    def __init__(self, weights, decay):
        self.weights, self.decay, self.epoch = weights, decay, 0

    def step(self):
        self.epoch += 1
        return self.weights * self.decay**self.epoch


def make_loss(config, dataset):
    weight = None
    weight_scheduler = None
    if config.loss == "cross_entropy":
        if config.balanced == "dynamic":
            weight_scheduler = LossWeightsScheduler(dataset.weights, config.decay)
        loss_function = nn.CrossEntropyLoss(weight)
    elif config.loss == "l1":
        loss_function = nn.L1Loss()
    elif config.loss == "huber":
        loss_function = nn.HuberLoss()
    elif config.loss == "smooth":
        loss_function = nn.SmoothL1Loss()
    elif config.loss == "mse":
        loss_function = nn.MSELoss()
    else:
        raise NotImplementedError
    return loss_function, weight_scheduler


def train(config, model, dataset, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function, weight_scheduler = make_loss(config, dataset)
    model.train()
    for epoch in range(config.epochs):
        if weight_scheduler:
            loss_function.weight = weight_scheduler.step()
        for x, y in loader:
            optimizer.zero_grad()
            loss_function(model(x), y).backward()
            optimizer.step()
