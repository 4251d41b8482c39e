"""Vocabularies that grow: `model.resize_token_embeddings(n)` of Transformers' models."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch import nn

from fallline.taps.frames import caller
from fallline.taps.on_import import after_import
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published

__all__ = ["RESIZED", "Resized"]

_HOME = "transformers.modeling_utils"


@dataclass(slots=True)
class Resized(Call):
    """The embedding has another number of rows. Only after."""

    model: nn.Module
    before: int
    after: int


def _patch(patches: Patches) -> None:
    over = False

    def end() -> None:
        nonlocal over
        over = True

    def install() -> None:
        if not over:
            owner = sys.modules[_HOME].PreTrainedModel
            patches.patch(owner, "resize_token_embeddings", _resize)

    patches.on_removal(end)
    after_import(_HOME, install)  # the script may never import it


def _resize(original: Wrapped) -> Wrapped:
    def resize_token_embeddings(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _rows(self)
        embeddings = original(self, *args, **kwargs)
        after = _rows(self)
        if published() and before is not None and after is not None and before != after:
            call = Resized(caller(), self, before, after)
            for handler in RESIZED.after:
                handler(call)
        return embeddings

    return resize_token_embeddings


def _rows(model: Any) -> int | None:
    weight = getattr(model.get_input_embeddings(), "weight", None)
    return None if weight is None else int(weight.shape[0])


RESIZED = Topic(Resized, Tap(_patch))
