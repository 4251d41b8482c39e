"""Files of a project that are named like modules of Python are read, never imported in their place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RAN = "import os\nopen(os.path.join(os.path.dirname(__file__), 'ran-' + __name__), 'w').close()\n"
# what `python -m` itself imports, it imports before we are asked
EARLY = "import sys; print(*{n.partition('.')[0] for n in sys.modules})"
WRONG = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""


@pytest.mark.parametrize(
    "arguments",
    [("check", "--no-cache", "."), ("ask", "is my loop right?", "--code", "train.py"), ("rule", "FL101")],
    ids=lambda a: a[0],
)  # fmt: skip
def test_a_project_full_of_namesakes(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    empty = tmp_path / "empty" / "__main__.py"
    empty.parent.mkdir()
    empty.write_text(EARLY)
    early = subprocess.check_output([sys.executable, "-m", "empty"], cwd=tmp_path, text=True)
    for name in {*sys.stdlib_module_names} - {"__future__", *early.split()}:
        (tmp_path / f"{name}.py").write_text(RAN)
    (tmp_path / "train.py").write_text(WRONG)
    ran = subprocess.run(
        [sys.executable, "-m", "fallline", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        check=False,
    )
    assert ran.returncode in (0, 1) and "mistake in fallline" not in ran.stderr, ran.stderr
    assert "FL101" in ran.stdout
    assert list(tmp_path.glob("ran-*")) == []
