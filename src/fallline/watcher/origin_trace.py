"""Finds the first operation that made a number non-finite: forward, by looking at every result; backward, at every node.

Infinities that a program writes on purpose (a mask filled with -inf) are meant as long as nothing turns them into NaN. What
`where`, softmax or a slice drops again never reaches the loss and is not reported: each tensor carries the story of
its own non-finite values, and only the loss's story counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fallline.location import Location
from fallline.replay.modules import Modules
from fallline.replay.named import NamedTensors
from fallline.replay.shards import local
from fallline.replay.tensors import flat, keep_spelling, plain_base, plain_name, storage, tensors_in
from fallline.taps.frames import is_user_file, place, shown_path

__all__ = [
    "WEIGHS",
    "BackwardTrace",
    "ForwardTrace",
    "Story",
    "describe",
    "first_bad",
    "is_finite",
]

_REDUCTIONS = frozenset(
    {"logsumexp", "sum", "mean", "amax", "amin", "max", "min", "nll_loss_forward", "nll_loss"}
)
_MEANT = frozenset(
    {
        "masked_fill",
        "masked_fill_",
        "full",
        "full_like",
        "fill",
        "fill_",
        "new_full",
        "scalar_tensor",
        "lift_fresh",
    }
)
# These weigh features, and no mask goes into them: there a -inf is as bad as any other infinity.
WEIGHS = frozenset(
    {"batch_norm", "conv1d", "conv2d", "conv3d", "group_norm", "layer_norm", "linear", "matmul"}
)


@dataclass(slots=True)
class Story:
    """Where the non-finite values of a tensor come from."""

    op: str
    at: Location | None
    module: str | None
    inputs: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    meant: bool = False
    leaf: str | None = (
        None  # "parameter" | "buffer" | "input": they were there before any operation
    )
    name: str | None = None  # of that leaf
    index: list[int] | None = None  # of its first non-finite element
    order: int = 0
    hook: str | None = None  # of the user's, in which it happened


class ForwardTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the result of every operation and keeps each non-finite tensor's story."""

    def __init__(self, inputs: NamedTensors, modules: Modules | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules = modules or Modules(())
        self.inputs = inputs
        self.stories: dict[int, Story | None] = {}
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tensors_in((args, kwargs)) if _numeric(t)]
        known = [self._story_of(t) for t in given]
        before = [describe(t) for t in given[:4]] if len(given) <= 8 else []
        result = func(*args, **(kwargs or {}))
        for output in tensors_in(result):
            if _numeric(output):
                self._judge(func, output, given, known, before, (args, kwargs))
        return result

    def same(self, made: Tensor, had: Tensor) -> None:
        """What the replay computes and what the run had computed: other noise may lie between, the story is one."""
        story = self.story(made)
        if story is not None and storage(made) != storage(had) and not is_finite(had):
            self.stories[storage(had)] = story

    def story(self, tensor: Tensor) -> Story | None:
        return self.stories.get(storage(tensor))

    def _story_of(self, tensor: Tensor) -> Story | None:
        key = storage(tensor)
        if key in self.stories:
            return self.stories[key]
        found = None
        if key and not bool(torch.isfinite(tensor).all()):
            index = first_bad(tensor)
            kind, name = self.modules.tensors.get(key, ("input", None))
            if kind == "input":
                name, index = self.inputs.find(tensor, index)
            meant = (
                kind != "parameter"
                and not bool(torch.isnan(tensor).any())
                and not bool((tensor == torch.inf).any())
            )
            found = Story(
                "",
                None,
                None,
                meant=meant,
                leaf=kind,
                name=name or None,
                index=index,
                result=describe(tensor),
            )
        self.stories[key] = found
        return found

    def _judge(
        self,
        func: Any,
        output: Tensor,
        given: list[Tensor],
        known: list[Story | None],
        before: list[dict[str, Any]],
        arguments: Any,
    ) -> None:
        key = storage(output)
        shared = any(storage(t) == key for t in given)
        if shared and not func._schema.is_mutable:
            return  # a view: its story is that of what it shows
        fine = bool(torch.isfinite(output).all())
        if fine:
            if not shared:
                self.stories[key] = None
            return
        self._count += 1
        name = func._schema.name
        stories = [s for s in known if s is not None]
        weighs = plain_name(name, output) in WEIGHS
        bad = [s for s in stories if weighs or not s.meant]
        if bad:
            # one that no operation has met before is met now: running statistics that the same NaN has spoilt come last
            first = min(bad, key=lambda s: s.order or self._count)
            first.meant = False
            if first.leaf is not None and first.at is None:
                self._place(first, name, before, output)  # the first operation that met it
            self.stories[key] = first
            return
        deliberate = bool(stories) or plain_base(name) in _MEANT or _infinite_scalar(arguments)
        # a mask is there to be swallowed: where a reduction still gives an infinity, it has taken everything
        swallows = bool(stories) and plain_base(name) in _REDUCTIONS
        story = Story("", None, None, order=self._count)
        if deliberate and not swallows and not bool(torch.isnan(output).any()):
            story.meant = True
        self._place(story, name, before, output)
        self.stories[key] = story

    def _place(self, story: Story, name: str, before: list[dict[str, Any]], output: Tensor) -> None:
        where = place()
        story.op = plain_name(name, output)
        story.at = where.at if where is not None else None
        story.module = self.modules.current
        story.inputs = before
        story.order = story.order or self._count
        if story.leaf is None:
            story.result = describe(output)


