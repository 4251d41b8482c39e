"""Make docs/images/notebook.png: what `%%watch` shows below a cell, from a real kernel, in headless Chromium.

python scripts/notebook_picture.py       # needs Debian's chromium, or CHROMIUM=/path/to/it
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from screenshots import browser, shoot

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "notebook.png"
CELLS = (
    """\
import torch
from torch import nn
torch.manual_seed(0)
%load_ext fallline""",
    """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return torch.log(self.fc(x).abs() * (x[0, 0] != 5))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)""",
    """\
%%watch
for step in range(6):
    x = torch.randn(8, 4)
    if step == 4:
        x[0, 0] = 5
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()""",
)


def main() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
        (html,) = (o.data["text/html"] for o in notebook.cells[2].outputs if "data" in o)
        page = Path(folder) / "cell.html"
        page.write_text(
            f"<meta charset=utf-8><body style='background:#fff'>{html.replace(folder + '/', '')}"
        )
        chromium = browser()
        assert chromium, "no chromium found: apt-get install chromium, or set CHROMIUM"
        shoot(chromium, page, PICTURE, 900, 580, dark=False)


if __name__ == "__main__":
    main()
