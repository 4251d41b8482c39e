"""Accelerate: inside `accumulate` a prepared optimizer steps only at the boundary, and `backward` divides by the count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fallline.api import contexts
from fallline.api.call import Call
from fallline.api.gradients import Clipping, backward, clip
from fallline.api.library import Attribute, Library
from fallline.api.paper import Paper, count_of
from fallline.api.values import (
    NONE,
    Const,
    Context,
    Sequence,
    Thing,
    Unknown,
    Value,
    kind_by_name,
)
from fallline.events import Batch

__all__ = ["LIBRARY"]

_PREPARED = frozenset({"optimizer", "scheduler", "model", "loader"})


def _accelerator(paper: Paper, call: Call, name: str) -> Value:
    given = call.kwargs.get("gradient_accumulation_steps")
    plugin = "gradient_accumulation_plugin" in call.kwargs
    window = None if call.star else 1
    if given is not None:
        window = count_of(paper, paper.settled(given))
    return paper.make(
        "accelerator",
        call.node,
        window=None if plugin else window,
        accumulates=given is not None or plugin,
        autocast=_autocasts(paper, call),
        seen=0,
        syncing=True,
    )


_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "no": "off"}


def _autocasts(paper: Paper, call: Call) -> str | None:
    """What `accelerator.autocast()` casts to, where `mixed_precision` says it."""
    given = paper.settled(call.kwargs.get("mixed_precision") or NONE)
    known = given.value if isinstance(given, Const) else None
    return _DTYPES.get(known) if isinstance(known, str) else None


@contextmanager
def _accumulating(paper: Paper, accelerator: Thing) -> Iterator[None]:
    """`with accelerator.accumulate(model)`."""
    facts = accelerator.facts
    window = facts.get("window")
    if window is None:
        window = facts["window"] = paper.count("gradient_accumulation_steps")
        facts["assumed"] = True  # nobody said it
    facts["seen"] = facts.get("seen", 0) + 1
    last = next((e.last for e in reversed(paper.events) if isinstance(e, Batch)), False)
    facts["syncing"] = facts["seen"] % window == 0 or bool(last)
    facts["inside"] = True
    models = [
        t.id
        for t in paper.things.values()
        if t.facts.get("accelerator") == accelerator.id and t.kind == "model"
    ]
    if facts["syncing"]:
        facts["seen"] = 0
    else:
        paper.around.unsynced += models
    try:
        yield
    finally:
        facts["inside"] = False
        paper.around.unsynced = [m for m in paper.around.unsynced if m not in models]


def _accumulate(paper: Paper, accelerator: Thing, call: Call) -> Value:
    return Context(lambda paper, node: _accumulating(paper, accelerator))


def _prepare(paper: Paper, accelerator: Thing, call: Call) -> Value:
    prepared = [_prepared(paper, accelerator, paper.settled(v)) for v in call.args]
    return prepared[0] if len(prepared) == 1 else Sequence(prepared)


def _prepared(paper: Paper, accelerator: Thing, value: Value) -> Value:
    if isinstance(value, Unknown) and value.became is None:
        kind = kind_by_name(value.hint)
        if kind in _PREPARED:
            value = paper.become(value, kind)
    if isinstance(value, Thing):
        value.facts["accelerator"] = accelerator.id
    return value


def _backward(paper: Paper, accelerator: Thing, call: Call) -> Value:
    facts = accelerator.facts
    window = facts.get("window")
    normalised = None
    if window is None or window > 1:
        # divided by what nobody is seen to have set is perhaps divided by 1
        sure = facts.get("accumulates") or facts.get("inside")
        normalised = "accelerate" if sure else "perhaps"
    loss = paper.settled(call.arg(0, "loss") or Unknown())
    known = (normalised is not None or window == 1) and not facts.get("assumed")
    before, paper.around.scales = paper.around.scales, True  # in float16 it scales by itself
    backward(paper, loss, call, normalised, window if known else None)
    paper.around.scales = before
    return NONE


def _no_sync(paper: Paper, accelerator: Thing, call: Call) -> Value:
    model = paper.settled(call.args[0]) if call.args else None
    return contexts.no_sync(model) if isinstance(model, Thing) else Context()


def _clip(paper: Paper, accelerator: Thing, call: Call, how: Clipping) -> Value:
    """Unscales by itself; it clips whatever is there, whether or not this is the last micro-batch."""
    limit = call.arg(1, "max_norm", "clip_value")
    return clip(paper, call, how, call.arg(0, "parameters"), limit)


def _method(paper: Paper, accelerator: Thing, name: str, call: Call) -> Value:
    match name:
        case "clip_grad_norm_" | "clip_grad_value_":
            return _clip(paper, accelerator, call, "norm" if "norm" in name else "value")
        case "backward":
            return _backward(paper, accelerator, call)
        case "accumulate":
            return _accumulate(paper, accelerator, call)
        case "no_sync":
            return _no_sync(paper, accelerator, call)
        case "autocast":
            return contexts.autocast(accelerator.facts.get("autocast"))
        case _ if name in _PREPARES:
            return _prepare(paper, accelerator, call)
        case _ if name in _SAME:
            return call.args[0] if call.args else Unknown()
    return Unknown(f"accelerator.{name}")


_PREPARES = frozenset(
    "prepare prepare_model prepare_optimizer prepare_data_loader prepare_scheduler".split()
)
_SAME = frozenset("unwrap_model gather gather_for_metrics reduce pad_across_processes".split())


def _syncs(paper: Paper, accelerator: Thing) -> Value:
    return Const(bool(accelerator.facts.get("syncing", True)), True)


def _window(paper: Paper, accelerator: Thing) -> Value:
    window = accelerator.facts.get("window")
    return Const(window) if window is not None else Unknown("gradient_accumulation_steps")


def _unknown(name: str) -> Attribute:
    return lambda paper, accelerator: Unknown(f"accelerator.{name}")


_ASKED = "is_main_process is_local_main_process device num_processes optimizer_step_was_skipped"

LIBRARY = Library(
    families=((re.compile(r"^accelerate\.(.*\.)?Accelerator$"), _accelerator),),
    any_method={"accelerator": _method},
    attributes={
        ("accelerator", "sync_gradients"): _syncs,
        ("accelerator", "gradient_accumulation_steps"): _window,
        **{("accelerator", name): _unknown(name) for name in _ASKED.split()},
    },
)
