import torch
import torch.nn.functional as F
from torch import nn


class Learner(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.steps = 5
        self.inner_lr = 0.04
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-4)

    def forward(self, x_spt, y_spt, x_qry, y_qry):
        tasks = x_spt.size(0)
        losses = [0 for _ in range(self.steps + 1)]
        for i in range(tasks):
            fast = list(self.net.parameters())
            for k in range(self.steps):
                loss = F.cross_entropy(self.net(x_spt[i], fast), y_spt[i])
                grads = torch.autograd.grad(loss, fast)
                fast = [p - self.inner_lr * g for g, p in zip(grads, fast)]
                losses[k + 1] += F.cross_entropy(self.net(x_qry[i], fast), y_qry[i])
        loss = losses[-1] / tasks
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
