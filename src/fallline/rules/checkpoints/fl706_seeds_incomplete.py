"""FL706 seeds-incomplete: a seeding function leaves out a generator that the program draws from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below

_SEEDS = {
    "random.seed": "random",
    "numpy.random.seed": "numpy",
    "torch.manual_seed": "torch",
    "torch.random.manual_seed": "torch",
    "torch.seed": "torch",
}
_ALSO_SEEDING = frozenset({"torch.cuda.manual_seed", "torch.cuda.manual_seed_all", *_SEEDS})
_DO_IT_ALL = re.compile(r"seed_everything|(transformers|accelerate)\..*set_seed|isolate_rng")
_SEEDING_NAME = re.compile(r"seed|determin|reproduc", re.IGNORECASE)
_TORCH_DRAWS = re.compile(
    r"torch\.(rand\w*|normal|bernoulli|multinomial|nn\.[A-Z]\w*|nn\.init\.\w+|utils\.data\.(DataLoader|RandomSampler|random_split))"
)
# Made with a state of their own: the global seed is not theirs.
_OWN_STATE = frozenset(
    {
        "seed",
        "default_rng",
        "RandomState",
        "Generator",
        "Random",
        "SystemRandom",
        "SeedSequence",
        "get_state",
        "set_state",
        "getstate",
        "setstate",
    }
)
_NAMES = {"random": "Python's random", "numpy": "numpy.random", "torch": "torch"}


class SeedsIncomplete(Rule):
    code = "FL706"
    name = "seeds-incomplete"
    severity = Severity.INFO
    what = "A seeding function seeds some of `random`, `numpy` and `torch`, and the program also draws from one that it leaves out."
    why = "Each of the three has its own generator. Whatever draws from the one that is not seeded (shuffling, augmentation, initialisation) differs from run to run."
    instead = "Seed all three: `random.seed(s); numpy.random.seed(s); torch.manual_seed(s)` (which seeds every device too)."
    references = ("https://docs.pytorch.org/docs/stable/notes/randomness.html",)
    tokens = (b"seed",)

    wrong = (
        """\
import random

import numpy as np
import torch


def set_seed(seed):  # FL706
    random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def augment(x):
    return x + np.random.normal(size=x.shape)
""",
        """\
import random

import torch


def fix_seed(seed):  # FL706
    torch.manual_seed(seed)


def pick(items):
    return random.choice(items)
""",
    )
    right = (
        """\
import random

import numpy as np
import torch


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def augment(x):
    return x + np.random.normal(size=x.shape) * random.random()
""",
        """\
import numpy as np
import torch


def set_seed(seed):
    torch.manual_seed(seed)


def split(n):
    rng = np.random.default_rng(0)
    return rng.permutation(n), np.zeros(n)
""",
        """\
import random

import torch
from lightning import seed_everything


def set_torch_seed(seed):
    torch.manual_seed(seed)


seed_everything(1)
print(random.random())
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        seeding = {
            f: None
            for call in module.calls(*_ALSO_SEEDING)
            if (f := _seeding_function(module, call)) is not None
        }
        if not seeding or any(_DO_IT_ALL.search(name) for name in module.imports.values()):
            return
        seeded = {
            _SEEDS[n]
            for call in module.calls(*_SEEDS)
            if (n := module.resolve(call.func)) is not None
        }
        drawn = _drawn(module)
        for function in seeding:
            missing = [k for k in _NAMES if k in drawn and k not in seeded]
            if missing:
                at = module.location(function)
                header = module.source.lines[function.lineno - 1]
                yield self.finding(
                    type(at)(at.path, at.line, at.column, at.line, len(header) + 1, at.function),
                    f"`{function.name}` does not seed {' and '.join(_NAMES[k] for k in missing)}, which the program draws from, so runs differ. Seed it too.",
                    missing=missing,
                    drawn_at={k: str(drawn[k]) for k in missing},
                )


def _seeding_function(module: Module, call: ast.Call) -> ast.FunctionDef | None:
    """The function around this call, where seeding is what it is for: not a worker's, not a temporary seed."""
    function = module.function(call)
    if (
        not isinstance(function, ast.FunctionDef)
        or _SEEDING_NAME.search(function.name) is None
        or "worker" in function.name
    ):
        return None
    return None if below(function, ast.Yield) else function


def _drawn(module: Module) -> dict[str, object]:
    """Where the global generators are drawn from, in this file and in the project's files that it imports."""
    found: dict[str, object] = {}
    for home in [module, *_imported(module)]:
        for call in home.all(ast.Call):
            name = home.resolve(call.func)
            if name is None or name.rpartition(".")[2] in _OWN_STATE:
                continue
            kind = None
            if name.startswith("random.") and name.count(".") == 1:
                kind = "random"
            elif name.startswith("numpy.random."):
                kind = "numpy"
            elif _TORCH_DRAWS.fullmatch(name):
                kind = "torch"
            if kind is not None:
                found.setdefault(kind, home.location(call))
    return found


def _imported(module: Module) -> list[Module]:
    if module.project is None:
        return []
    homes: dict[str, Module] = {}
    for dotted in module.imports.values():
        if dotted.partition(".")[0] in {"torch", "numpy", "random", "os", "sys"}:
            continue
        for name in (dotted, dotted.rpartition(".")[0]):
            home = module.project.find_module(name, module) if name else None
            if home is not None and home is not module:
                homes[home.path] = home
    return list(homes.values())
