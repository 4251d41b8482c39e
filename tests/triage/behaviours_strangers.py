"""What strangers ask and believe: schedulers, gradients and optimizers, and the details of large runs and of fine-tuning (`backs: torch:NAME`)."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def a_scheduler_only_sets_the_rate() -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = layer.weight.clone()
    layer(torch.ones(1, 2)).sum().backward()
    optimizer._opt_called = True  # so that the scheduler does not warn
    scheduler.step()
    assert torch.equal(layer.weight, before) and optimizer.param_groups[0]["lr"] == 0.5


def zero_grad_keeps_the_optimizer_state() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    kept = optimizer.state[weight]["exp_avg"].clone()
    optimizer.zero_grad()
    assert weight.grad is None and torch.equal(optimizer.state[weight]["exp_avg"], kept)


def a_misspelt_flag_freezes_nothing() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.require_grad = False  # type: ignore[attr-defined]
    assert weight.requires_grad
    with pytest.raises(AttributeError):
        weight.require_grad_(False)  # type: ignore[attr-defined]


def a_negative_number_is_no_probability() -> None:
    with pytest.raises(RuntimeError):
        nn.BCELoss()(torch.tensor([-0.5]), torch.tensor([1.0]))
    assert math.isclose(torch.sigmoid(torch.tensor(1.0)).item(), 0.73, abs_tol=0.002)


def autocast_on_cuda_means_half() -> None:
    assert torch.get_autocast_dtype("cuda") == torch.float16
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.tensor(2.0e-8).half() == 0.0 and torch.tensor(2.0e-8).bfloat16() != 0.0


def float8_ends_at_448() -> None:
    assert torch.finfo(torch.float8_e4m3fn).max == 448.0
    assert torch.finfo(torch.float8_e5m2).max == 57344.0


def stochastic_rounding_keeps_the_mean() -> None:
    value = torch.full((100_000,), 0.3)
    assert value.round().mean() == 0.0
    assert abs((value + torch.rand_like(value)).floor().mean().item() - 0.3) < 0.01


def a_baseline_leaves_the_gradient_unbiased() -> None:
    logits = torch.randn(4, dtype=torch.float64, requires_grad=True)
    probabilities = logits.softmax(0)
    rewards = torch.rand(4, dtype=torch.float64) + 5.0

    def expected(baseline: float) -> torch.Tensor:
        weighted = probabilities.detach() * (rewards - baseline) * probabilities.log()
        return torch.autograd.grad(weighted.sum(), logits, retain_graph=True)[0]

    assert torch.allclose(expected(0.0), expected(5.5))


def gae_lambda_one_is_the_return() -> None:
    rewards, values = torch.rand(6), torch.rand(7)
    values[-1] = 0.0

    def advantages(lam: float, gamma: float = 0.9) -> torch.Tensor:
        deltas = rewards + gamma * values[1:] - values[:-1]
        found, last = torch.zeros(6), torch.tensor(0.0)
        for t in reversed(range(6)):
            last = found[t] = deltas[t] + gamma * lam * last
        return found

    returns = sum(0.9**k * rewards[k] for k in range(6))
    assert torch.isclose(advantages(1.0)[0], returns - values[0])
    assert torch.isclose(advantages(0.0)[0], rewards[0] + 0.9 * values[1] - values[0])


def balanced_experts_cost_one() -> None:
    def cost(shares: torch.Tensor, probabilities: torch.Tensor) -> float:
        return (len(shares) * (shares * probabilities).sum()).item()

    equal, one = torch.full((8,), 1 / 8), F.one_hot(torch.tensor(0), 8).float()
    assert math.isclose(cost(equal, equal), 1.0) and math.isclose(cost(one, one), 8.0)


def the_two_directions_of_kl_differ() -> None:
    teacher = torch.tensor([0.5, 0.0, 0.5]) + 1e-6
    wide, narrow = torch.tensor([0.34, 0.32, 0.34]), torch.tensor([0.98, 0.01, 0.01])

    def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (p * (p / q).log()).sum()

    assert kl(teacher, wide) < kl(teacher, narrow) and kl(narrow, teacher) < kl(wide, teacher)


def ddp_has_its_options() -> None:
    takes = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    assert takes["gradient_as_bucket_view"].default is False
    assert takes["static_graph"].default is False and takes["bucket_cap_mb"].default is None
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    assert callable(default_hooks.bf16_compress_hook)


def dcp_can_save_in_the_background() -> None:
    from torch.distributed import checkpoint

    assert "CPU" in (checkpoint.async_save.__doc__ or "")


def a_pipeline_schedule_scales_gradients() -> None:
    from torch.distributed.pipelining import Schedule1F1B
    from torch.distributed.pipelining.stage import _PipelineStageBase

    assert inspect.signature(Schedule1F1B).parameters["scale_grads"].default is True
    assert "grad.div_" in inspect.getsource(_PipelineStageBase.scale_grads)


def rank_stabilised_lora_divides_by_the_root() -> None:
    from peft import LoraConfig, get_peft_model

    def scale(stabilised: bool) -> float:
        base = nn.Sequential(nn.Linear(8, 8))
        config = LoraConfig(r=64, lora_alpha=16, target_modules=["0"], use_rslora=stabilised)
        layer = get_peft_model(base, config).base_model.model[0]  # type: ignore[arg-type,index,union-attr]
        return float(layer.scaling["default"])  # type: ignore[index,arg-type,union-attr]

    assert scale(False) == 0.25 and scale(True) == 2.0


def four_bit_computes_in_float32_by_default() -> None:
    from transformers.utils import quantization_config

    source = inspect.getsource(quantization_config.BitsAndBytesConfig.__init__)
    assert "self.bnb_4bit_compute_dtype = torch.float32" in source


def fsdp_has_a_scaler_of_its_own() -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    assert issubclass(ShardedGradScaler, torch.amp.GradScaler)


def a_scheduler_made_late_overwrites_the_rate() -> None:
    def made() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, half)

    def half(step: int) -> float:
        return float(0.5**step)

    optimizer, scheduler = made()
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    states = optimizer.state_dict(), scheduler.state_dict()
    optimizer, scheduler = made()
    scheduler.load_state_dict(states[1])
    optimizer.load_state_dict(states[0])
    assert optimizer.param_groups[0]["lr"] == 0.25  # made first, loaded after that
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, half)
    scheduler.load_state_dict(states[1])
    assert optimizer.param_groups[0]["lr"] == 1.0  # made after it
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    optimizer, scheduler = made()
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    optimizer.load_state_dict(states[0])
    assert optimizer.param_groups[0]["lr"] == 0.25 and scheduler.last_epoch == 2


def a_normal_has_a_density_for_each_dimension() -> None:
    actions = torch.distributions.Normal(torch.zeros(5, 4), torch.ones(5, 4))
    log_prob = actions.log_prob(actions.sample())
    assert log_prob.shape == (5, 4) and log_prob.sum(-1, keepdim=True).shape == (5, 1)


def a_batch_of_one_has_nothing_to_compare() -> None:
    for examples, zero in ((1, True), (4, False)):
        x = torch.randn(examples, 3, requires_grad=True)
        loss = F.cross_entropy(x @ x.detach().roll(1, 1).T, torch.arange(examples))
        loss.backward()
        assert x.grad is not None and (loss.item() == 0.0) is zero
        assert (x.grad.abs().max().item() == 0.0) is zero


def the_ratio_is_the_policy_gradient() -> None:
    new, old, advantage = torch.zeros(1, requires_grad=True), torch.zeros(1), torch.ones(1)
    ratio = (new - old).exp()
    assert not (ratio.detach() * advantage).requires_grad
    (ratio * advantage).backward()
    assert new.grad is not None and new.grad.item() == 1.0


def a_critic_step_frees_the_graph_of_its_fakes() -> None:
    generator, critic = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    hidden = nn.Sequential(generator, nn.Tanh())
    fake = hidden(torch.ones(3, 2))
    critic(fake).mean().backward()
    with pytest.raises(RuntimeError, match="second time"):
        critic(fake).mean().backward()
    fake = hidden(torch.ones(3, 2))
    generator.zero_grad()
    critic(fake.detach()).mean().backward()
    assert generator.weight.grad is None
    critic(fake).mean().backward()
    assert generator.weight.grad is not None


def accelerate_counts_the_epochs_itself() -> None:
    from accelerate.data_loader import DataLoaderShard

    sampler = torch.utils.data.DistributedSampler(range(8), num_replicas=1, rank=0)  # type: ignore[arg-type]
    loader = DataLoaderShard(range(8), sampler=sampler)
    orders = [[int(x) for x in loader] for _ in range(2)]
    assert sampler.epoch == 1 and orders[0] != orders[1]


def a_corrected_average_forgets_its_start() -> None:
    decay, steps, weight = 0.99999, 25_000, 3.0
    assert math.isclose(decay**steps, 0.78, abs_tol=0.005)
    average = 0.0
    for _ in range(steps):
        average = decay * average + (1 - decay) * weight
    assert average < 0.25 * weight
    assert math.isclose(average / (1 - decay**steps), weight, rel_tol=1e-6)


def a_stored_log_prob_is_the_old_policy() -> None:
    policy, states = nn.Linear(3, 4), torch.randn(8, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    with torch.no_grad():
        chosen = torch.distributions.Categorical(logits=policy(states))
        actions = chosen.sample()
        old = chosen.log_prob(actions)
    apart = []
    for _ in range(2):
        new = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
        ratio = (new - old).exp()
        apart.append((ratio - 1).abs().max().item())
        optimizer.zero_grad()
        (-ratio).mean().backward()
        optimizer.step()
    assert apart[0] < 1e-6 < 1e-2 < apart[1]


def a_mask_value_can_lose() -> None:
    scores, seen = torch.tensor([-15258.0, 3.0, 2.0]), torch.tensor([True, False, False])
    assert scores.masked_fill(~seen, -1e4).softmax(0)[0] == 0
    assert scores.masked_fill(~seen, float("-inf")).softmax(0)[0] == 1
    assert scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(0)[0] == 1
