"""FL704 load-unsafe: torch.load(..., weights_only=False) on a path from outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below

_DOWNLOADS = re.compile(
    r"(hf_hub_download|snapshot_download|cached_download|urlretrieve|download_url(_to_file)?|wget\.download|gdown\.\w+|load_state_dict_from_url|cached_file)$"
)
_ARGUMENTS = re.compile(r"^(args?|opts?|options?|flags?|FLAGS|parsed|cli_args|namespace|hparams)$")
_COMMANDS = re.compile(r"command|callback|route|post|get|endpoint")
_DEPTH = 3


class LoadUnsafe(Rule):
    code = "FL704"
    name = "load-unsafe"
    severity = Severity.INFO
    what = "`torch.load(..., weights_only=False)` reads a file whose path comes from outside: the command line, the environment, a download."
    why = (
        "A pickle can run any code while it is loaded, so with `weights_only=False` whoever made the file can run code on this machine. Checkpoints are shared and "
        "downloaded more freely than programs."
    )
    instead = "Leave `weights_only` at its default (True since torch 2.6) and allow what else is needed with `torch.serialization.add_safe_globals`, or use safetensors."
    fix_safety = (
        "Sets weights_only=True; a file that holds other objects then raises and names them."
    )
    references = (
        "https://docs.pytorch.org/docs/stable/notes/serialization.html#weights-only-security",
    )
    tokens = (b"weights_only",)

    wrong = (
        """\
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint")
args = parser.parse_args()
state = torch.load(args.checkpoint, map_location="cpu", weights_only=False)  # FL704
""",
        """\
import torch
from huggingface_hub import hf_hub_download


def fetch(name):
    path = hf_hub_download(name, "pytorch_model.bin")
    return torch.load(path, weights_only=False)  # FL704
""",
        """\
import sys

import torch


def load(path):
    return torch.load(path, weights_only=False)  # FL704


if __name__ == "__main__":
    print(load(sys.argv[1]).keys())
""",
    )
    right = (
        """\
import sys

import torch

state = torch.load(sys.argv[1], weights_only=True)
other = torch.load(sys.argv[1])
""",
        """\
import torch

torch.save({"step": 1}, "own.pt")
state = torch.load("own.pt", weights_only=False)
""",
        """\
import io

import torch


def roundtrip(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls("torch.load", "torch.hub.load_state_dict_from_url"):
            if module.constant(Module.argument(call, None, "weights_only")) is not False:
                continue
            path = Module.argument(call, 0, "f", "url")
            if path is not None and module.segment(path) in _own_files(module):
                continue
            origin = (
                "a download"
                if module.resolve(call.func) != "torch.load"
                else _origin(module, path, _DEPTH)
                if path is not None
                else None
            )
            if origin is not None:
                yield self.finding(
                    module.location(call),
                    f"torch.load reads a path from {origin} with `weights_only=False`, so whoever made the file can run code on this machine. Leave `weights_only` at its default.",
                    origin=origin,
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        value = Module.argument(call, None, "weights_only") if call is not None else None
        if not isinstance(value, ast.Constant):
            return None
        return Fix("Load weights only", (Editor(module).replace(value, "True"),), safe=False)


def _own_files(module: Module) -> set[str]:
    """The paths, as written, that this file saves to: what it made itself it may trust."""
    paths = (Module.argument(call, 1, "f") for call in module.calls("torch.save"))
    return {module.segment(path) for path in paths if path is not None}


def _origin(module: Module, node: ast.expr, depth: int) -> str | None:
    """In words, where outside this path comes from; None where it cannot be seen to."""
    if depth == 0:
        return None
    for part in ast.walk(module.value(node)):
        name = module.resolve(part) if isinstance(part, ast.Attribute | ast.Name) else None
        if name == "sys.argv":
            return "the command line"
        if (name is not None and name.startswith("os.environ")) or name == "os.getenv":
            return "the environment"
        if (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and _ARGUMENTS.match(part.value.id)
        ):
            return "the command line"
        if isinstance(part, ast.Call):
            callee = name_of(module, part.func)
            if _DOWNLOADS.search(callee):
                return "a download"
            if callee == "input":
                return "the user"
            helper = module.functions.get(callee)
            if helper is not None and any(
                _DOWNLOADS.search(name_of(module, c.func)) for c in below(helper, ast.Call)
            ):
                return "a download"
        if isinstance(part, ast.Name):
            found = _origin_of_parameter(module, part, depth)
            if found is None and module.value(part) is not part:
                found = _origin(module, module.value(part), depth - 1)
            if found is not None:
                return found
    return None


def name_of(module: Module, function: ast.expr) -> str:
    return module.resolve(function) or (
        module.segment(function) if isinstance(function, ast.Name | ast.Attribute) else ""
    )


def _origin_of_parameter(module: Module, node: ast.Name, depth: int) -> str | None:
    """A parameter comes from outside where a caller in this file passes such a path, or where the function is a command."""
    function = module.function(node)
    if function is None:
        return None
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    if node.id not in names or node.id in {"self", "cls"}:
        return None
    if any(
        _COMMANDS.search(module.segment(d).partition("(")[0].rpartition(".")[2])
        for d in function.decorator_list
    ):
        return "the command line"
    method = bool(names) and names[0] in {"self", "cls"}
    for call in module.all(ast.Call):
        called = (
            call.func.attr
            if isinstance(call.func, ast.Attribute)
            else call.func.id
            if isinstance(call.func, ast.Name)
            else None
        )
        if called != function.name or module.function(call) is function:
            continue
        passed = Module.argument(call, names.index(node.id) - (1 if method else 0), node.id)
        found = _origin(module, passed, depth - 1) if passed is not None else None
        if found is not None:
            return found
    return None
