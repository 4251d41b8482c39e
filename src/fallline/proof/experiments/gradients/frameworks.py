"""What Lightning's Trainer does about clipping."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import gradient

K = 4


@experiment(
    "frameworks-clip-for-you",
    claim="Lightning's Trainer(gradient_clip_val=1) clips once per window, between backward and step; under manual optimization it refuses.",
)
def frameworks_clip_for_you() -> Measured:
    calls: list[float] = []
    free, clipped = _norms(), _norms(calls=calls, gradient_clip_val=1.0)
    manual = error_of(lambda: _norms(manual=True, gradient_clip_val=1.0))
    return Measured(
        sides={
            "no gradient_clip_val": {"steps": len(free), "largest norm at a step": max(free)},
            "gradient_clip_val=1": {"steps": len(clipped), "largest norm at a step": max(clipped)},
        },
        conclusion=f"steps see norms of up to {max(free):,.0f} without and {max(clipped):.2f} with gradient_clip_val=1, clipped {len(calls)} times in 8 batches and {len(clipped)} steps; manual optimization raises {manual}",
        holds={
            "without it norms are large": max(free) > 100,
            "with it every step is clipped": max(clipped) < 1.001,
            "one step per window of four": len(clipped) == 2,
            "one clip per window, of its whole gradient": len(calls) == 2 and min(calls) > 100,
            "manual optimization refuses": manual == "MisconfigurationException",
        },
    )


@experiment(
    "lightning-clip-override",
    claim="A configure_gradient_clipping that clips Linear layers one by one replaces Lightning's clip and leaves the rest unclipped.",
    taught="A configure_gradient_clipping with a loop over Linear layers clips the model layer by layer.",
)
def lightning_clip_override() -> Measured:
    built_in, overridden = (
        _norms(gradient_clip_val=1.0),
        _norms(override=True, gradient_clip_val=1.0),
    )
    return Measured(
        sides={
            "Lightning's own": {"largest norm at a step": max(built_in)},
            "override for Linear layers": {"largest norm at a step": max(overridden)},
        },
        conclusion=f"with gradient_clip_val=1 steps see norms of up to {max(built_in):.2f} by Lightning's own clip, {max(overridden):,.0f} by the override",
        holds={
            "Lightning clips": max(built_in) < 1.001,
            "the override does not": max(overridden) > 100,
        },
    )


def _norms(
    *,
    manual: bool = False,
    override: bool = False,
    calls: list[float] | None = None,
    **trainer: Any,
) -> list[float]:
    """The gradient norm each optimizer step sees, in a run of 8 batches with windows of 4; `calls` gets the norms that Lightning clipped."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    seen: list[float] = []

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not manual
            self.net = nn.Sequential(
                nn.Embedding(20, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 20)
            )

        def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
            return 1e5 * nn.functional.cross_entropy(self.net(tokens), tokens)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer = torch.optim.SGD(self.parameters(), lr=1e-9)
            # Lightning runs backward and clips inside the step, by a closure.
            optimizer.register_step_post_hook(lambda *_: seen.append(float(gradient(self).norm())))
            return optimizer

        def train_dataloader(self) -> DataLoader[Tensor]:
            return DataLoader(torch.randint(20, (8, 32)), batch_size=None)  # type: ignore[arg-type]

        def configure_gradient_clipping(self, *args: Any, **options: Any) -> None:
            if calls is not None:
                calls.append(float(gradient(self).norm()))
            super().configure_gradient_clipping(*args, **options)

    class Overridden(Task):
        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    clip_grad_norm_(module.parameters(), 1.0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=1 if manual else K, **trainer,
        ).fit(Overridden() if override else Task())  # fmt: skip
    return seen
