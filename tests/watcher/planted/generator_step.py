# {"code": "FL620", "op": ["log"], "module": [""], "step": 3}
# The generator's loss reaches the critic's parameters as well, and the critic is one update ahead.
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
generator = nn.Linear(2, 2)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
generator_optimizer = torch.optim.SGD(generator.parameters(), lr=0.05)
for i in range(6):
    real, noise = torch.randn(4, 2) + 2, torch.randn(4, 2)
    told = critic(real) + 1 - critic(generator(noise).detach())
    critic_optimizer.zero_grad()
    (-told.mean()).backward()
    critic_optimizer.step()
    judged = critic(generator(noise))
    if i == 3:
        judged = judged * 0 + 1
    loss = torch.log(1 - judged).mean()  # HERE
    generator_optimizer.zero_grad()
    loss.backward()
    generator_optimizer.step()
