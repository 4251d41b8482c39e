"""For the Hugging Face Trainer:

    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[FalllineCallback()])

The Trainer's own log replaces a NaN loss by the running average (`logging_nan_inf_filter`); here the loss is read where backward starts.
Gradients are looked at before its clipping, which comes before `on_pre_optimizer_step`.
"""

from __future__ import annotations

from typing import Any

from fallline.integrations._watching import Watching, missing

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("transformers", error) from None

__all__ = ["FalllineCallback"]


class FalllineCallback(Watching, TrainerCallback):
    """Watches `trainer.train`. Options as in `Watching`."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end()
