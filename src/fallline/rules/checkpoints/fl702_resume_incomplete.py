"""FL702 resume-incomplete: state was saved but is not restored."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.checkpoints import (
    Loaded,
    Saved,
    called_functions,
    loads,
    role_of_key,
    saves,
    state_of,
    uses,
)
from fallline.flow.handed import handed_saves, left_unrestored
from fallline.flow.held import loaded_alone
from fallline.flow.never_read import never_read
from fallline.flow.records import a_record, begins_with
from fallline.flow.restores import (
    forgotten_records,
    not_handed_over,
    puts_back,
    replaced_by_its_state,
    updated_in_a_copy,
)
from fallline.flow.resumed import says_resume, starts_over
from fallline.flow.unused import never_given
from fallline.rule import Rule
from fallline.syntax import Module

_STATE = ("optimizer", "scheduler", "scaler", "counter", "rng")
_EVALUATES = re.compile(r"(?i)eval|infer|\btest|_test|predict|sample_only")


class ResumeIncomplete(Rule):
    code = "FL702"
    name = "resume-incomplete"
    severity = Severity.WARNING
    what = "A resume restores only part of what the checkpoint holds: the optimizer, scheduler, scaler or step was saved and is not loaded."
    why = (
        "Training continues with a fresh optimizer (its momentum and step count are gone), with a schedule that starts again, or from epoch 0. Nothing fails; the loss "
        "jumps and the result differs. Measured on a small run: with only the weights loaded the loss is three times as high after the resume; with everything loaded the run "
        "ends on the same bits as an uninterrupted one."
    )
    instead = 'Restore every entry: `optimizer.load_state_dict(checkpoint["optimizer"])`, and the same for scheduler, scaler and step.'
    facts = ("resume-needs-everything",)
    references = ("https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html",)
    tokens = (b"torch.load", b"load")

    wrong = (
        """\
import torch


def train(model, loader, epochs, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if resume:
        checkpoint = torch.load("last.pt")  # FL702
        model.load_state_dict(checkpoint["model"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()},
            "last.pt",
        )
""",
        """\
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.epoch = 0

    def save(self, path):
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "epoch": self.epoch,
                "rng": torch.get_rng_state(),
            },
            path,
        )

    def load(self, path):
        state = torch.load(path)  # FL702
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.epoch = state["epoch"]

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()
        self.scheduler.step()
""",
        """\
import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
resume, iteration = True, 0
if resume:
    checkpoint = torch.load("ckpt.pt")  # FL702
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
while iteration < 100:
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    iteration += 1
    if iteration % 10 == 0:
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "iteration": iteration,
        }
        torch.save(checkpoint, "ckpt.pt")
""",
        # the file is written elsewhere, but the function was given an optimizer
        """\
import torch


def load_checkpoint(path, model, optimizer, scheduler):
    checkpoint = torch.load(path, map_location="cpu")  # FL702
    model.load_state_dict(checkpoint["model"])
    if "optimizer" in checkpoint and "scheduler" in checkpoint:
        scheduler.load_state_dict(checkpoint["scheduler"])
    return checkpoint["epoch"] + 1
""",
    )
    right = (
        # one that is not wanted is put away, and one that is handed on is restored there
        """\
import torch


def load_weights(path, model, optimizer=None):
    del optimizer
    model.load_state_dict(torch.load(path))


def load_all(path, model, optimizer):
    checkpoint = torch.load(path)
    for thing, name in ((model, "model"), (optimizer, "optimizer")):
        thing.load_state_dict(checkpoint[name])
""",
        """\
import torch


def train(model, loader, epochs, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if resume:
        checkpoint = torch.load("last.pt")
        model.load_state_dict(checkpoint["model"])
        if "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["rng"])
        start = checkpoint.get("epoch", -1) + 1
    for epoch in range(start, epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()},
            "last.pt",
        )
""",
        """\
import torch


def train(model, loader, epochs):
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()},
            "last.pt",
        )
    best = torch.load("last.pt")
    print("testing epoch", best["epoch"])
    model.load_state_dict(best["model"])
    return model
""",
        """\
import torch


def restore(checkpoint, model, optimizer):
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])


