# FL022: new log-probabilities are computed under no_grad
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-2)


@torch.no_grad()
def score(states, actions):
    return Categorical(logits=actor(states)).log_prob(actions)


for _ in range(8):
    states = torch.randn(16, 4)
    with torch.no_grad():
        actions = Categorical(logits=actor(states)).sample()
        old_log_probs = Categorical(logits=actor(states)).log_prob(actions)
    rewards = (actions == (states[:, 0] > 0)).float()
    values = critic(states)[:, 0]
    advantages = (rewards - values).detach()
    ratio = (score(states, actions) - old_log_probs).exp()
    loss = -(ratio * advantages).mean() + (rewards - values).pow(2).mean()
    loss.backward()  # HERE
    optimizer.step()
    optimizer.zero_grad()
