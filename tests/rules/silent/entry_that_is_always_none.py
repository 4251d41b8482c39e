"""The checkpoint has a place for a scheduler, and there is none."""

import torch


class Model:
    def __init__(self, network, optimizer):
        self.network, self.optimizer, self.begin = network, optimizer, 0

    def save(self, path, step):
        state = {"iter": step, "scheduler": None, "optimizer": None}
        state["optimizer"] = self.optimizer.state_dict()
        torch.save(self.network.state_dict(), f"{path}_model.pt")
        torch.save(state, f"{path}_state.pt")

    def resume(self, path):
        self.network.load_state_dict(torch.load(f"{path}_model.pt"))
        state = torch.load(f"{path}_state.pt")
        self.optimizer.load_state_dict(state["optimizer"])
        self.begin = state["iter"]
