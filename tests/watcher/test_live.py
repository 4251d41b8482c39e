"""The live line: there for a person, gone before the script writes, never over a progress bar."""

from __future__ import annotations

import io
import os
import pty
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.report.live import Live, LiveLine
from fallline.runs.update import UpdateRow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name, value in (("TERM", "xterm"), ("NO_COLOR", "1"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    before = sys.stdout, sys.stderr
    yield Terminal()
    sys.stdout, sys.stderr = before


def shown(stream: Terminal) -> list[str]:
    """What a person would see: carriage returns go back, the erase sequence clears the line."""
    lines = [""]
    for part in stream.getvalue().replace("\x1b[2K", "\x00").split("\n"):
        line = ""
        for piece in part.split("\r"):
            line = (
                piece.removeprefix("\x00")
                if piece.startswith("\x00")
                else piece + line[len(piece) :]
            )
        lines.append(line)
    return [line for line in lines if line]


def live(terminal: Terminal, found: tuple[Finding, ...] = ()) -> Live:
    sys.stdout = sys.stderr = (
        terminal  # not in the fixture: pytest puts its own streams back after that
    )
    run = Live.on_stderr(lambda: found)
    assert run is not None and run.line is not None
    run._draw_next = 0.0
    return run


LATE = Finding("FL101", "clip-after-step", Severity.ERROR, "late", Location("t.py", 1))
SAID = "fallline: t.py:1: FL101 clip-after-step: late"


def test_it_says_what_matters(terminal: Terminal) -> None:
    line = live(terminal, (LATE,))
    line.row(UpdateRow(1200, loss=0.25, clip_norm=2.0, clip_threshold=1.0, scale=1024.0))
    assert shown(terminal) == [
        SAID,
        "fallline  update 1,200  loss 0.25  norm 2  clipped 100%  scale 1,024  1 error",
    ]
    line.stop()
    assert shown(terminal) == [SAID], "a finding stays, the line goes"
    line._draw_next = 0.0
    line.row(UpdateRow(1201, loss=0.25))
    assert shown(terminal) == [SAID], "a row that comes late does not bring it back"


def test_it_is_gone_before_the_script_writes(terminal: Terminal) -> None:
    line = live(terminal)
    line.row(UpdateRow(0, loss=1.0))
    print("epoch 1")
    line._draw_next = 0.0
    line.row(UpdateRow(1, loss=1.0))
    sys.stderr.write("a warning\n")
    line.stop()
    assert shown(terminal) == ["epoch 1", "a warning"]
    assert sys.stdout is terminal and sys.stderr is terminal, "the script's own streams are back"


def test_a_progress_bar_is_left_alone(terminal: Terminal) -> None:
    line = live(terminal)
    for step in range(5):
        sys.stderr.write(f"\r{step}/5 [#####]")
        line._draw_next = 0.0
        line.row(UpdateRow(step, loss=1.0))
    sys.stderr.write("\n")
    line.stop()
    assert shown(terminal) == ["4/5 [#####]"]
    assert "fallline" not in terminal.getvalue()


def test_it_is_drawn_at_most_once_a_second(terminal: Terminal) -> None:
    line = live(terminal)
    for step in range(1_000):
        line.row(UpdateRow(step, loss=1.0))
    line.stop()
    assert terminal.getvalue().count("fallline") <= 2


@pytest.mark.parametrize("dumb", [True, False])
def test_without_a_terminal_there_is_no_line(dumb: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb" if dumb else "xterm")
    assert LiveLine.on_terminal(Terminal() if dumb else io.StringIO()) is None


def test_a_progress_bar_is_not_cut_in_two_by_a_finding(terminal: Terminal) -> None:
    run = live(terminal, (LATE,))
    sys.stderr.write("\r3/5 [###  ]")
    run.row(UpdateRow(3, loss=1.0))
    assert shown(terminal)[:2] == ["3/5 [###  ]", SAID]
    run.stop()


def test_in_a_log_file_each_code_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    note = Finding("FL501", "note", Severity.INFO, "info", Location("t.py", 2))
    elsewhere = Finding("FL101", "clip-after-step", Severity.ERROR, "late", Location("t.py", 9))
    run = Live.on_stderr(lambda: (note, LATE, elsewhere))
    assert run is not None
    for step in range(3):
        run.row(UpdateRow(step, loss=1.0))
    run.stop()
    assert log.getvalue() == SAID + "\n"


def test_what_was_seen_to_happen_is_said_with_the_next_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    observed: list[dict[str, object]] = []
    run = Live.on_stderr(observed=lambda: observed)
    assert run is not None
    run.row(UpdateRow(0, loss=1.0))
    assert log.getvalue() == ""
    observed.append(
        {"code": "FL620", "path": "t.py", "line": 7, "step": 1, "op": "log", "value": "nan"}
    )
    run.row(UpdateRow(1, loss=1.0))
    run.row(UpdateRow(2, loss=1.0))
    assert log.getvalue().count("fallline: t.py:7: FL620 loss-nonfinite: ") == 1


@pytest.mark.slow
def test_a_real_terminal_shows_it_and_keeps_the_scripts_output(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        "import time, torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for update in range(30):\n"
        "    loss = model(torch.randn(8, 4)).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.1)\n"
        "    if update % 10 == 0:\n"
        "        print('update', update)\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.environ["TERM"] = "xterm"
        os.execv(
            sys.executable, [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"]
        )
    output = b""
    stop = threading.Timer(100, lambda: os.kill(child, 9))
    stop.start()
    try:
        while part := os.read(terminal, 65_536):
            output += part
    except OSError:
        pass  # the other side is closed
    finally:
        stop.cancel()
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    text = output.decode()
    assert "fallline  update" in text
    for update in (0, 10, 20):
        before = text[: text.index(f"update {update}\r\n")]
        assert before == "" or before.endswith(("\x1b[2K", "\n")), "the line was taken away first"
    assert "Nothing wrong was found" in text
