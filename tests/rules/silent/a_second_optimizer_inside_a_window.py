import argparse
import torch


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def fine_tune(self, batches):
        second_optimizer = self.model.configure_optimizers(1e-4)
        for x in batches:
            second_optimizer.zero_grad()
            loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(second_optimizer)
            self.scaler.update()

    def train(self, loader):
        for step, x in enumerate(loader):
            loss = self.model(x).square().mean() / self.args.accumulation_steps
            self.scaler.scale(loss).backward()
            if (step + 1) % self.args.accumulation_steps == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
            self.fine_tune(loader)


parser = argparse.ArgumentParser()
parser.add_argument("--accumulation_steps", type=int)
Trainer(parser.parse_args()).train(torch.utils.data.DataLoader(torch.randn(64, 8)))
