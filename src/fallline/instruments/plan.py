"""Memory by arithmetic: what training a transformer needs, before anything is run. No torch.

Weights, gradients and optimizer state follow from the number of parameters; activations from tokens, width and depth.
`benchmarks/plan_gpu.py` compares it with measured peaks.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from fallline.errors import UsageError

__all__ = ["Model", "Plan", "model_of", "plan"]

GB = 1e9
_COUNT = re.compile(r"(?i)(\d+(?:\.\d+)?)\s*([kmbt])\b")
_SIZES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# depth and width of the usual models, by their number of parameters
_USUAL = {1.25e8: (12, 768), 3.5e8: (24, 1024), 7.7e8: (36, 1280), 1.3e9: (24, 2048), 3e9: (32, 2560), 7e9: (32, 4096), 8e9: (32, 4096), 13e9: (40, 5120), 33e9: (60, 6656), 70e9: (80, 8192)}  # fmt: skip
_VOCABULARY = 32_000
_LAYER = 34  # bytes of activations a layer keeps for each token and unit of width, in 16 bits with flash attention
_LOGIT = (
    14  # bytes that each logit costs: 16 bits, its float32 copy, its log-softmax and its gradient
)
_ADAPTERS = (
    0.006  # the share of a model's parameters that LoRA of rank 16 on all linear layers adds
)
_FOUR_BIT = 0.56  # bytes a parameter takes in four bits, with its scales
_STATE = {"adamw": 8.0, "adamw8bit": 2.1, "sgd": 4.0, "adafactor": 0.1}
# bytes a parameter that the step itself needs for a while: AdamW's default kernels take the root of all second moments at once.
# The activations are gone by then, so the peak is the larger of the two.
_STEP = {"adamw": 4.0, "adamw8bit": 0.0, "sgd": 0.0, "adafactor": 0.0}
_REST = 1.0  # GB that the CUDA context and the libraries take


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a transformer."""

    parameters: float
    layers: int
    width: int
    vocabulary: int = _VOCABULARY


@dataclass(slots=True)
class Plan:
    """Bytes on each GPU, by what holds them."""

    model: Model
    weights: float
    gradients: float
    state: float
    activations: float
    step: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        held = self.weights + self.gradients + self.state
        return held + max(self.activations, self.step) + _REST * GB

    def as_dict(self) -> dict[str, float]:
        """In GB (10^9 bytes)."""
        named = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer_state": self.state,
            "activations": self.activations,
            "optimizer_step": self.step,
            "total": self.total,
        }
        return {name: round(value / GB, 2) for name, value in named.items()}


def model_of(text: str) -> Model:
    """A model by its size (`7B`, `350M`), its number of parameters, or its config.json."""
    if text.endswith(".json"):
        return _of_config(Path(text))
    match = _COUNT.search(text)
    try:
        count = float(match[1]) * _SIZES[match[2].lower()] if match else float(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is neither a size such as 7B, nor a number of parameters, nor a config.json"
        ) from None
    layers, width = _USUAL[min(_USUAL, key=lambda n: abs(math.log(n / count)))]
    return Model(count, layers, width)


def _of_config(path: Path) -> Model:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        width = int(raw.get("hidden_size") or raw["n_embd"])
        layers = int(raw.get("num_hidden_layers") or raw["n_layer"])
        vocabulary = int(raw["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a model's config.json ({error})") from None
    inner = int(raw.get("intermediate_size") or 4 * width)
    heads = int(raw.get("num_attention_heads") or 1)
    groups = int(raw.get("num_key_value_heads") or heads)
    gated = 3 if raw.get("hidden_act") in ("silu", "swiglu") or "rms_norm_eps" in raw else 2
    attention = width * width * (2 + 2 * groups / heads)
    tied = 1 if raw.get("tie_word_embeddings", "n_embd" in raw) else 2
    count = layers * (attention + gated * width * inner) + tied * vocabulary * width
    return Model(count, layers, width, vocabulary)


def plan(
    model: Model,
    *,
    tokens: int = 2048,
    optimizer: str = "adamw",
    train: str = "full",
    gpus: int = 1,
    shard: str = "none",
    checkpointing: bool = False,
) -> Plan:
    """Memory on each GPU. `tokens` are those of one micro-batch; `train` is full, lora or qlora; `shard` is none, zero1, zero2 or zero3 (FSDP)."""
    n = model.parameters
    trained = n if train == "full" else _ADAPTERS * n
    frozen = {"full": 0.0, "lora": 2.0 * n, "qlora": _FOUR_BIT * n}[train]
    # mixed precision: 2 + 4 bytes with a master copy, or 4 with autocast over float32; gradients in the compute type or float32
    weights = 4.0 * trained + frozen
    gradients, state = 4.0 * trained, _STATE[optimizer] * trained
    step = _STEP[optimizer] * trained
    stage = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}[shard]
    state /= gpus if stage >= 1 else 1
    step /= gpus if stage >= 1 else 1
    gradients /= gpus if stage >= 2 else 1
    weights /= gpus if stage >= 3 else 1
    kept = 2 if checkpointing else _LAYER
    layers = model.layers * kept * model.width * tokens
    layers += _LAYER * model.width * tokens if checkpointing else 0  # the one that is recomputed
    activations = layers + _LOGIT * model.vocabulary * tokens
    return Plan(model, weights, gradients, state, activations, step)
