"""Frameworks that own part of the protocol: Accelerate, Fabric, Lightning, DeepSpeed, transformers.

Their rules are carried out as they are: inside `accelerator.accumulate` a prepared optimizer steps only at the boundary,
`accelerator.backward` divides by the count itself, and so on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager

from fallline.events import Kind
from fallline.reader.call import Call
from fallline.reader.machine import Machine, count_of
from fallline.reader.values import (
    NONE,
    Const,
    Context,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
)
from fallline.syntax import Module

__all__ = [
    "LIGHTNING",
    "accumulating",
    "attribute",
    "call",
    "is_trainer",
    "method",
    "stepping",
    "super_call",
]


# What a LightningModule inherits and a training step calls.
LIGHTNING = frozenset(
    "optimizers lr_schedulers manual_backward clip_gradients toggle_optimizer untoggle_optimizer log log_dict".split()
)
# `X.from_pretrained` of these gives no module: a call of it builds no graph that anybody could keep.
_NO_MODULE = re.compile(
    r"(Tokenizer|Processor|Extractor|Config|Scheduler|Pipeline|Pipe)(Fast|XL|2)?$|^Auto(Pipeline|Tokenizer)|DiffusionPipeline"
)


def call(machine: Machine, name: str, call: Call) -> Value | None:
    """Constructors of the frameworks."""
    last = name.rpartition(".")[2]
    if name.startswith("accelerate.") and last == "Accelerator":
        given = call.kwargs.get("gradient_accumulation_steps")
        window = (
            count_of(machine, machine.settled(given))
            if given is not None
            else (None if call.star else 1)
        )
        plugin = "gradient_accumulation_plugin" in call.kwargs
        return machine.make(
            "accelerator",
            call.node,
            window=None if plugin else window,
            accumulates=given is not None or plugin,
            seen=0,
            syncing=True,
        )
    if last == "Fabric" and "fabric" in name:
        return machine.make("fabric", call.node)
    if name == "deepspeed.initialize":
        engine = machine.make("engine", call.node)
        return Sequence(
            [
                engine,
                machine.make("optimizer", call.node, engine=True),
                machine.make("loader", call.node),
                Unknown("scheduler"),
            ]
        )
    if name.startswith(
        (
            "transformers.",
            "timm.",
            "torchvision.models",
            "open_clip",
            "diffusers",
            "peft.",
            "segmentation_models_pytorch",
        )
    ):
        if last in {
            "from_pretrained",
            "create_model",
            "get_peft_model",
            "from_config",
        } or name.startswith("torchvision.models."):
            if _NO_MODULE.search(name.rpartition(".")[0].rpartition(".")[2]):
                return Unknown()
            base = machine.settled(call.args[0]) if call.args and last == "get_peft_model" else None
            return (
                base
                if isinstance(base, Thing)
                else machine.make(
                    "model",
                    call.node,
                    type=name.split(".")[-2] if last == "from_pretrained" else last,
                )
            )
    if name.startswith("apex.amp"):
        machine.emit(Kind.OPAQUE, call.node, what=last)
        return Sequence([*call.args[:2]]) if last == "initialize" else Unknown()
    if name == "fallline.Stepper":
        machine.emit(Kind.OPAQUE, call.node, what="Stepper")
        return machine.make("engine", call.node)
    return None


def stepping(machine: Machine, thing: Thing) -> bool:
    """Whether a prepared optimizer (or scheduler) really acts now: under Accelerate only at the boundary."""
    owner = machine.things.get(str(thing.facts.get("accelerator")))
    return owner is None or bool(owner.facts.get("syncing", True))


@contextmanager
def accumulating(machine: Machine, accelerator: Thing) -> Iterator[None]:
    """`with accelerator.accumulate(model)`."""
    facts = accelerator.facts
    window = facts.get("window")
    if window is None:
        window = facts["window"] = machine.settings.count("gradient_accumulation_steps")
        facts["assumed"] = True  # nobody said it
    facts["seen"] = facts.get("seen", 0) + 1
    last = next((e.fact("last") for e in reversed(machine.events) if e.kind is Kind.BATCH), False)
    facts["syncing"] = facts["seen"] % window == 0 or bool(last)
    facts["inside"] = True
    models = [
        t.id
        for t in machine.things.values()
        if t.facts.get("accelerator") == accelerator.id and t.kind == "model"
    ]
    if not facts["syncing"]:
        machine.unsynced += models
    if facts["syncing"]:
        facts["seen"] = 0
    try:
        yield
    finally:
        facts["inside"] = False
        machine.unsynced = [m for m in machine.unsynced if m not in models]


def attribute(machine: Machine, thing: Thing, name: str) -> Value | None:
    if thing.kind == "accelerator":
        if name == "sync_gradients":
            return Const(bool(thing.facts.get("syncing", True)), True)
        if name == "gradient_accumulation_steps":
            window = thing.facts.get("window")
            return Const(window) if window is not None else Unknown("gradient_accumulation_steps")
        if name in {
            "is_main_process",
            "is_local_main_process",
            "device",
            "num_processes",
            "optimizer_step_was_skipped",
        }:
            return Unknown(f"accelerator.{name}")
    if thing.kind == "object" and name == "accelerator" and is_trainer(thing.cls):
        # the Trainer divides the loss itself, and tells its Accelerator not to
        made = thing.attrs[name] = machine.make("accelerator", None, window=1, syncing=True)
        return made
    if thing.kind == "engine" and name in {"module", "optimizer"}:
        return thing if name == "module" else machine.make("optimizer", None, engine=True)
    return None


def is_trainer(cls: tuple[Module, ast.ClassDef] | None) -> bool:
    """A class made from the Trainer of transformers, or from one of trl's, which are."""
    return cls is not None and any(
        base.startswith(("transformers.", "trl.")) and base.endswith("Trainer")
        for base in cls[0].bases(cls[1])
    )


