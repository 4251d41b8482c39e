"""Files no one should have to read: each is told by name, the others are still read, and nothing ever crashes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"

UNREADABLE = {
    "syntax error": b"def train(:\n",
    "syntax error in training code": b"import torch\nfor x in loader\n    loss.backward()\n",
    "python 2": b"import torch\nprint 'epoch', epoch\n",
    "nul bytes": b"import torch\n\0\0\n",
    "binary": bytes(range(256)) * 8,
    "an executable": b"\x7fELF\x02\x01\x01" + b"\0" * 64,
    "utf-16": "import torch\n".encode("utf-16"),
    "undeclared latin-1": "# größe\nimport torch\n".encode("latin-1"),
    "unknown encoding": b"# -*- coding: martian -*-\nimport torch\n",
    "broken utf-8": b"import torch\nx = '\xff\xfe'\n",
    "tabs and spaces": b"if True:\n        x = 1\n\ty = 2\n",
    "too many parentheses": b"import torch\nx = " + b"(" * 5000 + b")" * 5000 + b"\n",
    "too many blocks": b"import torch\n"
    + b"".join(b" " * n + b"if x:\n" for n in range(1000))
    + b" " * 1000
    + b"y\n",
    "a surrogate escape": b"import torch\nx = 'a\\ud800'\nreturn\x1b\n",
}

READABLE = {
    "empty": b"",
    "one newline": b"\n",
    "bom alone": b"\xef\xbb\xbf",
    "only a comment": b"# torch\n",
    "no newline at the end": b"import torch",
    "form feeds": b"import torch\n\x0c\nx = 1\n",
    "old mac line ends": b"import torch\rx = 1\r",
    "declared latin-1": "# -*- coding: latin-1 -*-\nimport torch\nx = 'größe'\n".encode("latin-1"),
    "a long line": b"import torch\nx = [" + b"1, " * 100_000 + b"]\n",
    "deep expression": b"import torch\nx = " + b"-" * 400 + b"1\n",
    "long sum": b"import torch\nx = " + b" + ".join([b"a"] * 900) + b"\n",
    "long chain": b"import torch\nx = a" + b".b()" * 300 + b"\n",
    "nested functions": b"import torch\n"
    + b"".join(b" " * n + b"def f():\n" for n in range(60))
    + b" " * 60
    + b"pass\n",
    "names in every script": "import torch\nmodèle = torch.nn.Linear(1, 1)\n损失 = modèle(x)\n损失.backward()\n".encode(),
}


def codes(ran: tuple[int, str, str], path: str) -> list[str]:
    return [f["code"] for f in json.loads(ran[1]) if f["path"] == path]


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_told_and_the_rest_is_read(
    project: Path, fallline: Callable, content: bytes
) -> None:
    (project / "bad.py").write_bytes(content)
    (project / "good.py").write_text(GOOD)
    ran = fallline("check", ".", "--output-format", "json")
    assert ran.status == 1
    assert codes(ran, "bad.py") == ["FL000"] and codes(ran, "good.py") == ["FL803"]
    for style in ("full", "concise", "github", "sarif"):
        again = fallline("check", ".", "--output-format", style, "--explain", "--show-notes")
        assert again.status == 1 and "bad.py" in again.out


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE.keys())
def test_what_can_be_read_is_read(project: Path, fallline: Callable, content: bytes) -> None:
    (project / "odd.py").write_bytes(content)
    (project / "good.py").write_text(GOOD)
    ran = fallline("check", ".", "--output-format", "json", "--fix")
    assert codes(ran, "odd.py") == []
    assert (project / "odd.py").read_bytes() == content


def test_helpers_that_call_each_other(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(
        "import torch\nfrom b import pong\n\n\ndef ping(loss, optimizer):\n    pong(loss, optimizer)\n    loss.backward()\n"
        "\n\ndef train(model, loader, optimizer):\n    for x in loader:\n        ping(model(x), optimizer)\n        train(model, loader, optimizer)\n"
    )
    (project / "b.py").write_text(
        "import torch\nfrom a import ping\n\n\ndef pong(loss, optimizer):\n    ping(loss, optimizer)\n    optimizer.step()\n"
    )
    ran = fallline("check", ".")
    assert ran.status in (0, 1) and ran.err == ""


def test_files_that_import_everything_from_each_other(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(
        "import torch\nfrom b import *\n\nloss = missing(x)\nloss.backward()\noptimizer.step()\n"
    )
    (project / "b.py").write_text("import torch\nfrom a import *\n")
    ran = fallline("check", ".")
    assert ran.status in (0, 1) and ran.err == ""


def test_names_that_stand_for_themselves(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(
        "import torch\n\neps = eps * eps\nlimit = -limit\nx = x\ny = (z := y)\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), limit)\nloss = torch.log(x + eps).half()\nloss.backward()\n"
    )
    ran = fallline("check", ".")
    assert ran.status in (0, 1) and ran.err == ""


def test_a_file_of_fifty_thousand_lines(project: Path, fallline: Callable) -> None:
    step = (
        "def step{n}(model, x, y, optimizer):\n    optimizer.zero_grad()\n    loss = mse_loss(model(x), y)\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    text = "import torch\nfrom torch.nn.functional import mse_loss\n" + "".join(
        step.format(n=n) for n in range(500)
    )
    (project / "big.py").write_text(text + "x = [\n" + "    1,\n" * 47_500 + "]\n")
    (project / "good.py").write_text(GOOD)
    ran = fallline("check", ".", "--output-format", "json")
    assert codes(ran, "big.py") == [] and codes(ran, "good.py") == ["FL803"]


def test_a_file_that_may_not_be_read(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "secret.py").write_text(GOOD)
    (project / "good.py").write_text(GOOD)

    def guarded(path: str, mode: str) -> object:
        if path == "secret.py":
            raise PermissionError(13, "Permission denied", path)
        return open(path, mode)

    monkeypatch.setattr("fallline.check.reading.open", guarded, raising=False)
    ran = fallline("check", ".", "--output-format", "json")
    assert codes(ran, "secret.py") == ["FL000"] and codes(ran, "good.py") == ["FL803"]


def test_a_file_that_vanishes_meanwhile(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "gone.py").write_text(GOOD)
    (project / "good.py").write_text(GOOD)
    from fallline.check import outcome

    discover = outcome.discover

    def vanishing(*arguments: object) -> object:
        found = discover(*arguments)  # type: ignore[arg-type]
        (project / "gone.py").unlink()
        return found

    monkeypatch.setattr(outcome, "discover", vanishing)
    ran = fallline("check", ".", "--output-format", "json")
    assert ran.status == 1
    assert codes(ran, "gone.py") == ["FL000"] and codes(ran, "good.py") == ["FL803"]


def test_names_with_spaces_newlines_and_no_unicode(project: Path, fallline: Callable) -> None:
    names = ["a b.py", "new\nline.py", "日本.py", os.fsdecode(b"caf\xe9.py")]
    for name in names:
        (project / name).write_text(GOOD)
    for style in ("full", "concise", "json", "github", "sarif"):
        assert fallline("check", ".", "--output-format", style, "--no-cache").status == 1
    fallline("check", ".", "--fix")
    assert all("model(torch" in (project / name).read_text() for name in names)
