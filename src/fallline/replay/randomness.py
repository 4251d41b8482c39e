"""The state of the random generators before a micro-batch, for its replay.

Taking a state costs up to a hundred microseconds inside a training loop, and most micro-batches draw nothing between the model
call and the backward. So this is learned: while no micro-batch has drawn, the state is taken only now and then.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Randomness", "State", "restore", "state_now"]

LEARNED = 16  # micro-batches in a row that drew nothing
AGAIN = 64  # then every so many are looked at

State = tuple[Tensor, list[Tensor]]  # of the CPU, of each CUDA device


class Randomness:
    """`before` each micro-batch, `after` it where there was a state."""

    def __init__(self) -> None:
        self.rests = 0  # micro-batches that need no state
        self._draws = False
        self._quiet = 0

    def before(self) -> State | None:
        """The state now; None where micro-batches draw nothing, so that any state will do."""
        if self.rests:
            self.rests -= 1
            return None
        return state_now()

    def after(self, before: State) -> None:
        if self._draws:
            return
        cpu, devices = state_now()
        same = torch.equal(cpu, before[0]) and len(devices) == len(before[1])
        if same and all(map(torch.equal, devices, before[1])):
            self._quiet += 1
            self.rests = AGAIN - 1 if self._quiet >= LEARNED else 0
        else:
            self._draws = True


def state_now() -> State:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), devices


def restore(state: State) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