def train(model, optimizer, loader, epochs, resume, weights):
    start = 0
    if weights:
        pretrained = torch.load(weights)
        model.load_state_dict(pretrained["model"], strict=False)
    if resume:
        state = torch.load(resume)
        restore(state, model, optimizer)
        start = state["epoch"]
    for epoch in range(start, epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()},
            "last.pt",
        )
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if "load" not in module.source.text:
            return
        found = list(self._check_all(module))
        yield from found
        for one in never_read(module):
            at = module.location(one.loaded.call)
            if all(f.at != at for f in found):
                yield self.finding(
                    at,
                    f"The checkpoint holds {', '.join(map(repr, one.lost))}, and nothing reads {'it' if len(one.lost) == 1 else 'them'} again, so training that "
                    f"continues from here begins with fresh state. Load {'it' if len(one.lost) == 1 else 'them'} too.",
                    severity=None if one.goes_on else Severity.INFO,
                    related={"save": module.location(one.saved.call)},
                )

    def _check_all(self, module: Module) -> Iterator[Finding]:
        yield from self._check_lost(module)
        for load, name in left_unrestored(module):
            yield self.finding(
                module.location(load),
                f"`{name}` is handed to this function and not restored in it, so training continues with fresh state. "
                f"Call `{name}.load_state_dict(...)` too.",
            )
        every = self._loads(module)
        resumed = [
            loaded
            for loaded in every
            if not loaded.escapes and _resumes(module, loaded) and not _evaluates(loaded)
        ]
        if not resumed:
            return
        known = _saves_around(module)
        if not known:
            yield from self._check_handed(module, resumed)
        for loaded in resumed:
            saved = _file_of(loaded, known)
            if saved is None or _only_options(saved, loaded) or begins_with(loaded):
                continue
            alone = loaded_alone(module)
            lost = [
                k
                for k, v in saved.entries.items()
                if (role := saved.role(k, v)) in _STATE
                and role not in alone
                and k not in loaded.keys
                and not (isinstance(v, ast.Constant) and v.value is None)
                and not a_record(saved, k, v)
            ]
            # a seed says how the run began, not where it is
            lost = [
                k
                for k in lost
                if "seed" not in k.lower()
                and not _restored_elsewhere(k, loaded, resumed, every)
                and not _left_out_on_purpose(k, loaded)
            ]
            if lost and not _goes_back(loaded, saved, lost):
                yield self.finding(
                    loaded.module.location(loaded.call),
                    f"This resume does not restore {', '.join(map(repr, lost))}, which the checkpoint holds, so training continues with fresh state. Load {'it' if len(lost) == 1 else 'them'} too.",
                    # a run that counts its epochs from 0 again is longer, not different
                    severity=Severity.INFO
                    if _only_counts(saved, loaded, lost) or starts_over(module, saved)
                    else None,
                    related={"save": saved.module.location(saved.call)},
                    saved=sorted(saved.entries),
                    restored=sorted(loaded.keys),
                )

            best = [] if lost else forgotten_records(loaded, saved)
            if best:
                yield self.finding(
                    loaded.module.location(loaded.call),
                    f"This resume does not restore {', '.join(map(repr, best))}, which the checkpoint holds, so the first epoch after it counts as the best "
                    "and replaces a better model. Load it too.",
                    related={"save": saved.module.location(saved.call)},
                )

    def _check_lost(self, module: Module) -> Iterator[Finding]:
        """What is loaded and goes nowhere."""
        for call in updated_in_a_copy(module):
            yield self.finding(
                module.location(call),
                "state_dict() returns a new dict, so updating it leaves the parameters as they were and what was loaded is lost. Call load_state_dict() with it.",
                severity=Severity.ERROR,
            )
        for call, role in not_handed_over(module):
            yield self.finding(
                module.location(call),
                f"This resume is given the optimizer but not the {role}, which it could restore too, so the {role} starts again. Hand it over.",
            )
        for statement, name in replaced_by_its_state(module):
            yield self.finding(
                module.location(statement),
                f"`{name}` is replaced by the dict that its state_dict() was saved as, so there is no {name} to train any more. Call `load_state_dict` with it.",
                severity=Severity.ERROR,
            )

    def _check_handed(self, module: Module, resumed: list[Loaded]) -> Iterator[Finding]:
        """A helper writes the file: it holds what the helper is handed, under names of its own."""
        handed = handed_saves(module)
        restored = {role_of_key(k) for loaded in resumed for k in loaded.keys}
        restored |= loaded_alone(module)
        if not handed or len(resumed) != 1 or "optimizer" not in restored:
            return
        held = set.intersection(*(saved.roles() for saved in handed))
        lost = sorted(held & {"scheduler", "scaler"} - restored)
        last = max(_restores(module, resumed[0]), key=lambda n: n.lineno)
        if lost:
            yield self.finding(
                module.location(last),
                f"This resume does not restore the {' and the '.join(lost)}, which the checkpoint holds, so training continues with fresh state. Load {'it' if len(lost) == 1 else 'them'} too.",
                related={"save": module.location(handed[0].call)},
                restored=sorted(resumed[0].keys),
            )

    def _loads(self, module: Module) -> list[Loaded]:
        """The loads of this file, and of the functions it calls in other files of the project."""
        found = loads(module)
        for _, function, home in called_functions(module):
            if home is not module:
                found += [
                    loaded for loaded in loads(home) if home.function(loaded.call) is function
                ]
        return found


def _restores(module: Module, loaded: Loaded) -> list[ast.expr]:
    """`optimizer.load_state_dict(checkpoint["optimizer"])`: where state is put back, or the load itself."""
    found: list[ast.expr] = [loaded.call]
    for key, node in loaded.keys.items():
        match module.parent(node):
            case ast.Call(ast.Attribute(attr="load_state_dict")) as call if role_of_key(key):
                found.append(call)
    return found


