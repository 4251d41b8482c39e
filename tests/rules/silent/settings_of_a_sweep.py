import torch
import wandb


class Trainer:
    def __init__(self, config, model):
        self.config, self.model = config, model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda") if config["use_amp"] else None

    def train(self, loader):
        for x in loader:
            with torch.autocast("cuda", enabled=self.config["use_amp"]):
                loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            if self.scaler is not None:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss.backward()
                self.optimizer.step()


def main(loader):
    wandb.init()
    config = wandb.config
    Trainer(config, torch.nn.Linear(4, 1)).train(loader)
