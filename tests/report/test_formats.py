"""What people see: the full and concise formats, GitHub annotations, the witness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fallline.check.outcome import Outcome
from fallline.check.sources import Sources
from fallline.finding import Edit, Finding, Fix, Severity
from fallline.location import Location
from fallline.report import concise, full, github
from fallline.report.json import plain
from fallline.report.witness import witness_lines
from fallline.show.terminal import Paint

SOURCE = """\
for x, y in loader:
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    clip_grad_norm_(model.parameters(), 1.0)
"""
STEPS = [
    {"event": "backward", "path": "train.py", "line": 3, "function": "train"},
    {"event": "step", "path": "train.py", "line": 4, "function": "train"},
    {
        "event": "clip",
        "path": "train.py",
        "line": 5,
        "function": "train",
        "called_from": ["main.py:9"],
    },
]


def finding(**changes: object) -> Finding:
    values = {
        "code": "FL101",
        "name": "clip-after-step",
        "severity": Severity.ERROR,
        "message": "the clip comes after the step",
        "at": Location("train.py", 5, 5, 5, 45, "train"),
        "fix": Fix(
            "clip before the step",
            (
                Edit(4, 1, 4, 1, "    clip_grad_norm_(model.parameters(), 1.0)\n"),
                Edit(5, 1, 6, 1, ""),
            ),
        ),
        "evidence": {"witness": STEPS, "settings": ["args.clip is true"]},
    }
    return Finding(**(values | changes))  # type: ignore[arg-type]


def outcome(*findings: Finding, source: str = SOURCE) -> Outcome:
    made = Outcome(1)
    made.findings = list(findings)
    made.sources = Sources({"train.py": source.encode()})
    return made


def test_full_shows_excerpt_why_and_fix() -> None:
    shown = full.render(outcome(finding()), Paint(False)).split("\n")
    why = next(line for line in shown if line.startswith("why: "))
    assert shown == [
        "FL101 [*] clip-after-step: the clip comes after the step",
        " --> train.py:5:5",
        "  |",
        "3 |     loss.backward()",
        "4 |     optimizer.step()",
        "5 |     clip_grad_norm_(model.parameters(), 1.0)",
        "  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "  |",
        why,
        "fix: clip before the step",
        "  @@ -3,3 +3,3 @@",
        "       loss.backward()",
        "  +    clip_grad_norm_(model.parameters(), 1.0)",
        "       optimizer.step()",
        "  -    clip_grad_norm_(model.parameters(), 1.0)",
        "",
        "Found 1 error in 1 file. 1 can be fixed with --fix.",
        "",
    ]
    assert why.endswith(".") and ". " not in why, "one sentence"


def test_explain_shows_the_events_in_order_and_the_settings() -> None:
    shown = full.render(outcome(finding()), Paint(False), explain=True)
    start = shown.index("   what happens")
    assert shown[start : shown.index("fix:")].split("\n") == [
        "   what happens, in order, when args.clip is true:",
        "         backward        train.py:3  in train",
        "         step            train.py:4  in train",
        "         clip            train.py:5  in train, called from main.py:9  ◄ here",
        "",
    ]


def test_explain_draws_what_repeats_once() -> None:
    one = [
        {"event": kind, "path": "train.py", "line": n, "function": "f"}
        for n, kind in ((2, "forward"), (3, "backward"))
    ]
    steps = [*one * 4, {"event": "step", "path": "train.py", "line": 4, "function": "f"}]
    at = Location("train.py", 3, 5)
    lines = witness_lines(finding(at=at, evidence={"witness": steps}), Paint(False))
    assert lines == [
        "   what happens in f, in order:",
        "    4× ┌ forward         train.py:2",
        "       └ backward        train.py:3  ◄ here",
        "         step            train.py:4",
    ]


def test_explain_of_an_expression_says_so() -> None:
    shown = concise.render(outcome(finding(evidence={})), Paint(False), explain=True)
    assert "no order of events" in shown


def test_tabs_and_wide_characters_keep_the_carets_in_place() -> None:
    source = "if x:\n\tname = '日本'; bad(x)\n"
    at = Location("train.py", 2, 15, 2, 21)
    lines = full.render(outcome(finding(at=at, fix=None), source=source), Paint(False)).split("\n")
    text = next(line for line in lines if "bad(x)" in line)
    carets = next(line for line in lines if "^" in line)
    assert carets.count("^") == len("bad(x)")
    assert carets.index("^") == text.index("bad") + 2, (
        "each of the two characters takes two columns"
    )


def test_a_finding_past_the_end_of_the_file_is_still_shown() -> None:
    shown = full.render(outcome(finding(at=Location("train.py", 99), fix=None)), Paint(False))
    assert "train.py:99:1" in shown


def test_a_finding_in_a_file_that_cannot_be_opened() -> None:
    shown = full.render(outcome(finding(at=Location("gone.py", 1), fix=None)), Paint(False))
    assert "gone.py:1:1" in shown


def test_the_summary_counts() -> None:
    found = [
        finding(),
        finding(severity=Severity.WARNING, fix=None),
        finding(severity=Severity.WARNING, fix=None),
        finding(severity=Severity.INFO, fix=None),
    ]
    assert full.summary(outcome(*found)) == (
        "Found 1 error, 2 warnings and 1 note in 1 file. 1 can be fixed with --fix."
    )


def test_concise_is_one_line_for_one_finding() -> None:
    shown = concise.render(outcome(finding(message="two\nlines")), Paint(False))
    assert shown == "train.py:5:5: FL101 [*] two lines\n"


def test_an_unsafe_fix_is_not_promised() -> None:
    unsafe = finding(fix=Fix("perhaps", (), safe=False))
    assert "[*]" not in concise.render(outcome(unsafe), Paint(False))
    assert "can be fixed" not in full.summary(outcome(unsafe))
    assert "--unsafe-fixes" in full.render(outcome(unsafe), Paint(False))


def test_github_puts_the_worst_first_and_escapes() -> None:
    note = finding(
        severity=Severity.INFO, message="100% sure,\nor: so", fix=None, at=Location("a,b.py", 1)
    )
    lines = github.render(outcome(note, finding()), Paint(False)).splitlines()
    assert lines[0].startswith(
        "::error title=fallline (FL101),file=train.py,line=5,col=5,endLine=5,endColumn=45::train.py:5:5: FL101 "
    )
    assert lines[0].endswith("%0Afix: clip before the step")
    assert lines[1].startswith("::notice title=fallline (FL101),file=a%2Cb.py,line=1,")
    assert lines[1].endswith("100%25 sure,%0Aor: so")


def test_github_notebooks_fall_back_to_line_1() -> None:
    line = github.render(outcome(finding(evidence={"cell": 3}, fix=None)), Paint(False))
    assert ",line=1::train.py:cell 3:5:5: " in line


def test_evidence_becomes_plain_json() -> None:
    value = {
        "a": {3, 1},
        "b": (1, float("inf")),
        "c": Location("x.py", 2),
        4: float("nan"),
        "d": None,
    }
    assert plain(value) == {"a": [1, 3], "b": [1, "inf"], "c": "x.py:2", "4": "nan", "d": None}


def test_progress_is_silent_where_nobody_watches(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text("import torch\n" * 3)
    assert fallline("check", ".").err == ""


def test_progress_draws_and_clears() -> None:
    import io

    from fallline.show.terminal import Progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(10, stream)
    progress.tick()
    assert stream.getvalue() == "", "quick work shows nothing"
    progress._next = 0.0
    progress.tick()
    assert "2/10" in stream.getvalue()
    progress.close()
    assert stream.getvalue().endswith("\r\x1b[K")
