"""Imported by each script right after torch: fixes the seeds, and notes a checksum of all parameters after every update."""

import atexit
import hashlib
import json
import os
import random
import sys

import numpy
import torch

random.seed(0)
torch.manual_seed(0)
numpy.random.seed(0)

_record = os.environ.get("REAL_BITS")
_digest = [0]  # a sum: a library may step several optimizers in the order of a set
_seen = {"steps": 0}
_pid = os.getpid()


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().reshape(-1).contiguous()
    return flat.view(torch.uint8).sum(dtype=torch.int64).numpy().tobytes()


def _stepped(optimizer, args, kwargs) -> None:
    made = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            made.update(_bytes(parameter))
    _digest[0] = (_digest[0] + int(made.hexdigest()[:16], 16)) % (1 << 64)
    _seen["steps"] += 1


def _write() -> None:
    if os.getpid() != _pid:
        return
    state = hashlib.sha256()
    for _, value in sorted(vars(sys.modules["__main__"]).items()):
        if isinstance(value, torch.nn.Module):
            for key, tensor in value.state_dict().items():
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    state.update(key.encode() + tensor.detach().cpu().numpy().tobytes())
            _seen["state"] = state.hexdigest()[:16]
    _seen["digest"] = f"{_digest[0]:016x}"
    _seen["random"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]
    with open(_record, "w", encoding="utf-8") as file:
        json.dump(_seen, file)


if _record:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_stepped)
    atexit.register(_write)
