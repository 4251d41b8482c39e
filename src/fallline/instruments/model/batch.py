"""A batch for a model of which only the layers are known: random numbers in the shape that its first layer takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fallline.errors import UsageError
from fallline.instruments.untouched import World, loss_of, untouched

__all__ = ["generated_batch"]

_SIDES = (32, 28, 64, 224, 16, 8)
_ROWS = 32


def generated_batch(model: nn.Module, world: World) -> tuple[tuple[Tensor, ...], str]:
    """The first guess that the model accepts, and a word about it."""
    last = "it has no layer whose input shape is known"
    for guess in _guesses(model):
        try:
            with untouched(world, swap_buffers=True), torch.no_grad():
                loss_of(_called(model, guess))
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            last = " ".join(str(error).split())[:200]
            continue
        shape = "x".join(map(str, guess.shape))
        kind = "random numbers" if guess.is_floating_point() else "random indices"
        return (guess,), f"a batch of {kind}, {shape}, made from the first layer's shape"
    raise UsageError(
        f"no batch could be made for {type(model).__name__} ({last}): let the callable return (model, input, ...), or measure the script that trains it"
    )


def _called(model: nn.Module, guess: Tensor) -> Callable[[], Any]:
    return lambda: model(guess)


def _guesses(model: nn.Module) -> Iterator[Tensor]:
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    source = torch.Generator(device).manual_seed(0)  # the user's randomness is not drawn from

    def numbers(*shape: int) -> Tensor:
        made = torch.randn(*shape, generator=source, device=device)
        return made.to(parameter.dtype) if parameter is not None else made

    for module in model.modules():
        if isinstance(module, nn.Embedding):
            for shape in ((_ROWS, 16), (_ROWS,)):
                yield torch.randint(
                    0, module.num_embeddings, shape, generator=source, device=device
                )
        elif isinstance(module, nn.Linear):
            yield numbers(_ROWS, module.in_features)
            yield numbers(_ROWS, 16, module.in_features)
            for side in _SIDES:
                if side * side == module.in_features:
                    yield numbers(_ROWS, 1, side, side)
                if 3 * side * side == module.in_features:
                    yield numbers(_ROWS, 3, side, side)
        elif isinstance(module, nn.modules.conv._ConvNd):
            dimensions = len(module.kernel_size)
            for side in _SIDES:
                yield numbers(
                    _ROWS if dimensions < 3 else 4, module.in_channels, *([side] * dimensions)
                )
        elif isinstance(module, nn.RNNBase):
            yield numbers(_ROWS, 16, module.input_size)
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            yield numbers(_ROWS, 16, module.self_attn.embed_dim)
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            for spatial in ((), (16,), (16, 16)):
                yield numbers(_ROWS, module.num_features, *spatial)
        elif isinstance(module, nn.LayerNorm):
            yield numbers(_ROWS, *module.normalized_shape)
            yield numbers(_ROWS, 16, *module.normalized_shape)
        else:
            continue
        return
