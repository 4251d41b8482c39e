"""The command's frame: help, version, unknown commands."""

from __future__ import annotations

from collections.abc import Callable

from fallline._version import __version__
from fallline.cli.commands import available


def test_help_shows_the_doors_first(fallline: Callable) -> None:
    ran = fallline("--help")
    assert ran.status == 0
    assert ran.out.index("check") < ran.out.index("rule")


def test_each_command_has_help(fallline: Callable) -> None:
    for command in available():
        ran = fallline(command, "--help")
        assert ran.status == 0 and f"fallline {command}" in ran.out


def test_version(fallline: Callable) -> None:
    assert fallline("--version").out == f"fallline {__version__}\n"


def test_an_unknown_command(fallline: Callable) -> None:
    ran = fallline("chek")
    assert ran.status == 2 and "chek" in ran.err


def test_no_command(fallline: Callable) -> None:
    assert fallline().status == 2


def test_a_slip_of_the_finger_is_guessed(fallline: Callable) -> None:
    assert "Did you mean `fallline check`?" in fallline("chek").err
    assert "Did you mean" not in fallline("xyz").err


def test_help_of_a_command(fallline: Callable) -> None:
    assert fallline("help", "check").out == fallline("check", "--help").out
    assert fallline("help", "chek").status == 2
