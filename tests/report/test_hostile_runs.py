"""A run folder may come from anybody: it cannot make us read other files, wait for ever, write control sequences or fall over."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import make_run

from fallline.conclude import findings_of
from fallline.diff import compare
from fallline.errors import RunError
from fallline.report.diff import summary as diff_summary
from fallline.report.diff_page import page as diff_page
from fallline.report.html import page
from fallline.report.json import plain
from fallline.report.run import summary
from fallline.runs import read
from fallline.runs.findings import findings_text
from fallline.runs.read import read_run
from fallline.runs.series import Series
from fallline.show.terminal import Paint
from fallline.untrusted import json_text

ESC = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
_WHOLE: list[Series] = []  # the run before anybody has altered it
TABLES = ("meta", "places", "updates", "layouts", "samples", "fingerprints", "prints", "findings")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole run, made once."""
    folder = make_run(tmp_path_factory.mktemp("original") / "run", updates=12)
    with sqlite3.connect(folder / "rank0.sqlite") as db:
        db.execute("insert into fingerprints values('optimizer#1', 3, ?)", (b"\0" * 16,))
        db.execute("insert into prints values('parameters', 'optimizer#1', 0, 0, ?)", (b"\0" * 32,))
        about = {"layout:optimizer#1:0": [["a.weight", [2], "float32"]], "groups:optimizer#1": [{"betas": [0.9]}],
                 "code": {"main": "t.py", "files": {"t.py": {"hash": "1", "lines": ["x = 1"]}}, "changed": ["t.py"]},
                 "options": {"values": {"lr": 1}, "files": {"c.yaml": ["a: 1"]}}, "environment": {"torch": "2"},
                 "model": {"a": {"type": "Linear"}}, "loaders": {"loader#1": {"trains": True}}, "autocast": "off"}  # fmt: skip
        for key, value in about.items():
            db.execute("insert into meta values(?, ?)", (key, json.dumps(value)))
        db.execute("insert into meta values('pid', '1')") if not _has(db, "pid") else db.execute(
            "update meta set value='1' where key='pid'"
        )
    _WHOLE[:] = [read_run(folder)]
    return folder


def _has(db: sqlite3.Connection, key: str) -> bool:
    return bool(db.execute("select 1 from meta where key=?", (key,)).fetchone())


@pytest.fixture
def run(original: Path, project: Path) -> Path:
    shutil.copytree(original, project / "run")
    (project / "run/findings.json").unlink(missing_ok=True)
    return project / "run"


def alter(run: Path, *statements: str, given: tuple[Any, ...] = ()) -> None:
    with contextlib.closing(sqlite3.connect(run / "rank0.sqlite")) as db:
        db.execute("pragma synchronous=off")
        for statement in statements:
            db.execute(statement, given)
        db.commit()


def no_fault_of_ours(ran: Any) -> None:
    assert ran.status in (0, 2), ran
    assert "mistake in fallline" not in ran.err and "Traceback" not in ran.err, ran.err
    assert "\x1b" not in ran.out + ran.err and "\x9b" not in ran.out + ran.err


def survives(run: Path) -> None:
    """All that `report` does but writing, which takes longest."""
    try:
        series = read_run(run)
    except RunError as error:
        shown = str(error)
    else:
        found = findings_of(series)
        shown = summary(series, found, Paint(False)) + page(series, found) + findings_text(found)
        shown += compared(series)
    assert not any(c in shown for c in "\x1b\x07\x9b\u202e")


def compared(series: Series) -> str:
    """All that `diff` does with this run beside a whole one."""
    try:
        found = compare(_WHOLE[0], series) if _WHOLE else compare(series, series)
    except RunError as error:
        return str(error)
    sides = (_WHOLE[0] if _WHOLE else series), series
    said = json_text(plain(found.to_json()))
    return said + diff_summary(*sides, found, Paint(False)) + diff_page(*sides, found)


def cells(run: Path) -> Iterator[tuple[str, str]]:
    """Every column of every table."""
    db = sqlite3.connect(run / "rank0.sqlite")
    for table in TABLES:
        for row in db.execute(f"pragma table_info({table})").fetchall():
            yield table, row[1]
    db.close()


