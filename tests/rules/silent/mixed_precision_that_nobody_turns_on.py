import torch
from torch import nn


class Trainer:
    def __init__(self, model, use_amp=False):
        self.model = model
        self.use_amp = use_amp
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda") if use_amp else None

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            if self.use_amp:
                with torch.autocast("cuda"):
                    loss = self.model(x).pow(2).mean()
                self.scaler.scale(loss).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss = self.model(x).pow(2).mean()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()


trainer = Trainer(nn.Linear(4, 1))
trainer.fit(torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8))
