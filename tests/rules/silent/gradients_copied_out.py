"""Gradient episodic memory: the gradient of each task is copied out before the next one clears it."""

import torch


class Memory:
    def __init__(self, model, tasks):
        self.model = model
        self.gradients = torch.zeros(sum(p.numel() for p in model.parameters()), tasks)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def keep(self, task):
        begin = 0
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                end = begin + parameter.numel()
                self.gradients[begin:end, task].copy_(parameter.grad.data.view(-1))
                begin = end

    def train(self, loader, tasks):
        for x, y in loader:
            for task in range(tasks):
                loss = torch.nn.functional.cross_entropy(self.model(x[task]), y[task])
                self.optimizer.zero_grad()
                loss.backward()
                self.keep(task)
            self.optimizer.step()
