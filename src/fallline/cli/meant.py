"""What somebody meant who typed something that is not a command."""

from __future__ import annotations

import os

from fallline.cli.commands import available

__all__ = ["meant"]

# What other tools call it.
_WORDS = {
    "check": "lint scan analyze analyse inspect review audit verify validate read static flake test sweep look find",
    "check --fix": "fix repair autofix correct format patch",
    "run": "watch train exec execute launch start monitor trace record torchrun python debug live go",
    "ask": "question why how what help-me assist advise advice answer chat query triage diagnose doctor",
    "measure": "profile bench benchmark memory time speed mem gpu timing perf",
    "report": "show html view open page results dashboard ui plot summary runs",
    "diff": "compare difference differences changed versus vs cmp",
    "rule": "explain rules docs doc describe info codes code list man",
    "prove": "experiment evidence proof reproduce",
    "demo": "example examples tutorial try init quickstart tour",
    "lsp": "server language-server editor vscode",
    "mcp": "agent agents serve",
    "skills": "skill",
    "eval": "grade evaluate score",
    "completion": "completions complete bash zsh fish autocomplete",
    "--version": "version -v ver",
    "--help": "-? /? usage commands",
}


_OPTIONS = frozenset({"--fix", "--diff", "--explain", "--select", "--ignore"})  # of check


def meant(arguments: list[str]) -> str:
    """The command line that was probably meant; empty where nothing comes to mind."""
    typed, rest = arguments[0], arguments[1:]
    if typed in _OPTIONS:
        return _line("check", [*([] if _paths(rest) else ["."]), typed, *rest])
    word = typed.lower().strip("-_ ").replace("_", "-")
    if word in available():
        return _line(word, rest)
    for command, words in _WORDS.items():
        if word in words.split() or typed in words.split():
            return _line(command, rest)
    return _by_shape(typed, rest) or _by_spelling(word, rest)


def _by_shape(typed: str, rest: list[str]) -> str:
    """A file, a folder, a rule's code or a question, whose command was left out."""
    if typed.upper().startswith("FL") and typed[2:].isdigit():
        return _line("rule", [typed.upper(), *rest])
    if os.path.isdir(typed) and any(n.startswith("rank") for n in os.listdir(typed)):
        return _line("report", [typed, *rest])
    if typed.endswith(".py") and rest:
        return _line("run", [typed, *rest])
    if typed.endswith((".py", ".ipynb")) or os.path.exists(typed):
        return _line("check", [typed, *rest])
    if " " in typed.strip() or typed.endswith("?"):
        return _line("ask", [typed, *rest])
    return ""


def _paths(rest: list[str]) -> list[str]:
    return [word for word in rest if os.path.exists(word)]


def _by_spelling(word: str, rest: list[str]) -> str:
    from difflib import get_close_matches  # only for those who mistyped

    known = {w: command for command, words in _WORDS.items() for w in words.split()}
    known |= {command: command for command in available()}
    near = get_close_matches(word, sorted(available()), 1) or get_close_matches(word, known, 1)
    return _line(known[near[0]], rest) if near else ""


def _line(command: str, rest: list[str]) -> str:
    words = [f'"{word}"' if " " in word or not word else word for word in rest[:6]]
    return " ".join(["fallline", command, *words])
