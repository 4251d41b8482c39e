import torch
from torch import nn

MODEL = "model_state"
OPTIMIZER = "optimizer_state"
STEP = "global_step"


class Trainer:
    def __init__(self, optimizer_class, optimizer_kwargs, scheduler_config) -> None:
        self.optimizer = None
        self.optimizer_class = optimizer_class
        self.optimizer_kwargs = optimizer_kwargs
        self.scheduler_config = scheduler_config

    def train(self, model: nn.Module, loader, resume: str | None, steps: int) -> None:
        self.optimizer = self.optimizer_class(model.parameters(), **self.optimizer_kwargs)
        start = self._load(model, resume) if resume else 0
        batches = iter(loader)
        for step in range(start, steps):
            loss = model(next(batches)).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self._save(model, step, f"snapshot_{step}.pt")

    def _load(self, model: nn.Module, path: str) -> int:
        state = torch.load(path)
        model.load_state_dict(state[MODEL])
        self.optimizer.load_state_dict(state[OPTIMIZER])
        return state[STEP]

    def _save(self, model: nn.Module, step: int, path: str) -> None:
        torch.save(
            {MODEL: model.state_dict(), OPTIMIZER: self.optimizer.state_dict(), STEP: step}, path
        )
