import torch


class Trainer:
    """The configuration that is mixed in makes model, optimizer and scheduler, for as many steps as there are batches."""

    def run(self, loader):
        self.model.train()
        for epoch in range(self.epochs):
            for i, (x, y) in enumerate(loader):
                loss = torch.nn.functional.mse_loss(self.model(x), y) / self.accum_steps
                loss.backward()
                if (i + 1) % self.accum_steps == 0 or i + 1 == len(loader):
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                self.scheduler.step()
