import torch
from torch.distributions import Categorical


def rollout(policy, env, length):
    rewards, logps, states = [], [], []
    state = env.reset()
    for _ in range(length):
        chances = Categorical(logits=policy(state))
        with torch.no_grad():
            action = chances.sample()
        logp = chances.log_prob(action)
        states.append(state)
        state, reward = env.step(action)
        rewards.append(reward)
        logps.append(logp.unsqueeze(0))
    return torch.tensor(rewards), torch.cat(logps), torch.stack(states)


def policy_loss(critic, rewards, logprobs, states):
    advantages = rewards - critic(states).squeeze(-1)
    norm_adv = (advantages - advantages.mean()).detach()
    actor_loss = (-norm_adv * logprobs).mean()
    return actor_loss + advantages.pow(2).mean()


def train(policy, critic, env, optimizer):
    for step in range(1000):
        rewards, logprobs, states = rollout(policy, env, 200)
        optimizer.zero_grad()
        policy_loss(critic, rewards, logprobs, states).backward()
        optimizer.step()
