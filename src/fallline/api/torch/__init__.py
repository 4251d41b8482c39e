"""torch: its functions and constructors, its models, its optimizers, scalers, schedulers and samplers."""

from __future__ import annotations

from fallline.api.library import Library
from fallline.api.torch import functions, model, objects, optimizer

__all__ = ["LIBRARY"]

LIBRARY = Library(
    functions=functions.FUNCTIONS,
    families=functions.FAMILIES,
    methods=model.METHODS | optimizer.METHODS,
    attributes=objects.ATTRIBUTES,
)
