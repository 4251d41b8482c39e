"""Keeps what one update is made of: what each backward added to the gradients, what reached the optimizer, what the step did.

Of a large parameter an even sample of its elements is kept, the same in every way, so a record is small next to the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fallline.instruments.equal.draws import SampleDraws
from fallline.instruments.equal.loaders import number_of
from fallline.instruments.equal.root import divisors_of
from fallline.instruments.observer import Observer
from fallline.instruments.where import user_line
from fallline.taps.clipping import CLIP, ClipCall
from fallline.taps.data import EXHAUSTED, Exhausted
from fallline.taps.deepspeed import ENGINE_STEP, EngineStep
from fallline.taps.optimizers import CLOSURE, ClosureCall
from fallline.taps.scaling import SCALE, ScaleCall
from fallline.taps.tap import Subscription, silence

__all__ = ["Backward", "Clip", "Record", "Recorder", "Vectors"]

SAMPLE = 65_536  # elements of a parameter that are kept
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
Vectors = dict[str, Tensor]  # parameter → its values, or an even sample of them


@dataclass
class Backward:
    """One backward of the update, and what it added."""

    added: Vectors
    loss: float
    divisors: list[float]  # of the loss, from the root inwards, without the loss scale
    path: str
    line: int
    epoch: int  # of the loader that feeds the loop: how often it had come to its end
    samples: int  # rows of the first tensor that the model got
    batches: int  # that had been read from the loader until then

    @property
    def seen(self) -> bool:
        """Whether it has added anything that is to be seen: engines may keep gradients in buffers of their own."""
        return any(bool(values.any()) for values in self.added.values())


@dataclass
class Clip:
    backwards: int  # that had been done before it
    how: str
    threshold: float
    norm: float  # that it measured
    path: str
    line: int


@dataclass
class Record:
    """One update."""

    backwards: list[Backward] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    unclipped: Vectors = field(default_factory=dict)  # before the last clip, else what reached
    reached: Vectors = field(default_factory=dict)  # the optimizer
    moved: Vectors = field(default_factory=dict)  # what the step added to the parameters
    stepped: bool = False
    step_path: str = ""
    step_line: int = 0
    scale: float = 1.0  # of the loss, by a GradScaler
    loader: int = -1  # the DataLoader whose batches the model got
    batches: int = 0  # of that loader, before the step
    length: int = 0  # of that loader in batches, 0: not known
    indices: list[str] = field(default_factory=list)  # samples that were read, in order
    exhausted: bool = False  # the loader came to its end before the step
    met: list[str] = field(default_factory=list)  # features the loop uses
    dtype: str = "float32"  # the coarsest format that the forward pass computes in
    elements: int = 0  # of the inputs of the model
    calls: int = 0  # of modules in one forward pass
    terms: int = 0  # of the sums that these make with their weights, forward and backward
    optimizer: str = ""
    optimizers: int = 1  # that the script makes
    chosen: int = 0  # which of them this update is of
    processes: int = 1
    framework: str = ""
    host_peak: int = 0  # bytes
    device_peak: int = 0
    status: int = 0
    error: str = ""
    logged: list[tuple[str, float, str, int]] = field(default_factory=list)  # by an evaluation

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Record:
        """What `asdict` made of one."""
        whole = cls(**fields)
        whole.backwards = [Backward(**b) for b in fields["backwards"]]
        whole.clips = [Clip(**c) for c in fields["clips"]]
        return whole


class Recorder(Observer):
    """Hears of a run up to its first step."""

    def __init__(
        self,
        met: set[str],
        *,
        at_backward: bool = False,
        draws: SampleDraws | None = None,
        update: int = 0,
        optimizer: int = -1,
    ) -> None:
        """`at_backward`: the first backward is enough. `draws` hear which samples a batch has. `update`, `optimizer`: which
        update is recorded, and of which optimizer, counted as they are made (-1: the first that steps)."""
        self.to_pass = update  # updates that come before the one that is recorded
        self._wanted = optimizer
        self.record = Record()
        self._draws = draws
        self._taken: list[str] = []  # the samples of the batch that was read last
        self.met = met
        self._at_backward = at_backward
        self._optimizers: list[Any] = []
        self._models: list[nn.Module] = []
        self._before: Vectors = {}
        self._parameters_before: Vectors = {}
        self._samples = 0
        self._gathered: Vectors = {}  # gradients, as an engine puts them together
        self._device = "cpu"  # of the model that was called last
        self._closed = False
        self.tokens: Tensor | None = None  # that the model got last
        self._read: dict[int, int] = {}  # loader → batches
        self._ended: dict[int, int] = {}  # loader → epochs
        self._lengths: dict[int, int] = {}
        self._indices: dict[int, list[str]] = {}
        self._last_loader = -1
        self._taps = Subscription(rebind=True)
        self._taps.before(CLIP, self._clip_begins)
        self._taps.after(CLIP, self._clip_ends)
        self._taps.after(CLOSURE, self._closure_ends)
        self._taps.after(SCALE, self._scaled)
        self._taps.after(EXHAUSTED, self._exhausted)
        self._taps.after(ENGINE_STEP, self._engine_stepped)

    def started(self) -> None:
        self._taps.start()

    def stop(self) -> None:
        self._taps.stop()

    # -- data ----------------------------------------------------------------------------------------------------

    def epoch_begins(self, loader: Any) -> None:
        try:
            self._lengths[number_of(loader)] = len(loader)
        except (TypeError, NotImplementedError):
            self._lengths[number_of(loader)] = 0

    def indices_taken(self, iterator: Any, indices: Any) -> None:
        taken = [str(i) for i in (indices if isinstance(indices, list | tuple) else [indices])]
        self._indices.setdefault(number_of(iterator), []).extend(taken)
        self._taken = taken

    def batch_begins(self, iterator: Any) -> None:
        if self._draws is not None:
            self._draws.batch([])  # a dataset draws for one sample at a time

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        if self._draws is not None:
            self._draws.batch(self._taken)
        number = number_of(iterator)
        self._read[number] = self._read.get(number, 0) + 1
        self._last_loader = number

    def _exhausted(self, call: Exhausted) -> None:
        number = number_of(call.iterator)
        self._ended[number] = self._ended.get(number, 0) + 1

    # -- forward and backward --------------------------------------------------------------------------------------

    def optimizer_made(self, optimizer: Any) -> None:
        self._optimizers.append(optimizer)

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if not any(model is known for known in self._models):
            self._models.append(model)
        if isinstance(kwargs.get("attention_mask"), Tensor):
            self.met.add("attention mask")
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        if tensors and any(p.requires_grad for p in model.parameters()):
            self._samples += tensors[0].shape[0] if tensors[0].dim() else 1
            self.record.elements += sum(t.numel() for t in tensors)
            self._note_tokens(kwargs.get("input_ids", tensors[0]))
        self._note_format(model)

    def _note_tokens(self, first: Any) -> None:
        if isinstance(first, Tensor) and first.dim() == 2 and not first.is_floating_point():
            self.tokens = first.detach()

    def _note_format(self, model: nn.Module) -> None:
        self._device = next((p.device.type for p in model.parameters()), "cpu")
        kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
        coarsest = max(kinds, key=lambda k: torch.finfo(k).eps, default=None)
        if coarsest is not None and self.record.dtype == "float32":
            self.record.dtype = str(coarsest).removeprefix("torch.")

    def module_begins(self, module: nn.Module) -> None:
        self.record.calls += 1
        self.record.terms += _terms(module)
        # here and not where the model is called: Accelerate's autocast begins inside of that call
        if torch.is_autocast_enabled(self._device):
            self.met.add("autocast")
            self.record.dtype = str(torch.get_autocast_dtype(self._device)).removeprefix("torch.")

    def backward_begins(self, loss: Any) -> None:
        self._before = self._gradients()
        at = user_line()
        value = float(loss.detach().float().mean()) if isinstance(loss, Tensor) else 0.0
        divisors = _without(divisors_of(loss), 1 / self.record.scale)
        epoch = self._ended.get(self._last_loader, 0)
        self.record.backwards.append(
            Backward(
                {},
                value,
                divisors,
                at.path if at else "",
                at.line if at else 0,
                epoch,
                self._samples,
                self._read.get(self._last_loader, 0),
            )
        )
        self._samples = 0

    def backward_ends(self) -> None:
        now = self._gradients()
        self.record.backwards[-1].added = difference(now, self._before)
        self._before = {}
        if not self._at_backward or self.to_pass or not self._feeds_wanted():
            return
        if self.record.backwards[-1].seen:
            self.over = True
            self._finish()

    def _scaled(self, call: ScaleCall) -> None:
        with silence():
            self.record.scale = float(call.scaler.get_scale())

    def _clip_begins(self, call: ClipCall) -> None:
        if self.record.stepped:
            return
        with silence():
            self.record.unclipped = self._gradients()
            threshold = float(call.threshold)
        at = user_line()
        done = len(self.record.backwards)
        self.record.clips.append(
            Clip(done, call.how, threshold, 0.0, at.path if at else "", at.line if at else 0)
        )

    def _clip_ends(self, call: ClipCall) -> None:
        if isinstance(call.result, Tensor | float) and not self.record.stepped:
            with silence():
                self.record.clips[-1].norm = float(_whole(call.result))

    def _engine_stepped(self, call: EngineStep) -> None:
        """ZeRO clips inside of its step, after its gradients were gathered."""
        record, done = self.record, len(self.record.backwards)
        if record.stepped or call.norm is None or not call.threshold:
            return
        norm = float(call.norm)
        if norm <= call.threshold or any(c.backwards == done for c in record.clips):
            return
        record.clips.append(Clip(done, "norm", call.threshold, norm, record.step_path, record.step_line))  # fmt: skip
        factor = call.threshold / (norm + 1e-6)
        record.reached = {n: v * factor for n, v in record.unclipped.items()}

    def gather(self, gradients: Vectors) -> None:
        """What the next step's optimizer works with, before it is clipped."""
        self._gathered = gradients

    # -- the step ------------------------------------------------------------------------------------------------

    def _feeds_wanted(self) -> bool:
        """Whether the last backward gave a gradient to the optimizer that is looked at."""
        if self._wanted < 0:
            return True
        held = self._names_of(self._optimizers[self._wanted])
        added = self.record.backwards[-1].added
        self.record.backwards[-1].added = {n: v for n, v in added.items() if n in held}
        if any(bool(v.any()) for v in self.record.backwards[-1].added.values()):
            return True
        self.record.backwards.pop()
        return False

    def _is_wanted(self, optimizer: Any) -> bool:
        if self._wanted < 0:  # the first that steps is the one
            self._wanted = next(i for i, o in enumerate(self._optimizers) if o is optimizer)
        chosen = self._optimizers[self._wanted] if self._wanted < len(self._optimizers) else None
        return chosen is optimizer

    def _begin_again(self) -> None:
        """What was recorded so far belongs to an earlier update."""
        kept, self.record = self.record, Record()
        self.record.scale, self.record.dtype = kept.scale, kept.dtype
        self._closed = False
        self._samples = 0
        self._read, self._indices = {}, {}

    def step_begins(self, optimizer: Any) -> None:
        if not self.record.stepped and not self.to_pass and self._is_wanted(optimizer):
            self._reach(optimizer)

    def _closure_ends(self, call: ClosureCall) -> None:
        """The last backward was inside of the step. A closure that is evaluated again is a search of the optimizer's own."""
        if self.to_pass or not self._is_wanted(call.optimizer):
            return
        if not self.record.stepped and not self._closed:
            self._closed = True
            with silence():
                self._reach(call.optimizer)

    def _reach(self, optimizer: Any) -> None:
        held = set(self._gathered) or self._names_of(optimizer)
        record, scale = self.record, getattr(optimizer, "grad_scale", None)
        record.reached = self._gathered or self._gradients(held, scale)
        if not record.clips or record.clips[-1].backwards < len(record.backwards):
            record.unclipped = record.reached
        record.unclipped = {n: v for n, v in record.unclipped.items() if n in held}
        for backward in record.backwards:
            backward.added = {n: v for n, v in backward.added.items() if n in held}
        if len(self._optimizers) > 1:  # a backward that is only for the others
            fed = [b for b in record.backwards if any(bool(v.any()) for v in b.added.values())]
            record.backwards = fed or record.backwards
        self._parameters_before = self._values(held)
        at = user_line()
        record.step_path, record.step_line = (at.path, at.line) if at else ("", 0)
        record.optimizer, record.optimizers = type(optimizer).__name__, len(self._optimizers)
        record.chosen = self._wanted

    def step_ends(self, optimizer: Any) -> None:
        if self.record.stepped:
            return
        if not self._is_wanted(optimizer):
            return
        if self.to_pass:
            self.to_pass -= 1
            self._begin_again()
            return
        held = set(self._gathered) or self._names_of(optimizer)
        self.record.moved = difference(self._values(held), self._parameters_before)
        self.record.stepped = True
        self.over = True
        self._finish()

    def _finish(self) -> None:
        record, number = self.record, self._last_loader
        record.loader, record.batches = number, self._read.get(number, 0)
        record.length = self._lengths.get(number, 0)
        record.indices = self._indices.get(number, [])
        record.exhausted = self._ended.get(number, 0) > 0
        record.calls //= max(1, len(record.backwards))
        record.terms //= max(1, len(record.backwards))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            record.processes = torch.distributed.get_world_size()

    # -- parameters ------------------------------------------------------------------------------------------------

    def _names(self) -> dict[int, str]:
        found: dict[int, str] = {}
        taken: set[str] = set()
        for number, model in enumerate(self._models):
            for long_name, parameter in model.named_parameters():
                name = plain_name(long_name)
                if id(parameter) not in found:
                    # two models may call their parameters the same
                    found[id(parameter)] = (
                        f"{name} of model {number + 1}" if name in taken else name
                    )
                    taken.add(found[id(parameter)])
        return found

    def _named(self) -> dict[str, Tensor]:
        names = self._names()
        found: dict[str, Tensor] = {}
        for o, optimizer in enumerate(self._optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for i, parameter in enumerate(group["params"]):
                    place = f"parameter {i} of group {g} of optimizer {o}"
                    found.setdefault(names.get(id(parameter), place), parameter)
        return found

    def _names_of(self, optimizer: Any) -> set[str]:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return {name for name, parameter in self._named().items() if id(parameter) in held}

    def _gradients(self, held: set[str] | None = None, scale: Any = None) -> Vectors:
        found = {}
        for name, parameter in self._named().items():
            if parameter.grad is not None and (held is None or name in held):
                values = sampled(parameter.grad)
                found[name] = values if scale is None else values / float(scale)
        return found

    def _values(self, held: set[str]) -> Vectors:
        return {name: sampled(p) for name, p in self._named().items() if name in held}


def _terms(module: nn.Module) -> int:
    """How many products a linear map or a convolution adds up, on the way forward and on the way back."""
    weights = [p for p in module.parameters(recurse=False) if p.dim() > 1 and p.numel()]
    return sum(p.numel() // p.shape[0] + p.shape[0] for p in weights)


def plain_name(name: str) -> str:
    """As the model calls it, without what wraps it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def sampled(tensor: Tensor) -> Tensor:
    """Its elements on the host, or an even sample of them."""
    plain = _whole(tensor.detach())
    flat = plain.to_dense().reshape(-1) if plain.is_sparse else plain.reshape(-1)
    step = -(-flat.numel() // SAMPLE) or 1
    kept: Tensor = flat[::step].to(
        "cpu", torch.float64 if flat.dtype == torch.float64 else torch.float32, copy=True
    )
    return kept


def _whole(tensor: Any) -> Any:
    """All of a tensor that is sharded over ranks."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def difference(after: Vectors, before: Vectors) -> Vectors:
    return {n: v - before[n] if n in before else v for n, v in after.items()}


def _without(divisors: list[float], scale: float) -> list[float]:
    """Without the loss scale, which is there for a reason of its own."""
    for place, value in enumerate(divisors):
        if scale != 1 and abs(value - scale) <= 1e-6 * scale:
            return divisors[:place] + divisors[place + 1 :]
    return divisors
