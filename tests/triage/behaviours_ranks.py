"""What happens on several ranks, in loaders, and with preferences and rewards, as claims say it does (`backs: torch:NAME`)."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.triage.behaviours import _alone
from torch import nn


# --- ranks and loaders ---------------------------------------------------------------------------------------------------------------
def means_of_unequal_shards_are_off() -> None:
    losses = torch.tensor([1.0, 1.0, 1.0, 5.0])
    one, two = losses[:3], losses[3:]
    assert (one.mean() + two.mean()) / 2 == 3.0 and losses.mean() == 2.0


def distributed_sampler_repeats_samples() -> None:
    from torch.utils.data import DistributedSampler

    parts = [list(DistributedSampler(range(5), 2, rank, shuffle=False)) for rank in (0, 1)]  # type: ignore[arg-type]
    assert len(parts[0]) == len(parts[1]) == 3 and sorted({*parts[0], *parts[1]}) == [0, 1, 2, 3, 4]


def ddp_broadcasts_parameters_only() -> None:
    def body() -> None:
        from torch.nn.parallel import DistributedDataParallel

        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters())
        DistributedDataParallel(model)(torch.ones(1, 2)).sum().backward()
        assert not optimizer.state  # DDP never saw the optimizer

    _alone(body)


def ddp_keys_have_a_prefix() -> None:
    def body() -> None:
        from torch.nn.parallel import DistributedDataParallel

        model = nn.Linear(2, 1)
        keys = DistributedDataParallel(model).state_dict()
        assert [k.removeprefix("module.") for k in keys] == list(model.state_dict())
        assert all(k.startswith("module.") for k in keys)

    _alone(body)


def wrap_each_block_checkpoint_compile_shard() -> None:
    def body() -> None:
        import torch.distributed as dist
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model = copy.deepcopy(plain)
        for n, block in enumerate(list(model)):
            model[n] = checkpoint_wrapper(block)
            model[n].compile(backend="eager")
            fully_shard(model[n], mesh=mesh)
        fully_shard(model, mesh=mesh)
        x = torch.randn(2, 4)
        plain(x).sum().backward()
        model(x).sum().backward()
        for one, two in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.allclose(one.grad, two.grad.full_tensor())  # type: ignore[union-attr, arg-type]
        torch._dynamo.reset()

    _alone(body)


def every_worker_iterates_all() -> None:
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    assert sorted(int(x) for x in DataLoader(Stream(), batch_size=None, num_workers=2)) == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def worker_batches_in_flight() -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(range(8), num_workers=2)  # type: ignore[arg-type]
    assert loader.prefetch_factor == 2  # batches of each worker that wait in memory


def deepspeed_has_its_own_norm() -> None:
    spec = importlib.util.find_spec("deepspeed")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent
    assert "def get_global_grad_norm" in (home / "runtime" / "engine.py").read_text()
    assert "safe_get_full_grad" in (home / "utils" / "__init__.py").read_text()


# --- preferences and rewards ---------------------------------------------------------------------------------------------------------
def equal_rewards_have_no_advantage() -> None:
    rewards = torch.tensor([[3.0, 3.0, 3.0, 3.0], [-3.0, -3.0, -3.0, -3.0]])
    advantages = rewards - rewards.mean(1, keepdim=True)
    assert rewards.std() > 3 and advantages.abs().max() == 0.0


def grpo_loss_is_the_kl_term() -> None:
    logits = torch.randn(4, 10, requires_grad=True)
    logp = logits.log_softmax(-1)[:, 0]
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
    reference = logp.detach() - 0.3
    kl = (reference - logp).exp() - (reference - logp) - 1
    policy = -((logp - logp.detach()).exp() * advantages).mean()
    assert policy.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.autograd.grad(policy, logits, retain_graph=True)[0].abs().max() > 0.01
    assert (policy + 0.04 * kl.mean()).item() == pytest.approx(0.04 * kl.mean().item(), abs=1e-6)


def dpo_loss_saturates() -> None:
    margins = torch.tensor([0.0, 9.0, 15.0])
    losses = -F.logsigmoid(margins)
    assert losses[0] > 0.69 and losses[1] < 2e-4 and losses[2] < 1e-6


def diffusion_loss_depends_on_the_timestep() -> None:
    # the best possible prediction of the noise in x = a data + b noise, for data of variance 1
    errors = [a**2 / (a**2 + b**2) for a, b in ((0.99, 0.1), (0.7, 0.7), (0.1, 0.99))]
    assert errors[0] / errors[2] > 50


def alpha_over_r_is_a_scale() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        nn.Sequential(nn.Linear(4, 4)), LoraConfig(r=8, lora_alpha=16, target_modules=["0"])
    )  # type: ignore[arg-type]
    scales = [m.scaling["default"] for m in model.modules() if hasattr(m, "scaling")]
    assert scales == [2.0]
