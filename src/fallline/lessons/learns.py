"""What can learn: parameters by what they are for, and which of them get a gradient and are optimized."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fallline.lessons.copies import Copies, local_part
from fallline.lessons.lesson import Observation, note
from fallline.location import Location

__all__ = ["Group", "Learner", "Learning"]

_ADAPTER = re.compile(
    r"(^|[._])(lora|lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|ia3_l|adapter\w*|prompt_encoder|prompt_embeddings|vera_lambda_\w|"
    r"oft_\w+|boft_\w+|hada_\w+|lokr_\w+|trainable_tokens_delta)([._]|$)",
    re.IGNORECASE,
)
_HEAD = re.compile(
    r"(^|\.)(lm_head|score|classifier|head|fc|v_head|value_head|qa_outputs|output|out_proj_head)(\.|$)"
)
_EMBEDDING = re.compile(
    r"(^|\.)(wte|wpe|embed_tokens|word_embeddings|embed_in|embeddings?|tok_emb\w*|pos_emb\w*)(\.|$)"
)
_NO_GRADIENT = "does not require grad"


@dataclass(slots=True)
class Group:
    """Parameters with one purpose."""

    name: str  # adapters, embeddings, heads, body
    parameters: int = 0
    trainable: int = 0
    with_gradient: int = 0
    optimized: int = 0


@dataclass
class Learning:
    """What one model can learn."""

    model: str
    groups: list[Group]
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "groups": [asdict(g) for g in self.groups],
            "notes": self.notes,
        }


@dataclass(slots=True)
class _Grown:
    model: nn.Module
    before: int
    after: int
    at: Location | None


class Learner:
    """Follows the models that are called with gradients on."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._looked: list[tuple[list[int], Tensor]] = []  # on their way: ids, largest gradients
        self.gradients = False  # some parameter has kept its gradient: none is a sign then
        self.models: list[tuple[nn.Module, Location | None]] = []
        self.optimizers: list[tuple[Optimizer, Location | None]] = []
        self.grown: list[_Grown] = []
        self.reached: set[int] = set()  # ids of parameters that got a gradient that is not zero
        self._stepped: set[int] = set()  # ids of optimizers
        self.backwards = 0
        self.loss_at: Location | None = None
        self.error: BaseException | None = None

    def meet(self, model: nn.Module, at: Location | None) -> None:
        if not any(model is known for known, _ in self.models):
            self.models.append((model, at))

    def optimizer(self, optimizer: Optimizer, at: Location | None) -> None:
        self.optimizers.append((optimizer, at))

    def resized(self, model: nn.Module, before: int, after: int, at: Location | None) -> None:
        if after > before:
            self.grown.append(_Grown(model, before, after, at))

    def loss(self, loss: Any, at: Location | None) -> None:
        self.loss_at = at

    def backward_ends(self) -> None:
        """Which parameters have a gradient that is not zero. The numbers are read when they are here."""
        self.backwards += 1
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for model, _ in self.models:
            for parameter in model.parameters():
                gradient = parameter.grad
                if gradient is not None and id(parameter) not in self.reached:
                    by_device.setdefault(gradient.device, []).append((id(parameter), gradient))
        for found in by_device.values():
            self.gradients = True
            largest = torch.stack([_largest(gradient) for _, gradient in found])
            host = self._copies.of(largest)
            if host is not None:
                self._looked.append(([own for own, _ in found], host))
        if self._copies.waits:
            self.settle()

    def settle(self) -> None:
        """The numbers are here."""
        for owners, largest in self._looked:
            self.reached |= {
                own for own, value in zip(owners, largest.tolist(), strict=True) if value
            }
        self._looked = []

    def step_ends(self, optimizer: Optimizer) -> None:
        self._stepped.add(id(optimizer))

    def failed(self, error: BaseException) -> None:
        self.error = error

    # -- afterwards --------------------------------------------------------------------------------------------

    def learning(self) -> list[Learning]:
        return [_learning(model, self.optimized(), self.reached) for model, _ in self.models]

    def optimized(self) -> set[int]:
        return {id(p) for o, _ in self.optimizers for g in o.param_groups for p in g["params"]}

    def updated(self) -> set[int]:
        """Of those, the ones whose turn has come: a critic may be trained for many updates before its actor."""
        stepped = (o for o, _ in self.optimizers if id(o) in self._stepped)
        return {id(p) for o in stepped for g in o.param_groups for p in g["params"]}

    def observations(self) -> list[Observation]:
        found: list[Observation] = []
        for model, at in self.models:
            found += self._adapters(model, at)
        for grown in self.grown:
            found += self._new_rows(grown)
        return found

    def _adapters(self, model: nn.Module, at: Location | None) -> list[Observation]:
        """Adapters of which none is trained, and why, as far as it shows."""
        adapters = {n: p for n, p in model.named_parameters() if _ADAPTER.search(n)}
        if not adapters or _is_reference(model, self.models, self.reached):
            return []
        optimized = self.optimized()
        why = None
        if not any(p.requires_grad for p in adapters.values()):
            why = "frozen"
        elif self.optimizers and not any(id(p) in optimized for p in adapters.values()):
            why = "not optimized"
        elif _merged(model):
            why = "merged"
        elif self.gradients and not any(id(p) in self.reached for p in adapters.values()):
            why = "checkpointing" if _checkpoints(model) else "no gradient"
        elif not self.backwards and self.error is not None and _NO_GRADIENT in str(self.error):
            why = "checkpointing" if _checkpoints(model) else "no gradient"
        if why is None:
            return []
        place = self.loss_at or at
        facts = {
            "why": why,
            "adapters": len(adapters),
            "parameters": sum(p.numel() for p in adapters.values()),
        }
        return [note("FL019", place, **facts, example=next(iter(adapters)))]

    def _new_rows(self, grown: _Grown) -> list[Observation]:
        """Rows that were added to an embedding (and to the head) which nothing trains."""
        weights = _vocabulary_weights(grown)
        frozen = [
            n
            for n, p, trained in weights
            if not trained and not _can_learn(p, self.optimized(), bool(self.optimizers))
        ]
        if not frozen:
            return []
        facts = {
            "rows": grown.after - grown.before,
            "before": grown.before,
            "after": grown.after,
            "frozen": frozen,
        }
        untied = len(frozen) < len(weights)
        return [note("FL018", grown.at, **facts, untied=untied)]


