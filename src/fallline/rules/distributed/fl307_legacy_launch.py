"""FL307: torch.distributed.launch and --local_rank instead of torchrun and its environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_OPTIONS = frozenset({"--local_rank", "--local-rank"})
_LAUNCH = re.compile(r"-m\s+torch\.distributed\.launch\b|^torch\.distributed\.launch$")


class LegacyLaunch(Rule):
    code = "FL307"
    name = "legacy-launch"
    severity = Severity.INFO
    what = """\
The script takes `--local_rank` from its command line, or starts `torch.distributed.launch`."""
    why = """\
`torch.distributed.launch` is deprecated. `torchrun` passes the rank in the environment, so a script that only knows `--local_rank` trains every process on the default device."""
    instead = """\
Read what torchrun sets, and start with torchrun.

```python
local_rank = int(os.environ["LOCAL_RANK"])
```
```
torchrun --nproc-per-node 8 train.py
```"""
    fix_safety = "The option stays for those who pass it; its default becomes what torchrun sets."
    facts = ("distributed-setup",)
    tokens = (
        b"local_rank",
        b"local-rank",
        b"torch.distributed.launch",
        b"torch.distributed import launch",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if not _reads_environment(module):
            for call in module.method_calls("add_argument"):
                if any(module.constant(a) in _OPTIONS for a in call.args):
                    yield self.finding(
                        module.location(call),
                        'The local rank is read from the command line, where torch.distributed.launch put it, but torchrun does not pass it. Read os.environ["LOCAL_RANK"].',
                    )
        for node in _launch_imports(module):
            yield self.finding(
                module.location(node),
                "torch.distributed.launch is deprecated and will be removed. Use torchrun.",
            )
        for text in module.all(ast.Constant):
            if isinstance(text.value, str) and _LAUNCH.search(text.value) and _is_run(module, text):
                yield self.finding(
                    module.location(text),
                    "torch.distributed.launch is deprecated and will be removed. Start with torchrun.",
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        spelled = module.spelling("os.environ")
        default = module.argument(call, None, "default") if call is not None else None
        if (
            call is None
            or spelled is None
            or not isinstance(module.number(default), float)
            or default is None
        ):
            return None
        value = f'int({spelled}.get("LOCAL_RANK", {module.segment(default)}))'
        return Fix(
            "Read the local rank that torchrun sets", (Editor(module).replace(default, value),)
        )

    wrong = (
        """\
import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)  # FL307
args = parser.parse_args()
print(os.getpid(), torch.device("cuda", max(0, args.local_rank)))
""",
        """\
import subprocess
import sys

import torch

command = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node", "2", "train.py"]  # FL307
print(torch.__version__)
if torch.cuda.device_count() > 1:
    subprocess.run(command, check=True)
""",
    )
    right = (
        """\
import os

import torch

local_rank = int(os.environ.get("LOCAL_RANK", 0))
print(torch.device("cuda", local_rank))
""",
        # both ways are served
        """\
import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
if "LOCAL_RANK" in os.environ:
    args.local_rank = int(os.environ["LOCAL_RANK"])
print(torch.device("cuda", args.local_rank))
""",
        # DeepSpeed's launcher still passes the option
        """\
import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
print(torch.cuda.is_available())
""",
        # only spoken of
        '''\
"""Was started with python -m torch.distributed.launch train.py, now with torchrun."""

import torch

print(torch.__version__)
''',
    )


def _launch_imports(module: Module) -> Iterator[ast.stmt]:
    wanted = "torch.distributed.launch"
    for plain in module.all(ast.Import):
        if any(alias.name == wanted for alias in plain.names):
            yield plain
    for chosen in module.all(ast.ImportFrom):
        if chosen.module == wanted or any(
            f"{chosen.module}.{a.name}" == wanted for a in chosen.names
        ):
            yield chosen


def _reads_environment(module: Module) -> bool:
    uses = {c.value for c in module.all(ast.Constant) if isinstance(c.value, str)}
    return "LOCAL_RANK" in uses or any(
        n.partition(".")[0] == "deepspeed" for n in module.imports.values()
    )


def _is_run(module: Module, text: ast.Constant) -> bool:
    """Part of a command: an argument or an item of a list, not a docstring, a message or a help text."""
    up = module.parent(text)
    if isinstance(up, ast.List | ast.Tuple):
        return True
    name = module.resolve(up.func) if isinstance(up, ast.Call) else None
    return name in {
        "os.system",
        "os.popen",
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.Popen",
    }
