"""Which parameters a Stepper steps: every optimizer's, each once, named as in the model, and none left out by mistake."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from fallline.engine.gradients import Parameters, Per, layer_of, some
from fallline.engine.replicas import Replicas
from fallline.errors import EngineError

__all__ = ["collect"]


def collect(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], replicas: Replicas, clip_per: Per
) -> Parameters:
    """Every optimizer's parameters, each once, named as in the model."""
    names: dict[int, tuple[str, Tensor]] = {}
    for number, model in enumerate(models):
        prefix = f"{number}." if len(models) > 1 else ""
        for name, parameter in model.named_parameters():
            names.setdefault(id(parameter), (prefix + name, parameter))
    held = [
        (f"{n}.{m}", p)
        for n, o in enumerate(optimizers)
        for m, g in enumerate(o.param_groups)
        for p in g["params"]
    ]
    if not held:
        raise EngineError("the optimizer holds no parameters")
    # In the model's order, as in clip_grad_norm_(model.parameters(), ...): the bits of a norm depend on it
    place = {key: i for i, key in enumerate(names)}
    held.sort(key=lambda item: place.get(id(item[1]), len(place)))
    ids = [id(p) for _, p in held]
    if len(set(ids)) != len(ids):
        raise EngineError(
            "a parameter belongs to two optimizers, or is twice in one: each update would step it twice"
        )
    left_out = {key: named for key, named in names.items() if key not in set(ids)}
    missing = [name for name, p in left_out.values() if p.requires_grad]
    if missing:
        raise EngineError(
            f"{some(missing)} belong{'s' if len(missing) == 1 else ''} to no optimizer and would never be trained: "
            "add to an optimizer (optimizer.add_param_group), or freeze with requires_grad_(False)"
        )
    foreign = [p for _, p in held if id(p) not in names]
    if foreign and replicas.size > 1:
        raise EngineError(
            f"the optimizer holds {len(foreign)} parameters that are not in the model: no rank would synchronise them"
        )
    labels = [
        names[id(p)][0] if id(p) in names else f"parameter {i}" for i, (_, p) in enumerate(held)
    ]
    replicas.check_covered(zip(labels, (p for _, p in held), strict=True))
    groups = None
    if clip_per == "group":
        groups = [group for group, _ in held]
    elif clip_per == "layer":
        groups = list(map(layer_of, labels))
    elif clip_per != "all":
        raise EngineError(f'clip_per={clip_per!r} is not known: use "all", "group" or "layer"')
    parameters = Parameters(labels, [p for _, p in held], groups)
    parameters.frozen = [p for _, p in left_out.values()]
    return parameters
