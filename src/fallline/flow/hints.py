"""What an operation's name and a variable's name say about the values: the tables behind `ranges`."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from fallline.flow.algebra import Range, constant

__all__ = ["OPERATIONS", "named"]

_INF = math.inf
_POSITIVE = 1e-30  # above zero: reached only by inputs that training does not produce


# What an operation (or the layer of that name) returns whatever it is given, in float32, underflow included.
OPERATIONS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("softmax", "softmin", "gumbel_softmax", "sigmoid", "hardsigmoid"), (0.0, 1.0)),
    **dict.fromkeys(("log_softmax", "logsigmoid"), (-_INF, 0.0)),
    **dict.fromkeys(("tanh", "sin", "cos", "cosine_similarity", "normalize"), (-1.0, 1.0)),
    **dict.fromkeys(("exp", "softplus"), (_POSITIVE, _INF)),
    **dict.fromkeys(
        ("linear", "conv1d", "conv2d", "conv3d", "layernorm", "leaky_relu", "leakyrelu"),
        (-_INF, _INF),
    ),
    **dict.fromkeys(("randn", "randn_like"), (-_INF, _INF)),
    **dict.fromkeys(("rand", "rand_like"), (0.0, 1.0)),
    **dict.fromkeys(("zeros", "zeros_like"), (0.0, 0.0)),
    **dict.fromkeys(("ones", "ones_like", "cosh"), (1.0, 1.0)),
    **dict.fromkeys(
        ("relu", "var", "std", "mse_loss", "mseloss", "l1_loss", "l1loss", "smooth_l1_loss"),
        (0.0, _INF),
    ),
    "relu6": (0.0, 6.0),
    "gelu": (-0.16, _INF),
    "silu": (-0.27, _INF),
    "elu": (-1.0, _INF),
}
BOOLEAN = frozenset(
    {"eq", "ne", "gt", "ge", "lt", "le", "bool", "isfinite", "isnan", "isinf", "isin"}
    | {"logical_and", "logical_or", "logical_not"}
)
REDUCED = frozenset(
    {"mean", "max", "min", "amax", "amin", "median", "values", "nanmean", "int", "long", "item"}
)
# As layers these are learned and return anything; as functions they may be given fixed weights, of ones or unit length.
WEIGHTED = frozenset({"linear", "conv1d", "conv2d", "conv3d"})
# Values that an example or a test passes in: the argument's name says more.
MADE_UP = frozenset(
    {"zeros", "zeros_like", "ones", "ones_like", "rand", "rand_like", "randn", "randn_like"}
)
# A softmax sums to 1; sigmoids sum to more than 0 in any batch that training sees.
SUM_STAYS_AWAY = frozenset(
    {"softmax", "sigmoid", "softmin", "gumbel_softmax", "hardsigmoid", "rand"}
)

_PROBABILITY = re.compile(r"(^|_)(probs?|probabilit(y|ies)|softmax(ed)?|posteriors?)$")
_RATE = re.compile(r"(keep|drop|dropout|survival|mask|mix|aug|flip|noise|path|p)_?prob")
_LOGITS = re.compile(r"(^|_)logits?$")
_PREDICTION = re.compile(
    r"^(y_?)?(pred|preds|prediction|predictions|output|outputs|y_?hat|recon|reconstruction)$|^(x_hat|recon_x)$|^\w+_outputs$"
)
_TARGET = re.compile(r"^(targets?|labels?|gt|y_true|ground_truth|onehot|one_hot)$")
_MASK = re.compile(r"^(?!num_|n_|max_|use_|has_)(\w+_)?(masks?|valid)$")
# Counts of what a batch may not have: positives, matched boxes, neighbours.
_COUNT = re.compile(
    r"^(n|num|number_of|N|total)_?(pos|positives?|neg|negatives?|fg|valid|match(ed|es)?|objects?|gts?|selected|masked|instances|pairs|triplets)$|^(deg|degrees?|avg_factor)$"
)
# Masks of padding or attention have at least one true entry in every row by how they are made.
NEVER_EMPTY = re.compile(
    r"att|pad|causal|src|tgt|seq|token|length|pool|input|spec|encoder|decoder|frame|bias"
)
_EPSILON = re.compile(
    r"(^|_)(eps|epsilon|smooth(ing)?|tiny|jitter|floor|min_value)($|_)|eps$|^delta$", re.I
)
# Quantities that are positive by how they are chosen: a schedule, a temperature, a scale.
_CHOSEN = re.compile(
    r"sigma|std|scale|noise|var|alpha|beta|gamma|weight|temp|lr|radius|coef|dim|size|steps?$|^t$"
)
# What a line says that already takes care of the bad value, in whatever way.
GUARD = re.compile(r"clamp|clip|eps|EPS|smooth|max\(|nan_to_num|1e-")
MODEL = re.compile(r"^(self\.)?(model|net|network|netD|D|discriminator|classifier|disc|critic)$")


def is_logits(name: str) -> bool:
    return _LOGITS.search(name) is not None


def is_mask(name: str) -> bool:
    return _MASK.search(name) is not None


def is_chosen(names: set[str]) -> bool:
    """Whether an expression is about a quantity that someone chose, and chose above zero."""
    return any(_CHOSEN.search(n) for n in names)


@lru_cache(maxsize=4096)
def named(name: str) -> Range | None:
    """What a name alone says, for arguments whose value cannot be followed."""
    if _LOGITS.search(name):
        return Range(-_INF, _INF, f"the logits `{name}`")
    if _PROBABILITY.search(name) and not _RATE.search(name):
        return Range(0.0, 1.0, f"the probabilities `{name}`")
    if _PREDICTION.search(name):
        return Range(0.0, 1.0, f"the prediction `{name}`")
    if _TARGET.search(name):
        return Range(0.0, 1.0, "target")
    if _EPSILON.search(name):
        return constant(1e-8)
    if _COUNT.search(name):
        return Range(0.0, _INF, f"the count `{name}`")
    if is_mask(name) and not NEVER_EMPTY.search(name):
        return Range(0.0, 1.0, f"the mask `{name}`")
    return None
