"""Reinforcement learning: env.step is no optimizer, and losses are kept on purpose."""
import torch
from torch.distributions import Categorical

policy = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def run(env, episodes):
    for episode in range(episodes):
        state = env.reset()
        log_probs, rewards = [], []
        for t in range(500):
            dist = Categorical(logits=policy(torch.as_tensor(state)))
            action = dist.sample()
            state, reward, done, _ = env.step(action)
            log_probs.append(dist.log_prob(action))
            rewards.append(reward)
            if done:
                break
        loss = -(torch.stack(log_probs) * torch.tensor(rewards)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
