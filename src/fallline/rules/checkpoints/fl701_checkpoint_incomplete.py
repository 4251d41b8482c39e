"""FL701 checkpoint-incomplete: a file meant for resuming leaves out state that the program has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.checkpoints import (
    Saved,
    Used,
    called_functions,
    loads,
    only_stateless,
    role_of_key,
    saves,
    uses,
)
from fallline.flow.continued import saved_without_optimizer
from fallline.flow.handed import handed_saves, keepers
from fallline.flow.held import (
    concerns,
    handed_over,
    held,
    left_beside,
    saved_alone,
    uncalled,
)
from fallline.flow.resumed import has_weights, only_evaluated, restored_somewhere, resumed
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import written

_CONTINUES = re.compile(r"resum|restor", re.IGNORECASE)
_NAMES = {"optimizer": "the optimizer", "scheduler": "the scheduler", "scaler": "the GradScaler"}
_OF_APEX = "the loss scale that apex's amp keeps"
# These save everything by themselves; a torch.save next to them is for something else.
_COMPLETE = (
    b"save_state(",
    b"torch.distributed.checkpoint",
    b"TorchCheckpointEngine",
    b"fallline.save_checkpoint",
)


class CheckpointIncomplete(Rule):
    code = "FL701"
    name = "checkpoint-incomplete"
    severity = Severity.WARNING
    what = "A checkpoint that is meant for resuming leaves out the optimizer, the scheduler, the GradScaler or the step that the program uses."
    why = (
        "A run resumed from it is not the same run. Measured on a small run interrupted halfway, the final weights differ by 16 % without the optimizer's state, by 18 % without the "
        "scheduler's and by 2 % without the random state; with all of it they are bit for bit the same."
    )
    instead = "Save the `state_dict()` of model, optimizer, scheduler and scaler with the epoch or step (and the random states), or use `fallline.save_checkpoint`."
    facts = ("resume-needs-everything",)
    references = (
        "https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html#saving-loading-a-general-checkpoint-for-inference-and-or-resuming-training",
    )
    tokens = (b"torch", b"save")

    wrong = (
        """\
import torch


def train(model, loader, epochs, resume=None):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    start = 0
    if resume is not None:
        state = torch.load(resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"] + 1
    for epoch in range(start, epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")  # FL701
""",
        """\
import torch


def save_checkpoint(state, path):
    torch.save(state, path)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x in loader:
                self.optimizer.zero_grad()
                self.model(x).mean().backward()
                self.optimizer.step()
            save_checkpoint({"epoch": epoch + 1, "state_dict": self.model.state_dict()}, "last.pt")  # FL701
""",
        """\
import torch


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state["step"] = step
        torch.save(state, "last.pt")  # FL701
""",
    )
    right = (
        """\
import torch


def train(model, loader, epochs):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if scheduler is not None:
            state["scheduler"] = scheduler.state_dict()
        state["rng"] = torch.get_rng_state()
        torch.save(state, "last.pt")
""",
        """\
import torch


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "weights.pt")
    torch.save({"model": model.state_dict(), "classes": 10}, "export.pt")
""",
        # the schedule is played again after a load
        """\
import torch


def train(model, loader, per_epoch, start):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for _ in range(start * per_epoch):
        scheduler.step()
    for epoch in range(start, 9):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            scheduler.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "rng": torch.get_rng_state()}
        torch.save(state, f"{epoch}.pt")
""",
        """\
import torch


def export(checkpoint, path):
    torch.save({"epoch": checkpoint["epoch"], "state_dict": checkpoint["state_dict"]}, path)


def train(model, loader, extra):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save({"epoch": epoch, "model": model.state_dict(), **extra}, "last.pt")
""",
        """\
import torch


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save({"epoch": epoch, "model": model.state_dict()}, "best.pt")
        torch.save({"optimizer": optimizer.state_dict(), "epoch": epoch, "rng": torch.get_rng_state()}, "state.pt")
""",
        # two classes, each with a `save` of its own: the other one's second optimizer is not this one's
        """\
import torch
import wandb


class GanTrainer:
    def step(self):
        for name, discriminator_optimizer in self.discriminator_optimizers():
            discriminator_optimizer.step()
        self.optimizer.step()
        self.save("gan.pt")
        wandb.save("gan.pt")

    def save(self, path):
        optimizers = {name: o.state_dict() for name, o in self.discriminator_optimizers()}
        torch.save({"optimizer": self.optimizer.state_dict(), "discriminators": optimizers}, path)


class Trainer:
    def step(self):
        self.optimizer.step()
        self.save("last.pt")

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
""",
        """\
