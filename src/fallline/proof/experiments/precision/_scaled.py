"""The update with loss scaling as it should be; the experiments change one line of it."""

from __future__ import annotations

from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiments._training import Trainee, Update, Window

__all__ = ["scaled", "scaled_backward"]


def scaled_backward(t: Trainee, window: Window) -> None:
    """Every micro-batch of the window, its loss divided and scaled."""
    for x, y in window:
        t.scaler.scale(t.loss(x, y) / len(window)).backward()


def scaled(max_norm: float = float("inf")) -> Update:
    """Accumulate, unscale, clip, step, update, clear."""

    def update(t: Trainee, window: Window) -> None:
        scaled_backward(t, window)
        t.scaler.unscale_(t.optimizer)
        clip_grad_norm_(t.model.parameters(), max_norm)
        t.scaler.step(t.optimizer)
        t.scaler.update()
        t.optimizer.zero_grad()

    return update
