# FL022: the log-probabilities are detached, and only the critic learns
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-2)
for _ in range(8):
    states = torch.randn(16, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    rewards = (actions == (states[:, 0] > 0)).float()
    values = critic(states)[:, 0]
    advantages = (rewards - values).detach()
    log_probs = policy.log_prob(actions).detach()
    loss = -(log_probs * advantages).mean() + (rewards - values).pow(2).mean()
    loss.backward()  # HERE
    optimizer.step()
    optimizer.zero_grad()