import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(10):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    torch.save({"model": model.state_dict(), "epoch": epoch}, f"model-{epoch}.pt")
    torch.save(optimizer.state_dict(), f"optimizer-{epoch}.pt")
    torch.save(scheduler.state_dict(), f"scheduler-{epoch}.pt")
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        raw = module.source.text.encode()
        yield from self._check_keepers(module)
        for state in uncalled(module):
            yield self.finding(
                module.location(state),
                f"`{module.segment(state)}` is not called, so the checkpoint holds a method and not the state: nothing can be restored from it. Write `{module.segment(state)}()`.",
                missing=[role_of_key(last_name(state.value)) or "the weights"],
            )
        if b"save" not in raw or any(t in raw and b"def " + t not in raw for t in _COMPLETE):
            return
        for save, load in saved_without_optimizer(module):
            yield self.finding(
                module.location(save),
                "The next start continues from this file, which holds the weights alone: the optimizer begins anew with every start. Save its state beside them.",
                severity=Severity.INFO,
                related={"load": module.location(load)},
                missing=["optimizer"],
            )
        alone = saved_alone(module)
        used = [
            u for u in (*uses(module), *held(module), *handed_over(module)) if u.name not in alone
        ]
        if only_stateless(module):
            used = [u for u in used if u.role != "optimizer"]
        if not used:
            return
        yield from self._check_files(module, used)
        found = saves(module)
        for _, function, home in called_functions(module):
            if home is not module:
                found += [s for s in saves(home) if home.function(s.call) is function]
        found = [s for s in found if not _first_weights(s)]
        told: set[tuple[str, ...]] = set()
        for saved in found:
            for finding in self._check_saved(module, saved, used, found):
                missing = tuple(finding.evidence["missing"])
                # best, last and interrupted: one omission, worth one warning
                yield replace(finding, severity=Severity.INFO) if missing in told else finding
                told.add(missing)
        seen = {id(s.call) for s in found}
        if not any({"optimizer", "counter"} & s.roles() for s in found):
            handed = [s for s in handed_saves(module) if id(s.call) not in seen]
            yield from self._check_handed(module, handed, used)

    def _check_keepers(self, module: Module) -> Iterator[Finding]:
        """An object that saves what it was built with, and was not given the optimizer or the scheduler."""
        for keeper in keepers(module):
            lost = [r for r in ("optimizer", "scheduler") if r not in keeper.roles]
            lost = [r for r in lost if _has_beside(module, keeper.call, r)]
            if lost:
                part = _listed([_NAMES[r] for r in lost])
                home, place = keeper.place
                yield self.finding(
                    home.location(place),
                    f"This checkpointer is not given {part}, so a resumed run begins there from nothing. Hand it over with the model.",
                    missing=lost,
                )

    def _check_files(self, module: Module, used: list[Used]) -> Iterator[Finding]:
        """Each state in a file of its own, and one of them in none."""
        for call, one in left_beside(module, used):
            part = _name(one)
            yield self.finding(
                module.location(call),
                f"The optimizer's state is saved in a file of its own and {part} is saved in none, so a resumed run begins there from nothing. Save its state too.",
                severity=None if _CONTINUES.search(module.source.text) else Severity.INFO,
                missing=[part],
            )

    def _check_handed(
        self, module: Module, handed: list[Saved], used: list[Used]
    ) -> Iterator[Finding]:
        """A helper writes the file: it holds what the helper is handed."""
        if any(s.open for s in handed):
            return
        for one in used:
            concerned = [s for s in handed if concerns(module, s, one)]
            if not concerned or any(s.holds(one.name, one.role) for s in handed):
                continue
            fleeting = _made_for_one_epoch(module, one)
            part = _name(one)
            continued = _CONTINUES.search(module.source.text)
            # what is made anew in every epoch has nothing to go on with: a warm-up of the first one
            matters = continued and not fleeting and not _only_a_scale([part])
            yield self.finding(
                module.location(fleeting or concerned[0].call),
                f"{part[0].upper()}{part[1:]} is created again in every epoch and is in no checkpoint, so its state is lost each time. Make it once, and save its state."
                if fleeting
                else f"This checkpoint is meant for resuming but leaves out {part}, which starts from nothing after a resume. Save its state too.",
                severity=None if matters else Severity.INFO,
                missing=[part],
            )

    def _check_saved(
        self, module: Module, saved: Saved, used: list[Used], every: list[Saved]
    ) -> Iterator[Finding]:
        roles = saved.roles()
        if saved.open or not _for_resuming(module, saved, roles):
            return
        missing = [
            u
            for u in used
            if not any(s.holds(u.name, u.role) for s in every) and concerns(module, saved, u)
        ]
        missing_parts = list(dict.fromkeys(_name(u) for u in missing))
        if (
            "optimizer" in roles
            and not any("counter" in s.roles() for s in every)
            and not _numbered(saved)
        ):
            missing_parts.append("the epoch or step")
        if missing_parts:
            at = saved.module.location(saved.call)
            yield self.finding(
                at,
                f"This checkpoint is meant for resuming but leaves out {_listed(missing_parts)}, which "
                + (
                    "start from nothing after a resume. Save the state of each."
                    if len(missing_parts) > 1
                    else "starts from nothing after a resume. Save its state too."
                ),
                severity=None if _matters(module, saved, used, missing_parts) else Severity.INFO,
                missing=missing_parts,
            )
        elif {"optimizer", "counter"} <= roles and not any("rng" in s.roles() for s in every):
            at = saved.module.location(saved.call)
            yield self.finding(
                at,
                "This checkpoint leaves out the random states, so shuffling and dropout take a different path after a resume. Save them, or use `fallline.save_checkpoint`.",
                severity=Severity.INFO,
                missing=["the random states"],
            )


