"""What the token ids of a run mean: its tokenizer, found or given, and the ids that end, begin and pad a text."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

__all__ = ["Words", "find_tokenizers", "words_of"]

# ends of a turn that chat templates write where the end of the text is another token
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<|eom_id|>",
    "</s>",
)


@dataclass
class Words:
    """The tokenizer, as far as there is one. Without it, ids are shown as numbers."""

    tokenizer: Any = None
    pad: int | None = None
    eos: int | None = None
    bos: int | None = None
    ends: frozenset[int] = frozenset()  # what may end an answer; `eos` is one of them
    special: frozenset[int] = frozenset()
    size: int | None = None
    _known: dict[int, str] = field(default_factory=dict)

    def word(self, token: int) -> str:
        """One token as text."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._decoded(token)
        return found

    def text(self, tokens: Iterable[int]) -> str:
        return "".join(self.word(t) for t in tokens)

    def _decoded(self, token: int) -> str:
        if self.tokenizer is None:
            return f" {token}"
        try:
            return str(self.tokenizer.decode([token])) if token >= 0 else f"<{token}>"
        except Exception:  # an id that the tokenizer does not have
            return f"<{token}>"


def words_of(tokenizer: Any, model: nn.Module | None = None, *, decode: bool = True) -> Words:
    """From a tokenizer (of Transformers, or anything with `decode`), and from the model's configuration where it says nothing.

    Without `decode` only its special tokens are known by name: older tokenizers fail when two threads use them at once.
    """
    config = getattr(model, "config", None)
    found = {name: _id(tokenizer, config, name) for name in ("pad", "eos", "bos")}
    ends = {found["eos"]} | _stops(model)
    special = set(getattr(tokenizer, "all_special_ids", None) or ())
    if hasattr(tokenizer, "get_added_vocab"):
        added = tokenizer.get_added_vocab()
        ends |= {added[t] for t in _TURN_ENDS if t in added}
        special |= set(added.values())
    special |= {i for i in found.values() if i is not None}
    pad = found["pad"] if found["pad"] is not None else _embedding_pad(model)
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    known = frozenset(i for i in ends if i is not None)
    names = {i: str(getattr(tokenizer, f"{n}_token", i)) for n, i in found.items() if i is not None}
    return Words(
        tokenizer if decode else None,
        pad,
        found["eos"],
        found["bos"],
        known,
        frozenset(special),
        size,
        {} if decode else names,
    )


def _id(tokenizer: Any, config: Any, name: str) -> int | None:
    for thing in (tokenizer, config):
        value = getattr(thing, f"{name}_token_id", None)
        if isinstance(value, int):
            return value
        if isinstance(value, list) and value:
            return int(value[0])
    if hasattr(tokenizer, "token_to_id"):  # the `tokenizers` library
        names = {
            "pad": ("[PAD]", "<pad>"),
            "eos": ("</s>", "<eos>", "<|endoftext|>"),
            "bos": ("<s>", "<bos>"),
        }
        ids = (tokenizer.token_to_id(t) for t in names[name])
        return next((i for i in ids if i is not None), None)
    return None


def _stops(model: nn.Module | None) -> set[int | None]:
    stop = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return set(stop) if isinstance(stop, list) else {stop} if isinstance(stop, int) else set()


def _embedding_pad(model: nn.Module | None) -> int | None:
    modules = model.modules() if model is not None else ()
    embeddings = (m for m in modules if isinstance(m, nn.Embedding))
    return next((m.padding_idx for m in embeddings if m.padding_idx is not None), None)


def find_tokenizers() -> list[Any]:
    """The tokenizers of Transformers (or of `tokenizers`) that the script holds, the youngest last."""
    kinds: list[type] = []
    base = sys.modules.get("transformers.tokenization_utils_base")
    if base is not None:
        kinds.append(base.PreTrainedTokenizerBase)
    if kinds:
        found = _held(tuple(kinds))
        if found:
            return found
    raw = sys.modules.get("tokenizers")
    # not known to the garbage collector: only what the script's own module holds
    held = vars(sys.modules["__main__"]).values()
    return [] if raw is None else [t for t in held if isinstance(t, raw.Tokenizer)]


def _held(kinds: tuple[type, ...]) -> list[Any]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
