"""A real server process, spoken to over standard input and output. The client knows nothing of pygls or of us."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lsp_client import CAPABILITIES, WAIT, Client, edited

WRONG = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
CLIP = 11  # the line of the clip, from 0
RIGHT = WRONG.replace("    nn.utils.clip", "    scaler.unscale_(optimizer)\n    nn.utils.clip")
UNSAFE = 'torch.save(model, "model.pt")\n'


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Starts a server on a folder whose name an address has to quote."""
    folder = tmp_path / "my project ü"
    folder.mkdir()
    started: list[Client] = []

    def begin(files: dict[str, str] | None = None, **options: Any) -> Client:
        for name, text in (files or {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        started.append(Client(folder, **options))
        return started[-1]

    yield begin
    for client in started:
        client.process.kill()
        client.process.wait()


def codes(diagnostics: list[dict[str, Any]]) -> list[str]:
    return [d["code"] for d in diagnostics]


def reading_processes(client: Client) -> list[int]:
    """The processes that the server has started to read in."""
    tasks = Path(f"/proc/{client.process.pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    found = [child for child in children if alive(child)]
    assert found
    return found


def alive(reader: int) -> bool:
    """Whether this process reads; one that has ended and that nobody has waited for does not."""
    try:
        return b"spawn_main" in Path(f"/proc/{reader}/cmdline").read_bytes()
    except OSError:
        return False


def settled(start: Callable[..., Client]) -> tuple[Client, list[int]]:
    """A session in which everything was read, and the processes that did it: all that is left of them belong to no reading."""
    client = start({"other.py": WRONG})
    client.open("train.py", RIGHT)
    assert client.diagnostics("train.py") == []
    # the project's other files are told about last, after its first reading
    assert codes(client.diagnostics("other.py", None)) == ["FL201"]
    return client, reading_processes(client)


def test_a_session_from_the_first_mistake_to_its_fix(start: Callable[..., Client]) -> None:
    client = start()
    assert client.server["serverInfo"]["name"] == "fallline"

    client.open("train.py", WRONG)  # never saved
    (found,) = client.diagnostics("train.py")
    assert (found["code"], found["severity"], found["source"]) == ("FL201", 1, "fallline")
    assert found["range"]["start"] == {"line": CLIP, "character": 4}
    events = [info["message"] for info in found["relatedInformation"]]
    assert events == ["zero_grad", "forward", "backward", "clip", "step", "scaler_update"]

    text = client.hover("train.py", CLIP, 10)
    assert "FL201 clip-scaled" in text and "Why is this bad?" in text and "Use instead" in text
    assert "Measured: The norm that steps is" in text  # the experiment's numbers, from the record
    assert client.hover("train.py", 0, 0) == ""

    offered = client.actions("train.py", CLIP)
    assert [action["title"] for action in offered] == [
        "FL201: Unscale the gradients before clipping",
        "FL201: Silence it here",
        "Fix everything that fallline can fix safely",
    ]
    assert offered[0]["isPreferred"] and "edit" not in offered[0]
    del offered[0]["data"]["cell"]  # null, which Neovim drops on the way back
    (change,) = client.ask("codeAction/resolve", offered[0])["edit"]["documentChanges"]
    assert change["textDocument"] == {"uri": client.uri("train.py"), "version": 1}
    assert edited(WRONG, change["edits"]) == RIGHT

    client.type("train.py", 2, RIGHT)
    assert client.diagnostics("train.py", 2) == []
    assert client.actions("train.py", CLIP) == []
    assert client.close() == 0

    spoken = [(way, what) for way, what in client.transcript if "registerCapability" not in what]
    assert spoken == [
        ("→", "initialize"),
        ("←", "result"),
        ("→", "initialized"),
        ("→", "textDocument/didOpen"),
        ("←", "textDocument/publishDiagnostics"),
        ("→", "textDocument/hover"),
        ("←", "result"),
        ("→", "textDocument/hover"),
        ("←", "result"),
        ("→", "textDocument/codeAction"),
        ("←", "result"),
        ("→", "codeAction/resolve"),
        ("←", "result"),
        ("→", "textDocument/didChange"),
        ("←", "textDocument/publishDiagnostics"),
        ("→", "textDocument/codeAction"),
        ("←", "result"),
        ("→", "shutdown"),
        ("←", "result"),
        ("→", "exit"),
    ]
    assert ("←", "client/registerCapability") in client.transcript
    assert client.process.stderr is not None and client.process.stderr.read() == b""


def test_files_on_disk_and_what_is_typed_belong_together(start: Callable[..., Client]) -> None:
    """A helper that is open and unsaved decides about the script on disk that calls it."""
    helper = "from torch import nn\n\ndef clip(model):\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    script = WRONG.replace(
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.step(optimizer)\n",
        "    finish(scaler, optimizer, model)\n",
    ).replace("import torch\n", "import torch\nfrom helper import finish\n", 1)
    good = helper + (
        "\ndef finish(scaler, optimizer, model):\n    scaler.unscale_(optimizer)\n    clip(model)\n    scaler.step(optimizer)\n"
    )
    client = start({"train.py": script, "helper.py": good, "alone.py": WRONG})
    client.open("helper.py", good)
    assert client.diagnostics("helper.py") == []
    assert codes(client.diagnostics("alone.py", None)) == ["FL201"]

    client.type("helper.py", 2, good.replace("    scaler.unscale_(optimizer)\n", ""))
    (found,) = client.diagnostics("helper.py", 2)
    assert found["code"] == "FL201"
    assert any("train.py" in i["location"]["uri"] for i in found["relatedInformation"])

    (client.folder / "alone.py").write_text(RIGHT, encoding="utf-8")
    change = {"uri": client.uri("alone.py"), "type": 2}
    client.tell("workspace/didChangeWatchedFiles", {"changes": [change]})
    assert client.diagnostics("alone.py", None) == []


def test_settings_and_comments_count(start: Callable[..., Client]) -> None:
    client = start({"pyproject.toml": '[tool.fallline]\nignore = ["FL201"]\n'})
    client.open("train.py", WRONG)
    assert client.diagnostics("train.py") == []

    (client.folder / "pyproject.toml").write_text("[tool.fallline]\nignor = []\n")
    client.tell("workspace/didChangeWatchedFiles", {"changes": []})
    message = client.notification("window/showMessage")["message"]
    assert "has no key 'ignor'" in message

    (client.folder / "pyproject.toml").write_text("[tool.fallline]\n")
    client.type("train.py", 2, WRONG)
    assert codes(client.diagnostics("train.py", 2)) == ["FL201"]
    silence = client.actions("train.py", CLIP)[1]
    (change,) = client.ask("codeAction/resolve", silence)["edit"]["documentChanges"]
    silenced = edited(WRONG, change["edits"])
    assert silenced.splitlines()[CLIP].endswith("1.0)  # fallline: ignore[FL201]")
    client.type("train.py", 3, silenced)
    assert client.diagnostics("train.py", 3) == []
    assert "FL201 clip-scaled" in client.hover(
        "train.py", CLIP, silenced.splitlines()[CLIP].index("FL201")
    )


def test_fix_all_makes_the_safe_ones_and_unsafe_ones_say_so(start: Callable[..., Client]) -> None:
    client = start()
    text = WRONG + UNSAFE
    client.open("train.py", text)
    assert codes(client.diagnostics("train.py")) == ["FL201", "FL703"]
    unsafe = client.actions("train.py", len(text.splitlines()) - 1)[0]
    assert unsafe["title"] == "FL703: Save the state_dict (unsafe: can change what was meant)"
    assert not unsafe["isPreferred"]
    (change,) = client.ask("codeAction/resolve", unsafe)["edit"]["documentChanges"]
    assert edited(text, change["edits"]) == text.replace("save(model,", "save(model.state_dict(),")

    (everything,) = client.actions("train.py", 0, only=["source"])
    assert everything["kind"] == "source.fixAll.fallline"
    (change,) = client.ask("codeAction/resolve", everything)["edit"]["documentChanges"]
    after = edited(text, change["edits"])
    assert "scaler.unscale_(optimizer)" in after and "save(model," in after


def test_columns_and_edits_count_as_the_editor_counts(start: Callable[..., Client]) -> None:
    """UTF-16 units and Windows line ends; and a client that cannot resolve gets its edits at once."""
    capabilities = json.loads(json.dumps(CAPABILITIES))
    del capabilities["textDocument"]["codeAction"]["resolveSupport"]
    del capabilities["workspace"]["workspaceEdit"]
    client = start(capabilities=capabilities)
    text = WRONG.replace("    nn.utils.clip", '    "😋"; nn.utils.clip').replace("\n", "\r\n")
    client.open("train.py", text)
    (found,) = client.diagnostics("train.py")
    assert found["range"]["start"] == {"line": CLIP, "character": 10}
    client.type("train.py", 2, WRONG.replace("\n", "\r\n"))
    assert codes(client.diagnostics("train.py", 2)) == ["FL201"]
    fix = client.actions("train.py", CLIP)[0]
    ((uri, edits),) = fix["edit"]["changes"].items()
    assert uri == client.uri("train.py")
    assert edited(WRONG.replace("\n", "\r\n"), edits) == RIGHT.replace("\n", "\r\n")


def test_typing_is_read_once_after_a_pause(start: Callable[..., Client]) -> None:
    client = start()
    client.open("train.py", RIGHT)
    with client.in_one_breath():
        for version in range(2, 100):
            client.type("train.py", version, RIGHT + "#" * version)
        client.type("train.py", 100, WRONG)
    assert codes(client.diagnostics("train.py", 100)) == ["FL201"]
    told = [what for way, what in client.transcript if what.endswith("publishDiagnostics")]
    assert len(told) < 25  # one; on a busy machine the server itself may pause between keystrokes


def test_hovers_are_answered_while_a_file_is_read(start: Callable[..., Client]) -> None:
    client, readers = settled(start)
    for reader in readers:
        os.kill(reader, signal.SIGSTOP)  # a file that takes long
    try:
        client.type("train.py", 2, WRONG)
        assert "FL201 clip-scaled" in client.hover("other.py", CLIP, 10)
        assert client.hover("train.py", 0, 0) == ""
        before = len(client.transcript)
    finally:
        for reader in readers:
            os.kill(reader, signal.SIGCONT)
    assert codes(client.diagnostics("train.py", 2)) == ["FL201"]
    assert ("←", "textDocument/publishDiagnostics") in client.transcript[before:]


def test_what_is_not_open_has_no_hover_and_foreign_actions_stay(
    start: Callable[..., Client],
) -> None:
    client = start()
    client.open("train.py", WRONG)
    client.diagnostics("train.py")
    assert client.hover("elsewhere.py", 3, 0) == ""
    foreign = {"title": "of another server"}
    assert client.ask("codeAction/resolve", foreign) == foreign
    assert client.close() == 0
    assert client.process.stderr is not None and client.process.stderr.read() == b""


def test_a_file_on_disk_in_another_encoding(start: Callable[..., Client]) -> None:
    client = start()
    text = f"# coding: latin-1\n{WRONG}".replace("    nn.utils", '    "äöü"; nn.utils')
    (client.folder / "old.py").write_bytes(text.encode("latin-1"))
    (client.folder / "wrong.py").write_bytes(b"import torch  # \xe4\ntorch.nn\n")
    client.open("train.py", RIGHT)
    (found,) = client.diagnostics("old.py", None)
    assert (found["code"], found["range"]["start"]) == (
        "FL201",
        {"line": CLIP + 1, "character": 11},
    )
    assert codes(client.diagnostics("wrong.py", None)) == ["FL000"]


def test_a_reader_that_dies_is_replaced(start: Callable[..., Client]) -> None:
    client, readers = settled(start)
    for reader in readers:
        os.kill(reader, signal.SIGKILL)
    client.type("train.py", 2, WRONG)
    assert "crashed" in client.notification("window/showMessage")["message"]
    client.type("train.py", 3, WRONG)
    assert codes(client.diagnostics("train.py", 3)) == ["FL201"]


def test_an_editor_that_vanishes_leaves_nothing_behind(start: Callable[..., Client]) -> None:
    client = start()
    client.open("train.py", WRONG)
    client.diagnostics("train.py")
    readers = reading_processes(client)
    assert client.process.stdin is not None
    client.process.stdin.close()
    client.process.wait(WAIT)
    for reader in readers:
        deadline = time.monotonic() + WAIT
        while alive(reader) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(reader)


def test_a_notebook_is_read_as_one_and_told_by_cell(start: Callable[..., Client]) -> None:
    capabilities = {**CAPABILITIES, "notebookDocument": {"synchronization": {}}}
    client = start(capabilities=capabilities)
    assert client.server["capabilities"]["notebookDocumentSync"]
    head, _, loop = WRONG.partition("for x, y")
    texts = ["%matplotlib inline\n" + head, "for x, y" + loop]
    cells = [f"vscode-notebook-cell:{client.folder}/train.ipynb#{n}" for n in range(2)]
    client.tell(
        "notebookDocument/didOpen",
        {
            "notebookDocument": {
                "uri": client.uri("train.ipynb"),
                "notebookType": "jupyter-notebook",
                "version": 1,
                "cells": [{"kind": 2, "document": uri} for uri in cells],
            },
            "cellTextDocuments": [
                {"uri": uri, "languageId": "python", "version": 1, "text": text}
                for uri, text in zip(cells, texts, strict=True)
            ],
        },
    )
    told = [client.notification("textDocument/publishDiagnostics") for _ in cells]
    by_cell = {params["uri"]: params["diagnostics"] for params in told}
    assert by_cell[cells[0]] == []
    (found,) = by_cell[cells[1]]
    line = texts[1].splitlines().index("    nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    assert (found["code"], found["range"]["start"]["line"]) == ("FL201", line)
    at = {"line": line, "character": 5}
    (fix, _) = client.ask(
        "textDocument/codeAction",
        {
            "textDocument": {"uri": cells[1]},
            "range": {"start": at, "end": at},
            "context": {"diagnostics": []},
        },
    )
    (change,) = client.ask("codeAction/resolve", fix)["edit"]["documentChanges"]
    assert change["textDocument"]["uri"] == cells[1]
    assert "    scaler.unscale_(optimizer)\n" in edited(texts[1], change["edits"])
