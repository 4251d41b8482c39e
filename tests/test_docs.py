"""What the documents say is true: commands parse, settings load, links lead somewhere."""

from __future__ import annotations

import argparse
import html
import re
import shlex
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from fallline.check.settings import load
from fallline.cli.commands import available
from fallline.verdict.project import read_paths

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
# Other programs that a document may call; what follows them is theirs to parse.
OTHERS = {"make", "pip", "pre-commit", "prek", "python", "torchrun", "eval"}


def blocks(language: str) -> list[object]:
    return [
        pytest.param(match[1], id=f"{page.name}-{number}")
        for page in PAGES
        for number, match in enumerate(
            re.finditer(
                rf"^```{language}\n(.*?)^```",
                page.read_text(encoding="utf-8"),
                re.MULTILINE | re.DOTALL,
            )
        )
    ]


@pytest.mark.parametrize("text", blocks("bash"))
def test_commands_parse(text: str) -> None:
    for line in text.splitlines():
        words = shlex.split(re.split(" [<>|] ", line)[0], comments=True)
        if not words or Path(words[0]).name != "fallline":
            assert not words or words[0] in OTHERS, line
            continue
        assert words[1] in available(), line
        command = import_module(f"fallline.cli.{words[1]}")
        parser = argparse.ArgumentParser(exit_on_error=False)
        command.add_arguments(parser)
        parser.parse_args(words[2:])


@pytest.mark.parametrize("text", blocks("yaml"))
def test_workflows_load_and_their_commands_parse(text: str) -> None:
    yaml.safe_load(textwrap.dedent(text))
    for line in re.findall(r"run: (fallline .*)$", text, re.MULTILINE):
        test_commands_parse(line)


@pytest.mark.parametrize("text", blocks("toml"))
def test_settings_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    load([str(tmp_path)])


def test_links_lead_somewhere() -> None:
    for page in {*PAGES, *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")}:
        words = re.sub(
            r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", words):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_picture_of_the_terminal_is_of_this_version() -> None:
    """scripts/terminal_picture.py makes it; what it shows is what `check` says today."""
    picture = (ROOT / "docs" / "images" / "terminal.svg").read_text(encoding="utf-8")
    shown = html.unescape(re.sub(r"<[^>]+>", "", picture)).replace("\N{NO-BREAK SPACE}", " ")
    (reading,) = read_paths([str(ROOT / "examples" / "char_language_model" / "broken.py")])
    assert reading.findings
    for finding in reading.findings:
        assert finding.code in shown and finding.name in shown
        assert f"broken.py:{finding.at.line}:{finding.at.column}" in shown
        assert finding.message[:40] in shown
