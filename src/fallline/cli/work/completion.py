"""What `fallline completion` does."""

from __future__ import annotations

import argparse
from importlib import import_module

from fallline.cli.commands import GROUPS, available
from fallline.rules import all_rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["run"]

# Options and arguments that take the codes of rules, by command; everything else without choices takes files.
_CODES = frozenset({"check --select", "check --ignore", "rule", "prove"})


def run(args: argparse.Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](list(_commands())), end="")
    return 0


class _Option:
    """One option: its names, what it means, and the values it takes (None: it takes none)."""

    def __init__(self, action: argparse.Action, command: str) -> None:
        self.names = action.option_strings
        about = (action.help or "") % {"default": action.default, "prog": "fallline"}
        self.about = " ".join(about.split())
        self.values: list[str] | None = None
        if action.nargs != 0:
            codes = any(f"{command} {name}" in _CODES for name in self.names)
            self.values = _codes() if codes else [str(value) for value in action.choices or ()]


class _Command:
    """One command: `check`, or `measure memory`; the words that may follow, and its options."""

    def __init__(self, name: str, about: str, parser: argparse.ArgumentParser) -> None:
        self.name = name
        self.about = about
        self.inner: dict[str, argparse.ArgumentParser] = {}
        self.words: list[str] = _codes() if name in _CODES else []
        self.options: list[_Option] = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                self.inner = dict(action.choices)
                self.words = list(self.inner)
            elif action.option_strings:
                self.options.append(_Option(action, name))
            elif action.choices:
                self.words = [str(choice) for choice in action.choices]

    @property
    def flags(self) -> list[str]:
        return [name for option in self.options for name in option.names]


def _commands() -> Iterator[_Command]:
    have = available()
    for name, about in (row for _, rows in GROUPS for row in rows if row[0] in have):
        module = import_module(f"fallline.cli.{name}")
        parser = argparse.ArgumentParser(prog=f"fallline {name}")
        module.add_arguments(parser)
        command = _Command(name, about, parser)
        yield command
        for word, inner in command.inner.items():
            yield _Command(
                f"{name} {word}", (inner.description or word).strip().split("\n")[0], inner
            )


def _codes() -> list[str]:
    return [word for rule in all_rules() for word in (rule.code, rule.name)]


# -- bash ------------------------------------------------------------------------------------------------------------


def _bash(commands: list[_Command]) -> str:
    lines = [
        "_fallline() {",
        '    local cur="${COMP_WORDS[COMP_CWORD]}" command="" word index',
        "    COMPREPLY=()",
        "    for ((index = 1; index < COMP_CWORD; index++)); do",
        '        word="${COMP_WORDS[index]}"',
        '        case "$command $word" in',
        *(f'            "{_parent(c)}") command="{c.name}" ;;' for c in commands),
        "        esac",
        "    done",
        '    case "$command ${COMP_WORDS[COMP_CWORD-1]}" in',
    ]
    for command in commands:
        for option in command.options:
            if option.values is not None:
                names = "|".join(f'"{command.name} {name}"' for name in option.names)
                lines.append(f"        {names}) {_offer(option.values)} return ;;")
    lines += ["    esac", '    case "$command" in', f'        "") {_offer(_first(commands))} ;;']
    for command in commands:
        lines.append(f'        "{command.name}")')
        lines.append(
            f"            if [[ $cur == -* ]]; then {_offer(command.flags)} else {_offer(command.words)} fi ;;"
        )
    # where we offer nothing, bash completes files
    return "\n".join([*lines, "    esac", "}", "complete -o default -F _fallline fallline", ""])


def _parent(command: _Command) -> str:
    """What has been recognised so far, and the word that makes it this command."""
    before, _, word = command.name.rpartition(" ")
    return f"{before} {word}"


def _first(commands: list[_Command]) -> list[str]:
    return [*(c.name for c in commands if " " not in c.name), "--help", "--version"]


def _offer(words: list[str]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$cur"));' if words else ":;"


# -- zsh -------------------------------------------------------------------------------------------------------------


def _zsh(commands: list[_Command]) -> str:
    top = [c for c in commands if " " not in c.name]
    lines = ["#compdef fallline", "_fallline() {", "    local -a commands", "    commands=("]
    lines += [f"        {_quoted(f'{c.name}:{c.about}')}" for c in top]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then _describe command commands; return; fi",
        '    local name="$words[2]"',
        '    case "$words[2] $words[3]" in',
        *(
            f'        "{c.name}") name="{c.name}"; shift words; (( CURRENT-- )) ;;'
            for c in commands
            if " " in c.name
        ),
        "    esac",
        "    shift words; (( CURRENT-- ))",
        '    case "$name" in',
    ]
    for command in commands:
        words = f"({' '.join(command.words)})" if command.words else "_files"
        arguments = [_zsh_option(name, o) for o in command.options for name in o.names]
        arguments.append(_quoted(f"*:argument:{words}"))
        lines.append(f'        "{command.name}") _arguments {" ".join(arguments)} ;;')
    lines += ["    esac", "}"]
    # as a file in $fpath the function is called; sourced, it is registered
    lines += [
        'if [[ "$funcstack[1]" == "_fallline" ]]; then _fallline "$@"; else compdef _fallline fallline; fi'
    ]
    return "\n".join([*lines, ""])


def _zsh_option(name: str, option: _Option) -> str:
    about = option.about
    for character in "\\[]:":
        about = about.replace(character, f"\\{character}")
    if option.values is None:
        return _quoted(f"{name}[{about}]")
    values = f"({' '.join(option.values)})" if option.values else "_files"
    return _quoted(f"{name}[{about}]:value:{values}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish ------------------------------------------------------------------------------------------------------------


def _fish(commands: list[_Command]) -> str:
    top = " ".join(c.name for c in commands if " " not in c.name)
    lines = []
    for command in commands:
        before, _, word = command.name.rpartition(" ")
        when = (
            f"__fish_seen_subcommand_from {before}"
            if before
            else f"not __fish_seen_subcommand_from {top}"
        )
        lines.append(
            f"complete -c fallline -n {_fished(when)} -f -a {word} -d {_fished(command.about)}"
        )
        inside = f"__fish_seen_subcommand_from {word}"
        if command.words and not command.inner:
            lines.append(
                f"complete -c fallline -n {_fished(inside)} -f -a {_fished(' '.join(command.words))}"
            )
        for option in command.options:
            names = " ".join(
                f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names
            )
            values = "" if option.values is None else " -r"
            if option.values:
                values = f" -x -a {_fished(' '.join(option.values))}"
            lines.append(
                f"complete -c fallline -n {_fished(inside)} {names}{values} -d {_fished(option.about)}"
            )
    return "\n".join([*lines, ""])


def _fished(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
