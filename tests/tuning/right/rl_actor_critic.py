# actor and critic, the advantage detached where it enters the policy's loss
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
    advantage = rewards - critic(states)[:, 0]
    actor_loss = -(policy.log_prob(actions) * advantage.detach()).mean()
    critic_loss = advantage.pow(2).mean()
    (actor_loss + 0.5 * critic_loss).backward()
    optimizer.step()
    optimizer.zero_grad()
