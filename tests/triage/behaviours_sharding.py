"""What sharded training does, as claims say it (claims/sharding.md). Each function fails if it is not so."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tests.triage.behaviours import _alone
from torch import nn


def dcp_keeps_shards() -> None:
    def body() -> None:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor

        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))

        def made() -> tuple[nn.Module, torch.optim.Optimizer]:
            model = nn.Linear(4, 4)
            fully_shard(model, mesh=mesh)
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            return model, optimizer

        model, optimizer = made()
        state, optim = get_state_dict(model, optimizer)
        assert isinstance(state["weight"], DTensor) and "weight" in optim["state"]
        with TemporaryDirectory() as folder:
            dcp.save({"model": state, "optimizer": optim}, checkpoint_id=Path(folder) / "ckpt")
            other, second = made()
            fresh, empty = get_state_dict(other, second)
            dcp.load({"model": fresh, "optimizer": empty}, checkpoint_id=Path(folder) / "ckpt")
        set_state_dict(other, second, model_state_dict=fresh, optim_state_dict=empty)
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert isinstance(one, DTensor) and isinstance(two, DTensor)
            assert torch.equal(one.full_tensor(), two.full_tensor())

    _alone(body)
