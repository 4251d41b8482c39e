"""`--help` of every command: what it does, examples that parse, and a word about every option."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest

from fallline.cli.commands import GROUPS, available
from fallline.cli.main import overview

COMMANDS = [name for _, rows in GROUPS for name, _ in rows if name in available()]


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"fallline {name}", exit_on_error=False)
    import_module(f"fallline.cli.{name}").add_arguments(parser)
    return parser


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from actions(inner)


def test_every_command_of_the_overview_is_there() -> None:
    assert [name for _, rows in GROUPS for name, _ in rows] == COMMANDS
    assert all(f"\n  {name} " in overview() for name in COMMANDS)
    assert "exit status" in overview() and "examples:" in overview()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(name: str) -> None:
    text = import_module(f"fallline.cli.{name}").HELP
    examples = re.findall(rf"^  .*?\b(fallline {name}\b.*)$", text, re.MULTILINE)
    assert examples, f"fallline {name} --help shows no example"
    for example in examples:
        command = re.split(r"\s{3,}|\)\"| [|<>] ", example)[0]
        parser_of(name).parse_args(shlex.split(command)[2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option(name: str) -> None:
    for action in actions(parser_of(name)):
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{name}: {action.option_strings or action.dest}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_prints(name: str, fallline: Callable) -> None:
    ran = fallline(name, "--help")
    assert ran.status == 0 and ran.out.startswith("usage: fallline") and not ran.err


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str, fallline: Callable) -> None:
    from fallline import __version__

    assert fallline(flag).out == f"fallline {__version__}\n"


MISSING = {
    "mcp": ("mcp", ["mcp"], "pip install 'fallline[mcp]'"),
    "lsp": ("pygls", ["lsp"], "pip install 'fallline[lsp]'"),
    "measure": ("torch", ["measure", "memory", "train.py"], "pip install 'fallline[torch]'"),
    "equal": ("torch", ["equal", "train.py"], "pip install 'fallline[torch]'"),
    "prove": ("torch", ["prove", "FL101"], "install torch"),
}


@pytest.mark.parametrize("command", MISSING)
def test_a_missing_extra_is_named(
    command: str, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, words, told = MISSING[command]
    block(module, monkeypatch)
    ran = fallline(*words)
    assert ran.status == 2
    assert told in ran.err and "Traceback" not in ran.err


def test_run_without_torch_says_so_and_runs(
    fallline: Callable, project, monkeypatch: pytest.MonkeyPatch
) -> None:
    block("torch", monkeypatch)
    (project / "script.py").write_text("print('done')\n")
    ran = fallline("run", "script.py")
    assert ran.status == 0 and "done" in ran.out
    assert "there is no torch in this Python" in ran.err and "fallline[torch]" in ran.err


def test_the_library_without_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import fallline

    block("torch", monkeypatch)
    for name in [n for n in sys.modules if n.startswith("fallline.engine")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"Stepper needs torch.*pip install 'fallline\[torch\]'"):
        fallline.Stepper  # noqa: B018  the access is what is tested


def test_rule_does_without_rich(fallline: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with_rich = fallline("rule", "FL101").out
    block("rich", monkeypatch)
    without = fallline("rule", "FL101").out
    assert "clip-after-step" in with_rich and "clip-after-step" in without
    assert with_rich != without  # rich draws the page, with the code in colour


def block(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed; and what of ours had already imported it forgets that."""
    for name in [
        n for n in sys.modules if n.split(".")[0] == module or n.startswith(f"fallline.{module}")
    ]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n in sys.modules if n.startswith(("fallline.mcp.", "fallline.lsp."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


def test_a_notebook_is_not_run_as_a_script(project) -> None:
    (project / "train.ipynb").write_text('{"cells": []}')
    # a process of its own: what watches a run ends with it
    command = [sys.executable, "-m", "fallline", "run", "train.ipynb"]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "train.ipynb is a notebook" in ran.stderr and "%%watch" in ran.stderr
    assert "watching" not in ran.stderr


def test_a_missing_verb_is_listed(fallline: Callable) -> None:
    ran = fallline("measure")
    assert ran.status == 2 and "VERB (data, precision, memory," in ran.err
