import torch
from torch.distributions import Categorical


def rollout(policy, env, length):
    rewards, actions, logps, states = [], [], [], []
    state = env.reset()
    for _ in range(length):
        with torch.no_grad():
            chances = Categorical(logits=policy(state))
            action = chances.sample()
            logp = chances.log_prob(action)
        states.append(state)
        actions.append(action)
        state, reward = env.step(action)
        rewards.append(reward)
        logps.append(logp.unsqueeze(0))
    return torch.tensor(rewards), torch.stack(actions), torch.cat(logps), torch.stack(states)


def policy_loss(policy, critic, rewards, actions, old_logprobs, states):
    logprobs = Categorical(logits=policy(states)).log_prob(actions)
    advantages = rewards - critic(states).squeeze(-1)
    norm_adv = (advantages - advantages.mean()).detach()
    actor_loss = (-norm_adv * (logprobs - old_logprobs).exp()).mean()
    return actor_loss + advantages.pow(2).mean()


def train(policy, critic, env, optimizer):
    for step in range(1000):
        rewards, actions, old, states = rollout(policy, env, 200)
        optimizer.zero_grad()
        policy_loss(policy, critic, rewards, actions, old, states).backward()
        optimizer.step()
