"""What docs/ci.md and docs/editors.md tell people to copy: workflows, hooks, commands and settings, each read or run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "rnn"


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A script with a mistake, as people have them."""
    shutil.copy(EXAMPLE / "broken.py", tmp_path / "train.py")
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command line of a page, in the shell, with our `fallline` and our `python`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_workflow_uploads_what_it_has_written(repository: Path) -> None:
    workflow: dict[Any, Any] = yaml.safe_load(blocks("ci.md", "yaml")[0])
    (job,) = workflow["jobs"].values()
    assert job["permissions"]["security-events"] == "write"
    (check,) = [s["run"] for s in job["steps"] if s.get("run", "").startswith("fallline")]
    ran = run(check, repository)
    assert ran.returncode == 0, ran.stderr
    (upload,) = [s for s in job["steps"] if "upload-sarif" in s.get("uses", "")]
    log = json.loads((repository / upload["with"]["sarif_file"]).read_text(encoding="utf-8"))
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == ["FL101"]


def test_the_annotating_step_fails(repository: Path) -> None:
    ((step,),) = [yaml.safe_load(block) for block in blocks("ci.md", "yaml")[1:2]]
    ran = run(step["run"], repository)
    assert ran.returncode == 1 and ran.stdout.startswith("::error title=fallline (FL101)")


def test_the_hook_of_the_page_is_one_that_we_offer() -> None:
    (config,) = [yaml.safe_load(b) for b in blocks("ci.md", "yaml") if "hooks:" in b]
    offered = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    used = {hook["id"] for entry in config["repos"] for hook in entry["hooks"]}
    assert used <= {hook["id"] for hook in offered}


def test_commands_for_everywhere_else(repository: Path) -> None:
    """In the order in which they stand there: found, found, written down, and then nothing is new."""
    (block,) = [b for b in blocks("ci.md", "bash") if "--baseline" in b]
    assert [run(line, repository).returncode for line in block.splitlines()] == [1, 1, 0, 0]
    assert json.loads((repository / "findings.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize(("script", "status"), [("broken.py", 1), ("repaired.py", 0)])
def test_a_run_as_a_test(tmp_path: Path, script: str, status: int) -> None:
    shutil.copy(EXAMPLE / script, tmp_path / "train.py")
    (block,) = [b for b in blocks("ci.md", "bash") if "fallline run" in b]
    train, judge = block.splitlines()
    ran = run(train.replace("--epochs 1", "--updates 20"), tmp_path)  # this script counts updates
    assert ran.returncode == 0, ran.stderr
    assert run(judge, tmp_path).returncode == status


def test_settings_of_editors_can_be_read_and_start_the_server() -> None:
    (helix,) = blocks("editors.md", "toml")
    server = tomllib.loads(helix)["language-server"]["fallline"]
    assert [server["command"], *server["args"]] == ["fallline", "lsp"]
    (sublime,) = blocks("editors.md", "json")
    assert json.loads(sublime)["clients"]["fallline"]["command"] == ["fallline", "lsp"]
    (neovim,) = blocks("editors.md", "lua")
    assert "cmd = { 'fallline', 'lsp' }" in neovim
    for emacs in blocks("editors.md", "text"):
        assert '"fallline" "lsp"' in emacs and emacs.count("(") == emacs.count(")")