class BackwardTrace:
    """Runs a loss's backward without touching any `.grad`, and finds the first node that makes a finite gradient non-finite."""

    def __init__(
        self, modules: Modules, *, saved: bool = True, ended: Callable[[], bool] = bool
    ) -> None:
        self.modules = modules
        self.ended = ended  # it is known from elsewhere
        self.saved = saved  # False: looking at saved tensors would recompute a checkpointed block
        self.found: Story | None = None
        self._held: list[Any] = []

    def run(self, loss: Tensor) -> Story | None:
        nodes, leaves = _graph(loss)
        for node in nodes:
            if type(node).__name__ != "AccumulateGrad":
                if isinstance(node, torch.autograd.function.BackwardCFunction):
                    keep_spelling(type(node).__name__.removesuffix("Backward"))
                self._held.append(node.register_hook(self._hook(node)))
        try:
            torch.autograd.grad(loss, leaves, torch.ones_like(loss), allow_unused=True)
        finally:
            for handle in self._held:
                handle.remove()
        return self.found

    def _hook(self, node: Any) -> Any:
        def look(made: tuple[Any, ...], given: tuple[Any, ...]) -> None:
            if self.found is not None or self.ended() or all(is_finite(g) for g in made):
                return
            if not all(is_finite(g) for g in given):
                return
            self.found = self._tell(node, made, given)

        return look

    def _tell(self, node: Any, made: tuple[Any, ...], given: tuple[Any, ...]) -> Story:
        saved = []
        for name in dir(node) if self.saved else ():
            if name.startswith("_saved_"):
                try:
                    value = getattr(node, name)
                except (RuntimeError, AttributeError):
                    continue
                if isinstance(value, Tensor) and _numeric(value):
                    saved.append({"name": name.removeprefix("_saved_"), **describe(value)})
        if self.saved and isinstance(node, torch.autograd.function.BackwardCFunction):
            kept = [t for t in node.saved_tensors if isinstance(t, Tensor) and _numeric(t)]
            saved += [{"name": "saved tensor", **describe(t)} for t in kept]
        bad = next(g for g in made if isinstance(g, Tensor) and not is_finite(g))
        return Story(
            plain_name(node.name(), next((g for g in given if isinstance(g, Tensor)), None)),
            _forward_line(node),
            self.modules.of_node(node._sequence_nr()),
            inputs=[
                *saved,
                *(
                    {"name": "incoming gradient", **describe(g)}
                    for g in given
                    if isinstance(g, Tensor)
                ),
            ],
            result=describe(bad),
        )


def _forward_line(node: Any) -> Location | None:
    """The user's line that made this node, from the traceback that anomaly mode left on it."""
    for entry in reversed(node.metadata.get("traceback_") or ()):
        for line in reversed(entry.strip().splitlines()):
            match = re.match(r'\s*File "(.+)", line (\d+), in (.*)', line)
            if match and is_user_file(match[1]):
                function = "" if match[3] == "<module>" else match[3]
                return Location(shown_path(match[1]), int(match[2]), function=function)
    return None


def _graph(loss: Tensor) -> tuple[list[Any], list[Tensor]]:
    nodes: list[Any] = []
    leaves: list[Tensor] = []
    seen = {loss.grad_fn}
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None:
            continue
        nodes.append(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves.append(variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return nodes, leaves


def describe(tensor: Tensor) -> dict[str, Any]:
    """Shape, type and range of a tensor, as evidence."""
    with torch.no_grad():
        plain = local(tensor.detach())
        if plain.is_complex():
            plain = torch.view_as_real(plain)
        found: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:]}
        values = plain[torch.isfinite(plain)] if plain.is_floating_point() else plain.reshape(-1)
        if values.numel():
            found["min"], found["max"] = float(values.min()), float(values.max())
        if plain.is_floating_point():
            nans, infs = int(torch.isnan(plain).sum()), int(torch.isinf(plain).sum())
            if nans:
                found["nan"] = nans
            if infs:
                found["inf"] = infs
    return found


def first_bad(tensor: Tensor) -> list[int] | None:
    """The index of the first element that is NaN or Inf, in what this rank holds of it."""
    where = (~torch.isfinite(local(tensor))).nonzero()
    return [int(i) for i in where[0]] if len(where) else None


def _numeric(tensor: Tensor) -> bool:
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
    )


def is_finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not _numeric(value) or bool(torch.isfinite(value).all())


def _infinite_scalar(arguments: Any) -> bool:
    return any(isinstance(v, float) and v in (float("inf"), float("-inf")) for v in flat(arguments))
