"""Make docs/images/notebook.png: what `%%watch` shows below a cell, from a real kernel, in headless Chromium.

python scripts/notebook_picture.py       # needs Debian's chromium, or CHROMIUM=/path/to/it
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

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
        page.write_text(f"<meta charset=utf-8><body>{html.replace(folder + '/', '')}")
        chromium = os.environ.get("CHROMIUM", "chromium")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,560"]
        command = [chromium, *options, f"--screenshot={PICTURE}", str(page)]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
