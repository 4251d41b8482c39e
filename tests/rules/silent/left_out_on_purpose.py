import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Trainer:
    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.generator(x).mean().backward()
            self.optimizer.step()
            self.critic_optimizer.step()

    def save(self, path):
        state = {"generator": self.generator.state_dict(), "optimizer": self.optimizer.state_dict()}
        state["critic_optimizer"] = self.critic_optimizer.state_dict()
        torch.save(state, path)

    def resume(self, path):
        checkpoint = torch.load(path)
        self.generator.load_state_dict(checkpoint["generator"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        # self.critic_optimizer.load_state_dict(checkpoint["critic_optimizer"])
