"""`%load_ext fallline` and `%%watch`, in a real kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

pytestmark = pytest.mark.slow

SETUP = """\
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
%load_ext fallline
"""
MODEL = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return torch.log(self.fc(x).abs() * (x[0, 0] != 5))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
NAN = """\
%%watch --out nan
for step in range(6):
    x = torch.randn(8, 4)
    if step == 4:
        x[0, 0] = 5
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
all(bool(p.isfinite().all()) for p in model.parameters())
"""
CLIP_LATE = """\
%%watch --out 'late & <b>bold</b>'
# a second model
linear = nn.Linear(4, 1)
other = torch.optim.SGD(linear.parameters(), lr=0.01)
for step in range(6):
    other.zero_grad()
    linear(torch.randn(8, 4)).pow(2).mean().backward()
    other.step()
    nn.utils.clip_grad_norm_(linear.parameters(), 0.1); note = "<script>alert(1)</script>"
"""
STOP = """\
%%watch --guard stop --out stop
for step in range(6):
    x = torch.randn(8, 4)
    x[0, 0] = 5
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""
WRONG = "%%watch --guard perhaps\n1 + 1"
SYNTAX = "%%watch\nx = (\n"
AWAITS = "%%watch\nimport asyncio\nawait asyncio.sleep(0)"
NOTHING = "%%watch\n40 + 2"
AFTER = "'the kernel lives'"
BY_HAND = """\
import fallline
third = nn.Linear(4, 1)
sgd = torch.optim.SGD(third.parameters(), lr=0.01)
watching = fallline.watch(third, sgd, out="by_hand")
for step in range(6):
    sgd.zero_grad()
    third(torch.randn(8, 4)).pow(2).mean().backward()
    sgd.step()
    nn.utils.clip_grad_norm_(third.parameters(), 0.1)
len(watching.stop())
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder, and the cells after one kernel has run them all."""
    folder = tmp_path_factory.mktemp("notebook")
    sources = (SETUP, MODEL, NAN, CLIP_LATE, STOP, WRONG, NOTHING, AFTER, BY_HAND, SYNTAX, AWAITS)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    client = NotebookClient(
        notebook,
        timeout=900,
        startup_timeout=300,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return folder, notebook.cells


def shown(cell: Any) -> dict[str, str]:
    """What fallline shows below a cell."""
    (found,) = [o.data for o in cell.outputs if o.output_type == "display_data"]
    return dict(found)


def errors(cell: Any) -> list[str]:
    return [o.ename for o in cell.outputs if o.output_type == "error"]


def findings(folder: Path) -> list[tuple[str, str, int]]:
    found = json.loads((folder / "findings.json").read_text())
    return [(f["code"], f["path"], f["line"]) for f in found if f["severity"] != "info"]


def test_a_nan_is_found_in_the_cell_that_defines_the_model(cells: Any) -> None:
    folder, ran = cells
    line = next(n for n, text in enumerate(MODEL.splitlines(), 1) if "torch.log" in text)
    assert findings(folder / "nan") == [("FL620", "In[2]", line)]
    html = shown(ran[2])["text/html"]
    assert "FL620" in html
    assert "return torch.log(self.fc(x).abs() * (x[0, 0] != 5))" in html
    assert f"In[2]:{line}" in shown(ran[2])["text/plain"]


def test_the_cells_value_is_its_output_and_the_guard_kept_the_weights(cells: Any) -> None:
    _, ran = cells
    (result,) = [o for o in ran[2].outputs if o.output_type == "execute_result"]
    assert result.data["text/plain"] == "True"


def test_lines_are_those_of_the_cell_with_its_magic(cells: Any) -> None:
    folder, ran = cells
    line = next(n for n, text in enumerate(CLIP_LATE.splitlines(), 1) if "clip_grad" in text)
    assert findings(folder / "late & <b>bold</b>") == [("FL101", "In[4]", line)]
    html = shown(ran[3])["text/html"]
    hit = re.search(r"<span class=hit><i>(\d+)</i>(.*?)</span>", html)
    assert hit is not None
    assert int(hit[1]) == line
    assert "clip_grad_norm_" in hit[2]


def test_what_comes_from_the_program_is_escaped(cells: Any) -> None:
    _, ran = cells
    html = shown(ran[3])["text/html"]
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<b>bold" not in html


def test_the_guard_stops_the_cell_and_the_finding_is_shown(cells: Any) -> None:
    folder, ran = cells
    assert errors(ran[4]) == ["GuardStop"]
    assert [code for code, *_ in findings(folder / "stop")] == ["FL620"]
    assert "FL620" in shown(ran[4])["text/html"]
    trace = next(o for o in ran[4].outputs if o.output_type == "error").traceback
    assert "fallline/integrations/notebook.py" not in "".join(trace)


def test_a_wrong_option_is_told_and_nothing_runs(cells: Any) -> None:
    _, ran = cells
    said = "".join(o.get("text", "") for o in ran[5].outputs) + " ".join(errors(ran[5]))
    assert "perhaps" in said
    assert not [o for o in ran[5].outputs if o.output_type == "execute_result"]


def test_a_cell_that_cannot_run_is_told_why(cells: Any) -> None:
    """The cell's own syntax error and nothing else; and what to do instead where the loop of events is needed."""
    _, ran = cells
    assert [o.output_type for o in ran[9].outputs] == ["error"]
    assert errors(ran[9])[0].endswith("SyntaxError")
    said = "".join(o.get("text", "") for o in ran[10].outputs)
    assert "`await` outside of a function" in said and "fallline.watch" in said


def test_a_cell_that_trains_nothing(cells: Any) -> None:
    _, ran = cells
    assert "no update" in shown(ran[6])["text/plain"]
    assert ran[7].outputs[0].data["text/plain"] == "'the kernel lives'"


def test_watch_without_the_magic_names_the_cell_too(cells: Any) -> None:
    folder, _ = cells
    line = next(n for n, text in enumerate(BY_HAND.splitlines(), 1) if "clip_grad" in text)
    assert findings(folder / "by_hand") == [("FL101", "In[9]", line)]


def test_the_report_shows_the_cells_source(cells: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from fallline.cli.main import main

    folder, _ = cells
    assert main(["report", str(folder / "nan")]) == 0
    assert "torch.log(self.fc(x)" in capsys.readouterr().out
    assert "torch.log(self.fc(x)" in (folder / "nan" / "report.html").read_text()


def test_an_error_of_the_cell_is_the_cells_error(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(s) for s in ("%load_ext fallline", "%%watch\n1 / 0")]
    )
    client = NotebookClient(
        notebook,
        timeout=900,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        client.execute()
