"""What the documents say is true: commands parse, settings load, links lead somewhere."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from fallline.check.settings import load
from fallline.cli.main import available

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


@pytest.mark.parametrize("text", blocks("toml"))
def test_settings_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    load([str(tmp_path)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