WRONG = (None, "", "x", ESC, b"\xff\xfe", -1, 2**62, 1e308, "9" * 5000, "[" * 3000, "{}", "[1]", '{"a": []}')  # fmt: skip


def test_every_column_can_be_forged(original: Path, run: Path) -> None:
    cases = 0
    for table, column in list(cells(run)):
        for wrong in WRONG:
            shutil.copyfile(original / "rank0.sqlite", run / "rank0.sqlite")
            try:
                alter(run, f'update or ignore {table} set "{column}" = ?', given=(wrong,))
            except sqlite3.Error:
                continue  # the file itself refuses it
            survives(run)
            cases += 1
    assert cases > 350


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in inside:
        yield from leaves(one, (*way, key))


def put(value: Any, way: tuple[Any, ...], new: Any) -> None:
    for key in way[:-1]:
        value = value[key]
    value[way[-1]] = new


def test_every_field_of_every_json_can_be_forged(original: Path, run: Path) -> None:
    db = sqlite3.connect(original / "rank0.sqlite")
    bodies = [
        (table, column, rowid, body)
        for table, column in (("meta", "value"), ("layouts", "parameters"), ("findings", "body"))
        for rowid, body in db.execute(f"select rowid, {column} from {table}").fetchall()
    ]
    db.close()
    cases = 0
    for table, column, rowid, body in bodies:
        whole = json.loads(body)
        for way in [(), *list(leaves(whole))[:40]]:
            for wrong in (None, ESC, -1, 1e308, [[]], {"a": {}}, True):
                forged = json.loads(body)
                if way:
                    put(forged, way, wrong)
                else:
                    forged = wrong
                shutil.copyfile(original / "rank0.sqlite", run / "rank0.sqlite")
                text = json.dumps(forged)
                alter(run, f"update {table} set {column}=? where rowid={rowid}", given=(text,))
                survives(run)
                cases += 1
    assert cases > 250


@pytest.mark.parametrize("table", TABLES)
def test_a_view_that_never_ends_is_not_looked_at(run: Path, fallline: Callable, table: str) -> None:
    endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select x as a from n"
    alter(run, f"drop table {table}", f"create view {table} as {endless}")
    ran = fallline("report", run)
    no_fault_of_ours(ran)
    assert ran.status == 2 and f"{table} is not a table" in ran.err


def test_columns_that_are_computed_are_not_looked_at(run: Path, fallline: Callable) -> None:
    alter(run, "drop table findings", "create table findings(body text as (code), code)")
    ran = fallline("report", run)
    assert ran.status == 2 and "the table findings has no column body" in ran.err


def test_reading_ends_in_time(
    run: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "SECONDS", -1.0)
    monkeypatch.setattr(read, "_STRIDE", 1)
    ran = fallline("report", run)
    assert ran.status == 2 and "interrupted" in ran.err


@pytest.mark.parametrize("size", [0, 1, 16, 100, 512, 4096, 5000, 8192, 12_000])
def test_a_truncated_file(run: Path, fallline: Callable, size: int) -> None:
    file = run / "rank0.sqlite"
    file.write_bytes(file.read_bytes()[:size])
    ran = fallline("report", run)
    no_fault_of_ours(ran)
    assert ran.status == 2 and "cannot be read" in ran.err