def _saves_around(module: Module) -> list[Saved]:
    found = saves(module)
    for _, function, home in called_functions(module):
        if home is not module:
            found += [s for s in saves(home) if home.function(s.call) is function]
    own = any(
        len(call.args) == 2 for call in module.method_calls("save")
    )  # `driver.save(state, path)`
    if not found and not own and module.project is not None:
        for other in module.project.beside(module, b"torch.save("):
            found += saves(other)
    return [s for s in found if not s.open]


def _file_of(loaded: Loaded, known: list[Saved]) -> Saved | None:
    """The one kind of file that this load reads: it has every key that is asked for. None where several could be meant."""
    fitting = [s for s in known if loaded.keys and loaded.keys.keys() <= s.entries.keys()]
    smallest = min(fitting, key=lambda s: len(s.entries), default=None)
    if smallest is None or any(not smallest.entries.keys() <= s.entries.keys() for s in fitting):
        return None
    return smallest


def _resumes(module: Module, loaded: Loaded) -> bool:
    """Training continues from here: it restores an optimizer or a step, or says so, in a file that trains."""
    roles = {role_of_key(k) for k in loaded.restored()}
    if "optimizer" in roles:
        return True
    counted = "counter" in roles
    # another file may step the optimizer whose state this one saves beside the count
    kept = counted and any("optimizer" in saved.roles() for saved in saves(module))
    if not kept and not any(u.role == "optimizer" for u in uses(module)):
        return False
    if counted:
        return True
    return bool(loaded.keys) and says_resume(loaded) and puts_back(loaded)


_OPTIONS = re.compile(r"(?i)^(opts?|options|args|arguments|cfg|config|hparams|settings)$")


def _only_options(saved: Saved, loaded: Loaded) -> bool:
    """`torch.load(path)["args"]`: the file is asked how the run was set up, and its state is read somewhere else."""
    return all(_OPTIONS.search(k) and state_of(saved.entries[k]) is None for k in loaded.keys)


def _only_counts(saved: Saved, loaded: Loaded, lost: list[str]) -> bool:
    """What is lost says how far the run was, and no schedule is computed from it: there is none, or it has a state of its own."""
    counters = all(saved.role(key, saved.entries[key]) == "counter" for key in lost)
    if counters and any(role_of_key(key) == "scheduler" for key in loaded.restored()):
        return True
    home = saved.module
    stepped = [c.func.value for c in home.method_calls("step") if isinstance(c.func, ast.Attribute)]
    stepped = [of for of in stepped if "sched" in home.segment(of).lower()]
    idle = bool(stepped) and all(never_given(home, of) for of in stepped)
    return counters and (idle or "sched" not in home.source.text)


def _evaluates(loaded: Loaded) -> bool:
    """It is loaded to be evaluated: `if args.evaluate:`, in a branch that does not say that training continues."""
    home = loaded.module
    child: ast.AST = loaded.call
    for up in home.parents(loaded.call):
        if isinstance(up, ast.If) and child in up.body:
            test = home.segment(up.test)
            if _EVALUATES.search(test) and not re.search(r"(?i)resum|train|not ", test):
                return True
        child = up
    return False


def _goes_back(loaded: Loaded, saved: Saved, lost: list[str]) -> bool:
    """The function that saves the best state loads it again when things get worse: the epoch continues where it is."""
    home = loaded.module
    same = saved.module is home and home.function(saved.call) is home.function(loaded.call)
    counters = all(saved.role(key, saved.entries[key]) == "counter" for key in lost)
    return same and counters and saved.call.lineno < loaded.call.lineno


def _left_out_on_purpose(key: str, loaded: Loaded) -> bool:
    """The line that would restore it is commented out."""
    return (
        re.search(rf"^\s*#.*['\"]{re.escape(key)}['\"]", loaded.module.source.text, re.M)
        is not None
    )


def _restored_elsewhere(
    key: str, loaded: Loaded, resumed: list[Loaded], every: list[Loaded]
) -> bool:
    """Another load of the same program takes this entry: a checkpoint may be read in two places."""
    others = (other for other in every if other is not loaded and not _instead(loaded, other))
    return any(key in other.keys and (other in resumed or says_resume(other)) for other in others)


def _instead(loaded: Loaded, other: Loaded) -> bool:
    """The two loads are in different branches of one `if`: only one of them happens."""
    home = loaded.module

    def first(choice: ast.If, call: ast.Call) -> bool:
        return call.lineno <= (choice.body[-1].end_lineno or 0)

    return other.module is home and any(
        isinstance(up, ast.If)
        and up.lineno <= other.call.lineno <= (up.end_lineno or 0)
        and first(up, loaded.call) is not first(up, other.call)
        for up in home.parents(loaded.call)
    )
