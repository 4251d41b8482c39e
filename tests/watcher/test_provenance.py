"""Where a run comes from: its options without secrets, its code, the state of its repository."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from fallline.watcher.provenance.git import repository
from fallline.watcher.provenance.options import arguments, configuration_files, flattened
from fallline.watcher.provenance.secrets import (
    HIDDEN,
    is_secret,
    masked,
    masked_lines,
    masked_words,
)


@pytest.mark.parametrize(
    "name", ["token", "hf_token", "HF_TOKEN", "apiKey", "api-key", "db_password", "aws.secret", "wandb_key"]
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["lr", "num_tokens", "max_tokens", "key_dim", "pad_token_id", "tokenizer", "monkey", "n_keys", "eos_token"]
)  # fmt: skip
def test_names_that_only_sound_like_them(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "aBcDeFgHiJkLmNoPqRsT1234",
        "sk-" + "proj-0123456789abcdefABCDEF",
        "AKIA" + "ABCDEFGHIJKLMNOP",
        "https://me:hunter22@host/x",
        "0123456789abcdef" * 2 + "01234567",
        "eyJhbGciOiJI.eyJzdWIiOiIx.abc",
    ],
)
def test_values_that_look_like_secrets(text: str) -> None:
    assert HIDDEN in masked(text)


@pytest.mark.parametrize("text", ["cosine", "/data/imagenet/train", "bert-base-uncased", "1e-4", "meta-llama/Llama-3.2-1B-Instruct"])  # fmt: skip
def test_values_that_are_shown(text: str) -> None:
    assert masked(text) == text


def test_code_keeps_its_lines_but_not_its_secrets() -> None:
    lines = [
        'api_key = "hunter2"',
        "key = self.key(x)",
        'login(token="abc", lr=0.1)',
        "password: str",
    ]
    shown = masked_lines(lines)
    assert "hunter2" not in shown[0] and shown[1] == lines[1]
    assert "abc" not in shown[2] and "lr=0.1" in shown[2]
    assert shown[3] == lines[3]
    assert masked_lines(["password: hunter2"], plain=True) == [f"password: {HIDDEN}"]


def test_a_command_line_as_options() -> None:
    words = [
        "--lr",
        "0.1",
        "--amp",
        "--layers",
        "2",
        "3",
        "--wd=-0.1",
        "model.depth=4",
        "--hf-token",
        "x",
    ]
    assert arguments(words) == {
        "lr": "0.1", "amp": True, "layers": "2 3", "wd": "-0.1", "model.depth": "4", "hf_token": HIDDEN,
    }  # fmt: skip
    assert arguments(["train", "--beta", "-1"]) == {"argument 0": "train", "beta": "-1"}


def test_a_command_line_is_shown_without_its_secrets() -> None:
    words = ["--lr", "0.1", "--hf-token", "x", "--api-key=y", "wandb.key=z", "--num-tokens", "8"]
    assert masked_words(words) == [
        "--lr", "0.1", "--hf-token", HIDDEN, f"--api-key={HIDDEN}", f"wandb.key={HIDDEN}", "--num-tokens", "8",
    ]  # fmt: skip


def test_parsed_arguments_are_flat_and_plain(tmp_path: Path) -> None:
    given = Namespace(
        lr=0.1, out=tmp_path, more=Namespace(depth=2), secret="s", f=print, sizes=[1, 2]
    )
    assert flattened(given) == {
        "lr": 0.1, "out": str(tmp_path), "more.depth": 2, "secret": HIDDEN, "sizes": "[1, 2]",
    }  # fmt: skip


def test_configuration_files_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("lr: 0.1\ntoken: abc123\n")
    assert configuration_files(["--config", str(file)]) == {"c.yaml": ["lr: 0.1", f"token: {HIDDEN}"]}  # fmt: skip
    assert configuration_files([f"--config={file}"]).keys() == {"c.yaml"}


@pytest.mark.parametrize("version", [2, 4])
def test_a_repository_is_read_without_git(tmp_path: Path, version: int) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "src").mkdir()
    files = {name: f"print({name!r})\n".encode() for name in ("src/a.py", "src/ab.py", "train.py")}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    git("init", "-b", "main")
    git("add", ".")
    git("update-index", "--index-version", str(version))
    git("commit", "-m", "first")
    found = repository(tmp_path / "src")
    assert found is not None and found.root == tmp_path
    assert (found.commit, found.branch) == (git("rev-parse", "HEAD"), "main")
    assert not any(found.changed(name, content) for name, content in files.items())
    assert found.changed("train.py", b"edited") and found.changed("new.py", b"")
    git("pack-refs", "--all")
    git("worktree", "add", str(tmp_path / "tree"), "-b", "other")
    packed, tree = repository(tmp_path), repository(tmp_path / "tree" / "src")
    assert packed is not None and packed.commit == found.commit
    assert tree is not None and (tree.commit, tree.branch) == (found.commit, "other")
