"""Warnings of Transformers in training, provoked with tiny models. A function's name is its claim's."""

from __future__ import annotations

import torch
from tests.triage.provoke_frameworks import _gpt


def cache_and_checkpointing() -> None:
    import logging

    model = _gpt().train()
    model.gradient_checkpointing_enable()
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        model(torch.arange(4).unsqueeze(0), use_cache=True)
    finally:
        logger.removeHandler(handler)
    raise UserWarning("\n".join(said))