def method(machine: Machine, thing: Thing, name: str, call: Call) -> Value | None:
    """Methods of framework objects, and of Lightning modules."""
    if thing.kind == "accelerator":
        return _accelerator(machine, thing, name, call)
    if thing.kind == "fabric":
        return _fabric(machine, thing, name, call)
    if thing.kind == "engine":
        return _engine(machine, thing, name, call)
    if thing.kind == "model":
        return _lightning(machine, thing, name, call)
    return None


def _accelerator(machine: Machine, accelerator: Thing, name: str, call: Call) -> Value | None:
    from fallline.reader.tensors import backward
    from fallline.reader.torch_api import clip

    if name in {
        "prepare",
        "prepare_model",
        "prepare_optimizer",
        "prepare_data_loader",
        "prepare_scheduler",
    }:
        prepared = [_prepared(machine, accelerator, machine.settled(v)) for v in call.args]
        return prepared[0] if len(prepared) == 1 else Sequence(prepared)
    if name == "backward":
        window = accelerator.facts.get("window")
        normalised = None
        if window is None or window > 1:
            # divided by what nobody is seen to have set is perhaps divided by 1
            sure = accelerator.facts.get("accumulates") or accelerator.facts.get("inside")
            normalised = "accelerate" if sure else "perhaps"
        loss = machine.settled(call.arg(0, "loss") or Unknown())
        known = normalised is not None and not accelerator.facts.get("assumed")
        backward(machine, loss, call, normalised, window if known else None)
        return NONE
    if name == "accumulate":
        return Context("accumulate", None, accelerator)
    if name == "no_sync":
        model = machine.settled(call.args[0]) if call.args else None
        return Context("no_sync", None, model) if isinstance(model, Thing) else Context()
    if name == "autocast":
        return Context("autocast", None)
    if name in {"clip_grad_norm_", "clip_grad_value_"}:
        # a no-op while gradients are not synchronised; unscales by itself
        if accelerator.facts.get("inside") and not accelerator.facts.get("syncing"):
            return Tensor(False)
        return clip(
            machine,
            call,
            "norm" if "norm" in name else "value",
            call.arg(0, "parameters"),
            call.arg(1, "max_norm", "clip_value"),
        )
    if name in {"unwrap_model"}:
        return call.args[0] if call.args else Unknown()
    if name in {"gather", "gather_for_metrics", "reduce", "pad_across_processes"}:
        return call.args[0] if call.args else Unknown()
    return Unknown(f"accelerator.{name}")


