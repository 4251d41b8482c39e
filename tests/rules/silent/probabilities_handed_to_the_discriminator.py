import torch
from torch import nn


class Discriminator(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.network = nn.Linear(size, 1)
        self.optimizer = torch.optim.Adam(self.parameters())

    def forward(self, prob, state):
        score = torch.exp(self.network(state))
        return score / (score + torch.exp(prob))

    def train_network(self, agent_prob, agent_state, expert_prob, expert_state):
        for _ in range(4):
            expert = self.forward(expert_prob, expert_state)
            agent = self.forward(agent_prob, agent_state)
            loss = nn.functional.binary_cross_entropy(expert, torch.zeros_like(expert))
            loss = loss + nn.functional.binary_cross_entropy(agent, torch.ones_like(agent))
            self.optimizer.zero_grad()
            loss.backward(retain_graph=True)
            self.optimizer.step()
