"""What a script holds beside its models: tokenizers, trainers and their datasets. Asked for once, while it runs."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from fallline.lessons.words import find_tokenizers

__all__ = ["Held", "held"]


@dataclass
class Held:
    """Kept until the run is over."""

    tokenizers: list[Any] = field(default_factory=list)
    trainers: list[Any] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)

    @property
    def tokenizer(self) -> Any:
        """The one that the trainer uses, or the youngest of the script's own."""
        for trainer in self.trainers:
            found = getattr(trainer, "processing_class", None) or getattr(
                trainer, "tokenizer", None
            )
            if found is not None:
                return getattr(found, "tokenizer", found)  # a processor has one
        return self.tokenizers[-1] if self.tokenizers else None


def held() -> Held:
    trainers: list[Any] = []
    module = sys.modules.get("transformers.trainer")
    kinds = (DataLoader, *([module.Trainer] if module is not None else []))
    things = [t for t in gc.get_objects() if issubclass(type(t), kinds)]
    trainers = [t for t in things if not isinstance(t, DataLoader)]
    return Held(find_tokenizers(), trainers, [t for t in things if isinstance(t, DataLoader)])
