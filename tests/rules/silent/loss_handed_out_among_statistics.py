# The caller calls backward on what is under "loss"; the statistics beside it are detached.
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train_batch(self, x, y):
        logs = {}
        out = self.model(x)
        near_loss, far_loss = (out - y).abs().mean(), (out - y).pow(2).mean()
        total_loss = near_loss + far_loss
        logs.update(
            {
                "loss": total_loss,
                "loss/near": near_loss.detach(),
                "loss/far": far_loss.detach(),
                "out/mean": out.mean().detach(),
            }
        )
        return logs

    def run(self, batches):
        for x, y in batches:
            logs = self.train_batch(x, y)
            self.optimizer.zero_grad()
            logs["loss"].backward()
            self.optimizer.step()


Trainer().run([(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(10)])