def _largest(gradient: Tensor) -> Tensor:
    own = local_part(gradient.detach())
    own = own.coalesce().values() if own.is_sparse else own
    return own.abs().amax().float() if own.numel() else own.new_zeros((), dtype=torch.float32)


def _learning(model: nn.Module, optimized: set[int], reached: set[int]) -> Learning:
    groups = {name: Group(name) for name in ("adapters", "embeddings", "heads", "body")}
    for name, parameter in model.named_parameters():
        group, count = groups[_kind(name)], parameter.numel()
        group.parameters += count
        group.trainable += count if parameter.requires_grad else 0
        group.with_gradient += count if id(parameter) in reached else 0
        group.optimized += count if id(parameter) in optimized else 0
    shown = [g for g in groups.values() if g.parameters]
    return Learning(type(model).__name__, shown, _remarks(model))


def _kind(name: str) -> str:
    if _ADAPTER.search(name):
        return "adapters"
    if _EMBEDDING.search(name):
        return "embeddings"
    return "heads" if _HEAD.search(name) else "body"


def _remarks(model: nn.Module) -> list[str]:
    """Worth knowing, and not wrong in itself."""
    found = []
    config = getattr(model, "config", None)
    if getattr(config, "tie_word_embeddings", False) and _untied(model):
        found.append(
            "the configuration ties input and output embeddings, but they are two tensors: only one of them is trained, or each drifts on its own"
        )
    if _checkpoints(model) and getattr(config, "use_cache", False) and model.training:
        found.append(
            "gradient checkpointing is on and use_cache is too: Transformers turns the cache off and warns; set use_cache=False"
        )
    if getattr(model, "is_quantized", False) or getattr(model, "is_loaded_in_4bit", False):
        wide = [n for n, m in model.named_modules() if _cast_up(n, m)]
        if wide:
            found.append(
                f"the base is quantised, but {len(wide)} of its linear layers are in float32 ({wide[0]}): something cast them up, and they take the memory again"
            )
    return found


def _cast_up(name: str, module: nn.Module) -> bool:
    if type(module) is not nn.Linear or _ADAPTER.search(name) or _HEAD.search(name):
        return False
    return module.weight.dtype == torch.float32 and not module.weight.requires_grad


def _untied(model: Any) -> bool:
    try:
        one, other = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    except (AttributeError, NotImplementedError):
        return False
    return one is not other and one.data_ptr() != other.data_ptr()


def _checkpoints(model: nn.Module) -> bool:
    return any(getattr(m, "gradient_checkpointing", False) for m in model.modules())


def _merged(model: nn.Module) -> bool:
    """PEFT's layers add their adapters to the base weights and leave them out of the forward pass."""
    layers = [m for m in model.modules() if hasattr(m, "merged_adapters")]
    return bool(layers) and all(m.merged_adapters for m in layers)


def _is_reference(
    model: nn.Module, models: Iterable[tuple[nn.Module, Any]], reached: set[int]
) -> bool:
    """Another model of the run learns, and this one is not meant to."""
    others = [m for m, _ in models if m is not model]
    return any(id(p) in reached for m in others for p in m.parameters())


def _vocabulary_weights(grown: _Grown) -> list[tuple[str, Tensor, bool]]:
    """Input and output weights of the vocabulary: name, tensor, and whether an adapter trains the rows instead."""
    model: Any = grown.model
    found: list[tuple[str, Tensor, bool]] = []
    for name, get in (("embedding", "get_input_embeddings"), ("head", "get_output_embeddings")):
        try:
            module = getattr(model, get)()
        except (AttributeError, NotImplementedError):
            continue
        if module is None:
            continue
        named = dict(module.named_parameters())
        trained = any(
            p.requires_grad
            for n, p in named.items()
            if n != "weight" and not n.endswith("original_module.weight") and "base_layer" not in n
        )
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and not any(weight is w for _, w, _ in found):
            found.append((name, weight, trained))
    return found


def _can_learn(weight: Tensor, optimized: set[int], known: bool) -> bool:
    return weight.requires_grad and (not known or id(weight) in optimized)
