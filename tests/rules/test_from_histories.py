"""Mistakes in the shape in which real repositories had them, and right code that looks like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

WRONG = {
    "the old log-probabilities of a policy, in train mode": (
        "FL809",
        """\
import torch


class Actor:
    def compute_log_prob(self, data):
        '''The log-probabilities before the update.'''
        outputs = []  # here
        with torch.no_grad():
            for part in data:
                outputs.append(self.module(part))
        return torch.cat(outputs)

    def update_policy(self, data):
        self.module(data).mean().backward()
        self.optimizer.step()
""",
    ),
    "a target network with dropout": (
        "FL809",
        """\
import copy

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


def learn(batch, gamma=0.9):
    critic = Critic()
    critic_target = copy.deepcopy(critic)  # here
    with torch.no_grad():
        target = batch.reward + gamma * critic_target(batch.next_state)
    return nn.functional.mse_loss(critic(batch.state), target)
""",
    ),
    "a kernel that autograd does not see": (
        "FL136",
        """\
import torch
import triton
import triton.language as tl


@triton.jit
def _rotate(x, out, size: tl.constexpr):
    tl.store(out, tl.load(x))


def apply_rotary(x, cos, sin):  # here
    output = torch.empty_like(x)
    grid = (x.shape[0],)
    _rotate[grid](x, output, x.shape[1])
    return output
""",
    ),
    "the warmup is subtracted twice": (
        "FL130",
        """\
import torch


class Annealing:
    def get_lr(self):
        steps = min(self.num_iters, self.end_iter - self.warmup_iter)  # here
        if self.warmup_iter > 0 and self.num_iters <= self.warmup_iter:
            return self.start_lr * steps / self.warmup_iter
        steps = steps - self.warmup_iter
        for group in self.optimizer.param_groups:
            group["lr"] = self.start_lr * (self.end_iter - steps) / self.end_iter
""",
    ),
    "a value head against flattened returns": (
        "FL139",
        """\
import torch
from torch import nn


def layer_init(layer, std=1.0):
    nn.init.orthogonal_(layer.weight, std)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), layer_init(nn.Linear(64, 1)))

    def get_value(self, x):
        return self.critic(x)


def update(optimizer, obs, returns):
    agent = Agent()
    b_returns = returns.reshape(-1)
    for mb_inds in range(4):
        newvalue = agent.get_value(obs[mb_inds])
        v_loss = 0.5 * ((newvalue - b_returns[mb_inds]) ** 2).mean()  # here
        optimizer.zero_grad()
        v_loss.backward()
        optimizer.step()
""",
    ),
    "gathered values against flattened rewards": (
        "FL139",
        """\
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, actions))

    def forward(self, x):
        return self.network(x)


def learn(data, gamma, actions):
    q_network, target_network = Net(actions), Net(actions)
    with torch.no_grad():
        target_max, _ = target_network(data.next_observations).max(dim=1)
        td_target = data.rewards.flatten() + gamma * target_max * (1 - data.dones.flatten())
    old_val = q_network(data.observations).gather(1, data.actions)
    loss = F.mse_loss(td_target, old_val)  # here
    loss.backward()
""",
    ),
}
RIGHT = {
    "the divided loss is only shown": """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer, world_size):
    model = DDP(model)
    for batch in loader:
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        loss /= world_size
        print(loss.item())
""",
    "a scale is not a mask": """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.head_dim = dim

    def forward(self, queries, keys, values, mask):
        scores = queries @ keys.transpose(-2, -1)
        scores = scores.masked_fill(mask, -torch.inf)
        weights = torch.softmax(scores * self.head_dim**-0.5, dim=-1)
        return weights @ values
""",
    "a kernel with its gradient next to it": """\
import torch
import triton
import triton.language as tl


@triton.jit
def _rotate(x, out, size: tl.constexpr):
    tl.store(out, tl.load(x))


def rotate(x):
    output = torch.empty_like(x)
    _rotate[(x.shape[0],)](x, output, x.shape[1])
    return output


class Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return rotate(x)

    @staticmethod
    def backward(ctx, grad):
        return rotate(grad)
""",
    "embeddings that each rank holds alone": """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def scale_embedding_gradients(optimizer, world_size):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.div_(world_size)
""",
    "statistics that are only cast": """\
from torch import nn


class FrozenNorm(nn.Module):
    def __init__(self, zeros, ones):
        super().__init__()
        self.register_buffer("running_mean", zeros)
        self.register_buffer("running_var", ones)

    def forward(self, x):
        self.running_mean = self.running_mean.to(x.dtype)
        return (x - self.running_mean) * self.running_var.rsqrt()
""",
    "a rate that is halved now and then": """\
import torch


def decay(optimizer, epoch, milestones):
    for group in optimizer.param_groups:
        if epoch in milestones:
            group["lr"] *= 0.1 ** (epoch // 30)
        group["lr"] = group["lr"] * 0.99
""",
    "a target under no_grad in a method": """\
import torch
from torch import nn
from torch.nn import functional as F


class Agent:
    def __init__(self):
        self.q_net = nn.Linear(4, 2)
        self.gamma = 0.9

    @torch.no_grad()
    def compute_target(self, rewards, next_states):
        return rewards + self.gamma * self.q_net(next_states).max(1)[0]

    def loss(self, states, rewards, next_states):
        target = self.compute_target(rewards, next_states)
        return F.mse_loss(self.q_net(states).max(1)[0], target)
""",
}
NEW = frozenset(
    "FL025 FL027 FL029 FL130 FL131 FL135 FL136 FL137 FL139 FL140 FL216 FL610 FL611 FL708 FL808 FL809 FL810".split()
)


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found_in_the_shape_that_people_write(name: str) -> None:
    code, text = WRONG[name]
    line = next(n for n, said in enumerate(text.split("\n"), 1) if said.endswith("# here"))
    assert [f.at.line for f in read_text(text) if f.code == code] == [line]


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_it_is_left_alone(name: str) -> None:
    assert [f for f in read_text(RIGHT[name]) if f.code in NEW] == []


def test_a_loss_made_of_a_metric_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text("""\
class Cumulative:
    def __call__(self, x, y):
        return self.compute(x, y).detach()


class SSIMMetric(Cumulative):
    def compute(self, x, y):
        return (x * y).mean()
""")
    loss = """\
from torch.nn.modules.loss import _Loss

from metric import SSIMMetric


class SSIMLoss(_Loss):
    def forward(self, x, y):
        value = SSIMMetric()(x, y)
        return 1 - value
"""
    (tmp_path / "ssim.py").write_text(loss)
    found = [
        f for r in read_paths([str(tmp_path / "ssim.py")]) for f in r.findings if f.code == "FL136"
    ]
    assert [f.at.line for f in found] == [8]
    (tmp_path / "ssim.py").write_text(loss.replace("SSIMMetric()(x", "SSIMMetric().compute(x"))
    again = [
        f for r in read_paths([str(tmp_path / "ssim.py")]) for f in r.findings if f.code == "FL136"
    ]
    assert again == []
