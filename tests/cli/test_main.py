"""The command's frame: help, version, unknown commands."""

from __future__ import annotations

import contextlib
import io
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from fallline._version import __version__
from fallline.cli.commands import available
from fallline.cli.work.run import say_misplaced


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


def test_a_mistyped_option_is_guessed(fallline: Callable) -> None:
    ran = fallline("check", "--explian", "train.py")
    assert ran.status == 2 and "Did you mean --explain?" in ran.err
    assert "Did you mean" not in fallline("check", "--zzz", "train.py").err


def test_a_folder_of_runs_is_listed(fallline: Callable, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank0.sqlite").touch()
    os.utime(tmp_path / "old", (1, 1))
    ran = fallline("report", str(tmp_path))
    assert ran.status == 2 and f"{tmp_path} holds 2 runs" in ran.err
    assert ran.err.index(str(tmp_path / "new")) < ran.err.index(str(tmp_path / "old"))


def test_options_behind_the_script_are_noticed(tmp_path: Path) -> None:
    for source, said in (("print(1)", True), ("import sys; sys.argv == ['--guard']", False)):
        (tmp_path / "t.py").write_text(source)
        args = Namespace(target=str(tmp_path / "t.py"), arguments=["--guard=stop"], module=False)
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            say_misplaced(args)
        assert ("goes to the script" in err.getvalue()) is said