def _name(used: Used) -> str:
    return _OF_APEX if (used.role, used.name) == ("scaler", "amp") else _NAMES[used.role]


def _for_resuming(module: Module, saved: Saved, roles: set[str]) -> bool:
    """Saved with an optimizer, an epoch or a step, or loaded by code that restores one."""
    for key, value in saved.entries.items():
        if saved.role(key, value) == "optimizer" and isinstance(value, ast.Constant):
            return False  # "optimizer": None is how an export says that it is one
        for node in ast.walk(value):
            match node:
                case ast.Subscript(slice=ast.Constant(str())):
                    return False  # copied from another checkpoint: a converter
    if "optimizer" not in roles and not has_weights(saved):
        return False
    if roles & {"optimizer", "counter"}:
        return True
    for keys in (loaded.restored() for loaded in loads(module)):
        resumed = {role_of_key(k) for k in keys} & {"optimizer", "counter"}
        if resumed and keys.keys() & saved.entries.keys():
            return True
    return False


def _matters(module: Module, saved: Saved, used: list[Used], missing: list[str]) -> bool:
    """Somebody continues from this file, and what it lacks is not only a loss scale, which is found again in a few updates."""
    if _only_a_scale(missing) or set(missing) <= {_name(u) for u in used if not u.sure}:
        return False
    if _at_the_end(module, saved, used):
        return False
    if resumed(module, saved):
        return True
    if "optimizer" not in saved.roles() or only_evaluated(module, saved):
        return False
    return restored_somewhere(module)


def _only_a_scale(missing: list[str]) -> bool:
    return missing in ([_NAMES["scaler"]], [_OF_APEX])


def _has_beside(module: Module, call: ast.Call, role: str) -> bool:
    """The function that builds the checkpointer makes such an object too, and it is not told otherwise by a hook."""
    scope = module.function(call)
    made = [a for a in module.all(ast.Assign) if module.function(a) is scope]
    named = [
        last_name(a.targets[0])
        for a in made
        if isinstance(a.value, ast.Call) and isinstance(a.targets[0], ast.Name)
    ]
    if role == "scheduler":
        named = [u.name for u in uses(module) if u.role == role and u.name in named]
    return any(role_of_key(name) == role for name in named)


def _made_for_one_epoch(module: Module, used: Used) -> ast.Call | None:
    """Where a function that runs once an epoch makes the object."""
    home = module.function(used.node)
    if used.is_attribute or home is None or "epoch" not in {a.arg for a in home.args.args}:
        return None
    match [module.parent(b) for b in module.bindings(used.name, home)]:
        case [ast.Assign(value=ast.Call() as made)]:
            return made
    return None


def _at_the_end(module: Module, saved: Saved, used: list[Used]) -> bool:
    """Saved once, after the loop that trains: the run is finished."""
    if saved.module is not module or module.in_loop(saved.call):
        return False
    home = module.function(saved.call)
    if home is not None and any(a.arg.endswith("epoch") for a in home.args.args):
        return False  # the end of an epoch
    stepping = [u.node for u in used if module.function(u.node) is home and module.in_loop(u.node)]
    return any(node.lineno < saved.call.lineno for node in stepping if isinstance(node, ast.expr))


_EPOCHS = re.compile(r"(?i)epoch|step|iter")


def _first_weights(saved: Saved) -> bool:
    """Saved before the loop over the epochs begins: the weights that a run starts from, and nothing to continue from."""
    module, call = saved.module, saved.call
    if module.in_loop(call):
        return False
    home = module.function(call)
    loops = [n for n in module.all(ast.For) if module.function(n) is home and not module.in_loop(n)]
    epochs = [n for n in loops if _EPOCHS.search(written(n.target))]
    return bool(epochs) and all(call.lineno < loop.lineno for loop in epochs)


def _numbered(saved: Saved) -> bool:
    """The file name, or the loop that is not there, says which step it is."""
    path = saved.path
    if path is None or not saved.module.in_loop(saved.call):
        return True
    made = saved.module.value(path)
    return not isinstance(made, ast.Constant)


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
