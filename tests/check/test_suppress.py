"""Comments that silence findings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = "import torch\n\nmodel = torch.nn.Linear(1, 1)\nx = torch.ones(1)\n"


@pytest.mark.parametrize(
    "statement",
    [
        "y = model.forward(x)  # noqa",
        "y = model.forward(x)  # NOQA",
        "y = model.forward(x)  # noqa: FL803",
        "y = model.forward(x)  #noqa:FL803",
        "y = model.forward(x)  # noqa: E501, FL803",
        "y = model.forward(x)  # noqa: E501 FL803",
        "y = model.forward(x)  # noqa: FL8",
        "y = model.forward(x)  # noqa: fl803 because the hooks are unwanted here",
        "y = model.forward(x)  # fallline: ignore",
        "y = model.forward(x)  # fallline: ignore[FL803]",
        "y = model.forward(x)  # fallline: ignore[FL201, FL803]",
        "y = model.forward(x)  # fallline: ignore[forward-called]",
        "y = dict(  # noqa: FL803\n    a=1,\n    b=model.forward(x),\n)",
        "y = dict(\n    a=1,\n    b=model.forward(x),\n)  # noqa: FL803",
        "y = dict(\n    a=1,\n    b=model.forward(x),  # fallline: ignore[FL803]\n)",
        "if (\n    model.forward(x) > 0  # noqa: FL803\n):\n    pass",
        "if (  # noqa: FL803\n    model.forward(x) > 0\n):\n    pass",
        "if (\n    model.forward(x) > 0\n):  # noqa: FL803\n    pass",
        "# fallline: ignore-file\ny = model.forward(x)",
        "# fallline: ignore-file[FL8]\ny = model.forward(x)",
        "y = model.forward(x)\n# fallline: ignore-file[FL201, forward-called]",
    ],
)
def test_silenced(project: Path, fallline: Callable, statement: str) -> None:
    (project / "a.py").write_text(HEAD + statement + "\n")
    ran = fallline("check", "a.py", "--select", "FL8")
    assert (ran.status, ran.out) == (0, "Nothing found in 1 file.\n")


@pytest.mark.parametrize(
    "statement",
    [
        "y = model.forward(x)  # noqa: E501",
        "y = model.forward(x)  # noqa: FL201",
        "y = model.forward(x)  # fallline: ignore[FL201]",
        "y = model.forward(x)  # fallline: ignore[]",
        "# noqa: FL803\ny = model.forward(x)",
        "z = 1  # noqa\ny = model.forward(x)",
        "# fallline: ignore-file[FL1]\ny = model.forward(x)",
        'y = model.forward(x); s = "ignore-file"',
        "if model.forward(x) > 0:\n    pass  # noqa: FL803",
    ],
)
def test_not_silenced(project: Path, fallline: Callable, statement: str) -> None:
    (project / "a.py").write_text(HEAD + statement + "\n")
    assert fallline("check", "a.py", "--select", "FL8").status == 1


def test_a_file_that_cannot_be_parsed_can_be_set_apart(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text("# fallline: ignore-file\nprint 'python 2'\n")
    assert fallline("check", "a.py").status == 0