def _prepared(machine: Machine, accelerator: Thing, value: Value) -> Value:
    if isinstance(value, Unknown) and value.became is None:
        from fallline.reader.values import kind_by_name

        kind = kind_by_name(value.hint)
        if kind in {"optimizer", "scheduler", "model", "loader"}:
            value = machine.become(value, kind)
    if isinstance(value, Thing):
        value.facts["accelerator"] = accelerator.id
    return value


def _fabric(machine: Machine, fabric: Thing, name: str, call: Call) -> Value | None:
    from fallline.reader.builders import enabled_of
    from fallline.reader.tensors import backward
    from fallline.reader.torch_api import clip

    if name in {"setup", "setup_module", "setup_optimizers", "setup_dataloaders"}:
        given = [machine.settled(v) for v in call.args]
        for value in given:
            if isinstance(value, Thing):
                value.facts["fabric"] = fabric.id
        return given[0] if len(given) == 1 else Sequence(list(given))
    if name == "backward":
        backward(machine, machine.settled(call.arg(0, "tensor", "loss") or Unknown()), call)
        return NONE
    if name == "no_backward_sync":
        model = machine.settled(call.arg(0, "module") or Unknown())
        on = enabled_of(machine, call.arg(1, "enabled"))
        return Context("no_sync", None, model) if on and isinstance(model, Thing) else Context()
    if name == "clip_gradients":
        limit = call.arg(None, "max_norm") or call.arg(None, "clip_val")
        how = "value" if "clip_val" in call.kwargs else "norm"
        target = call.arg(1, "optimizer") or call.arg(0, "module")
        return clip(machine, call, how, target, limit)
    if name == "autocast":
        return Context("autocast", None)
    return Unknown(f"fabric.{name}")


def _engine(machine: Machine, engine: Thing, name: str, call: Call) -> Value | None:
    from fallline.reader.tensors import backward

    if name == "backward":
        backward(machine, machine.settled(call.arg(0, "loss") or Unknown()), call, "deepspeed")
        machine.emit(Kind.OPAQUE, call.node, what="engine.backward")
        return NONE
    if name in {"step", "zero_grad"}:
        machine.emit(Kind.OPAQUE, call.node, what=f"engine.{name}")
        return NONE
    if name in {"train", "eval", "parameters", "micro_batch", "over"}:
        return Unknown(name)
    return None


def _lightning(machine: Machine, module: Thing, name: str, call: Call) -> Value | None:
    """Methods that a LightningModule inherits."""
    from fallline.reader.tensors import backward
    from fallline.reader.torch_api import clip

    if name == "optimizers":
        found = module.attrs.get("_optimizers")
        if found is None:
            found = module.attrs["_optimizers"] = Unknown("optimizers")
        return found
    if name == "lr_schedulers":
        found = module.attrs.get("_schedulers")
        if found is None:
            found = module.attrs["_schedulers"] = Unknown("scheduler")
        return found
    if name == "manual_backward":
        backward(machine, machine.settled(call.arg(0, "loss") or Unknown()), call)
        return NONE
    if name == "clip_gradients":
        return clip(
            machine,
            call,
            "norm",
            call.arg(0, "optimizer"),
            call.arg(None, "gradient_clip_val"),
        )
    if name in {
        "log",
        "log_dict",
        "toggle_optimizer",
        "untoggle_optimizer",
        "save_hyperparameters",
        "print",
    }:
        return NONE
    return None


def super_call(machine: Machine, me: Thing, name: str, call: Call) -> Value:
    """A method of a base class outside the project."""
    if name == "compute_loss":
        model = machine.settled(call.arg(0, "model") or Unknown())
        graph = Tensor(
            True,
            model.sets if isinstance(model, Thing) else frozenset(),
            reduction="mean",
        )
        wanted = call.kwargs.get("return_outputs")
        outputs = Tensor(True)
        return Sequence([graph, outputs]) if isinstance(wanted, Const) and wanted.value else graph
    if name in {"training_step", "train", "optimizer_step", "step", "backward"}:
        machine.emit(Kind.OPAQUE, call.node, what=f"super().{name}")
    return Unknown()
