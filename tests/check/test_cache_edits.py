"""Whatever is edited, a check with a cache says what one without it says, down to the evidence."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fallline.check.reading import read_files
from fallline.check.sift import collect
from fallline.verdict.project import read_paths

_LOOP = """
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        {inside}
"""
_MAIN = (
    """
def main(loader, args):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
    + _LOOP
)
_CALL = "\n\nif __name__ == '__main__':\n    main(loader, args)\n"
_RIGHT = "optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
_UPDATE = "import torch\n\n\ndef update(loss, model, optimizer):\n    "

# Every file with the texts it may have; None where there is no file. Names lead from file to file in all ways that imports know:
# directly, through a package that passes them on, through a star, in a circle, and to scripts that only share a name.
FILES: dict[str, list[str | None]] = {
    "train.py": [
        "import torch\nfrom tools import update, Net\n"
        + _MAIN.format(inside="update(loss, model, optimizer)")
        + _CALL,
        "import torch\nfrom tools.steps import *\nfrom tools import Net\n"
        + _MAIN.format(inside="update(loss, model, optimizer)")
        + _CALL,
        "import torch\nimport tools\nNet = tools.Net\n"
        + _MAIN.format(inside="tools.steps.update(loss, model, optimizer)"),
        "import torch\nprint(torch.__version__)\n",
    ],
    "other.py": [
        "import torch\nfrom nets import Net\n"
        + _MAIN.format(inside="loss.backward(); optimizer.step()")
        + _CALL,
        "import torch\nfrom train import main\nmain(loader, args)\n",
        "import torch\nfrom tools.evaluate import evaluate\nfrom nets import Net\n"
        "for epoch in range(3):\n    evaluate(Net(), loader)\n",
        None,
    ],
    "nets.py": [
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.drop = torch.nn.Dropout()\n",
        "import torch\nfrom base import Base\n\n\nclass Net(Base):\n    pass\n",
        "import torch\n\n\ndef Net():\n    return torch.nn.Linear(1, 1)\n",
        None,
    ],
    "base.py": [
        "import torch\n\n\nclass Base(torch.nn.Module):\n    pass\n",
        "class Base:\n    pass\n",
        None,
    ],
    "tools/__init__.py": [
        "from nets import Net\nfrom .steps import update\nfrom . import steps\n",
        "from .steps import *\nfrom nets import *\n",
        "",
        None,
    ],
    "tools/steps.py": [
        _UPDATE + "loss.backward()\n    optimizer.step()\n",
        _UPDATE + _RIGHT,
        _UPDATE
        + "_backward(loss)\n    optimizer.step()\n    clip(model)\n    optimizer.zero_grad()\n"
        "\n\ndef _backward(loss):\n    loss.backward()\n"
        "\n\ndef clip(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "from tools.evaluate import update\n",
        "def update(:\n",
        None,
    ],
    "tools/evaluate.py": [
        "import torch\n\n\ndef evaluate(model, loader):\n    model.eval()\n    for x, y in loader:\n"
        "        total = model(x)\n",
        "import torch\nfrom tools import steps\n\n\ndef update(loss, model, optimizer):\n"
        "    again(loss, model, optimizer)\n\n\ndef again(loss, model, optimizer):\n"
        "    steps.update(loss, model, optimizer)\n    optimizer.step()\n",
        None,
    ],
    "steps.py": [None, None, _UPDATE + "loss.backward()\n    optimizer.step()\n"],
}


def _write(project: Path, name: str, text: str | None) -> None:
    file = project / name
    if text is None:
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def _told(readings: Any) -> list[dict[str, Any]]:
    return [finding.as_dict() for finding in collect(readings)]


@pytest.mark.parametrize("seed", range(8))
def test_edits(project: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # the tool's own files may change while its tests run; the cache is right to notice
    monkeypatch.setattr("fallline.check.cache._tool_signature", lambda: "fallline-under-test")
    draw = random.Random(seed)
    for name, texts in FILES.items():
        _write(project, name, texts[0])
    found: list[int] = []
    for _ in range(10):
        paths = sorted(str(p.relative_to(project)) for p in project.rglob("*.py"))
        cached = read_files(
            paths, root=str(project), cache_dir=".cache", jobs=1, problems=[], on_file=lambda: None
        )
        plain = read_paths(paths, roots=[str(project)])
        assert _told(cached) == _told(plain)
        found.append(len(collect(plain)))
        for name in draw.sample(sorted(FILES), draw.randint(1, 2)):
            _write(project, name, draw.choice(FILES[name]))
    assert found[0]  # otherwise there was nothing to confuse