def test_noise_in_the_file(original: Path, run: Path) -> None:
    data = (original / "rank0.sqlite").read_bytes()
    for at in range(0, len(data), max(1, len(data) // 60)):
        spoilt = bytearray(data)
        spoilt[at : at + 40] = os.urandom(40)
        (run / "rank0.sqlite").write_bytes(spoilt)
        survives(run)


@pytest.mark.parametrize("name", ["rank0.sqlite", "findings.json", "run.json"])
@pytest.mark.parametrize("what", ["/dev/zero", "/dev/urandom", "pipe", "folder", "loop", "nowhere"])
def test_what_is_not_a_file(run: Path, fallline: Callable, name: str, what: str) -> None:
    (run / name).unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(run / name)
    elif what == "folder":
        (run / name).mkdir()
    elif what == "loop":
        (run / name).symlink_to(name)
    else:
        (run / name).symlink_to(what)
    no_fault_of_ours(fallline("report", run))
    no_fault_of_ours(fallline("ask", "why is it NaN?", "--run", run))


@pytest.mark.parametrize("name", ["rank٣.sqlite", "rank²", "rank" + "9" * 5000, "rank-1.sqlite"])
def test_names_of_ranks(run: Path, fallline: Callable, name: str) -> None:
    try:
        shutil.copyfile(run / "rank0.sqlite", run / (name if len(name) < 200 else name[:200]))
    except OSError:
        pytest.skip("this file system has no such name")
    ran = fallline("report", run)
    no_fault_of_ours(ran)
    assert ran.status == 0


@pytest.mark.parametrize(
    ("cwd", "path"),
    [
        ("/", "etc/passwd"), ("/etc", "passwd"), (".", "/etc/passwd"), (".", "../../../../../../etc/passwd"),
        ("/proc/self", "environ"), ("/dev", "zero"), ("/", "HOME/secret.py"), (".", "link.py"), (".", "device.py"),
    ],
)  # fmt: skip
def test_no_file_outside_of_the_project_is_copied_into_the_page(
    run: Path,
    fallline: Callable,
    tmp_path_factory: pytest.TempPathFactory,
    cwd: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.py").write_text("root:x:0:0: PASSWORD = 'hunter2'\n" * 9)
    project = run.parent
    (project / "link.py").symlink_to(elsewhere / "secret.py")
    (project / "device.py").symlink_to("/dev/zero")
    path = path.replace("HOME", str(elsewhere).lstrip("/"))
    body = json.dumps(
        {
            "code": "FL101", "name": "clip-after-step", "severity": "error", "message": "m", "path": path, "line": 1,
            "column": 1, "end_line": 1, "end_column": 1, "specialist": "x", "fix": None, "evidence": {},
        }
    )  # fmt: skip
    alter(run, "update findings set body=?", given=(body,))
    alter(run, "update meta set value=? where key='cwd'", given=(json.dumps(cwd),))
    ran = fallline("report", run)
    no_fault_of_ours(ran)
    page = (run / "report.html").read_text()
    for shown in (ran.out, page):
        assert "hunter2" not in shown and "root:" not in shown and "PATH=" not in shown


def test_the_source_of_an_honest_run_is_shown(run: Path, fallline: Callable) -> None:
    (run.parent / "train.py").write_text("one\ntwo\nthree\n")
    alter(run, "update meta set value=? where key='cwd'", given=(json.dumps(str(run.parent)),))
    assert "two" in fallline("report", run).out


def test_control_sequences_are_shown_and_not_sent(run: Path, fallline: Callable) -> None:
    for key in ("script", "status", "torch", "python"):
        alter(run, f"update meta set value=? where key='{key}'", given=(json.dumps(f"a{ESC}b"),))
    alter(run, "update places set path=?, function=?", given=(f"t{ESC}.py", ESC))
    ran = fallline("report", run)
    no_fault_of_ours(ran)
    assert "\\x1b]0;owned" in ran.out
    page = (run / "report.html").read_text()
    assert "\x1b" not in page and "\u202e" not in page
    for style in ("text", "markdown", "json"):
        no_fault_of_ours(fallline("ask", f"why {ESC} NaN", "--run", run, "--output-format", style))


def test_one_bad_rank_of_several_is_named(original: Path, run: Path) -> None:
    shutil.copyfile(original / "rank0.sqlite", run / "rank1.sqlite")
    (run / "rank1.sqlite").write_bytes(b"nothing")
    series = read_run(run)
    assert [r.number for r in series.ranks] == [0, 1]
    assert series.ranks[1].status.startswith("unreadable:") and series.tracks


def test_reading_writes_nothing(run: Path) -> None:
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    read_run(run)
    assert {p.name: p.read_bytes() for p in run.iterdir()} == before
