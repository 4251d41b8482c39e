import torch


class Trainer:
    def run(self, loader):
        for epoch in range(self.epochs):
            self.model.train()
            for i, (x, y) in enumerate(loader):
                loss = torch.nn.functional.mse_loss(self.model(x), y) / self.accum_steps
                loss.backward()
                if (i + 1) % self.accum_steps == 0 or i + 1 == len(loader):
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                self.current_step += 1
                if self.current_step % self.validation_frequency == 0:
                    self.optimizer.zero_grad()
                    print(self.current_step, loss.item())
