# {"code": "FL620", "op": ["log"], "module": [""], "step": 2}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Env:
    steps = 0

    def step(self, action):
        self.steps += 1
        return torch.randn(4), float(action)


env, policy = Env(), nn.Linear(4, 2)
opt = torch.optim.SGD(policy.parameters(), 1e-2)
for episode in range(4):
    state, chosen, rewards = torch.randn(4), [], []
    for _ in range(5):
        probabilities = torch.softmax(policy(state) * (1e4 if episode == 2 else 1), -1)
        action = probabilities.argmin()
        chosen.append(torch.log(probabilities[action]))  # HERE
        state, reward = env.step(action)
        rewards.append(reward + 1)
    loss = -(torch.stack(chosen) * torch.tensor(rewards)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
assert env.steps == 20, "a replay does not step the environment"
