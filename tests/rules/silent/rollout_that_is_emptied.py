import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Memory:
    def __init__(self):
        self.rewards, self.logprobs = [], []

    def clear(self):
        del self.rewards[:]
        del self.logprobs[:]


def train(policy, env):
    optimizer = torch.optim.Adam(policy.parameters())
    memory = Memory()
    for t in range(1000):
        state, reward, done = env.step()
        logits = policy(state)
        memory.rewards.append(reward)
        memory.logprobs.append(F.log_softmax(logits, -1)[0])
        if done:
            optimizer.zero_grad()
            policy(state).mean().backward()
            optimizer.step()
            memory.clear()
