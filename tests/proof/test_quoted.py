"""What was measured is quoted where people look: rule pages, `fallline rule`, findings, answers, skills. And it cannot drift."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.docs import __main__ as documents
from fallline.proof import record
from fallline.proof.experiment import where
from fallline.proof.record import Outcome, all_recorded
from fallline.report.evidence_page import documents as evidence_documents
from fallline.report.rule_page import page
from fallline.rules import all_rules, rule_by_code
from fallline.specialists import SPECIALISTS
from fallline.triage.answer import answer

ROOT = Path(__file__).parent.parent.parent


def test_every_rule_page_says_what_was_measured_and_links_to_it() -> None:
    evidence = (ROOT / "docs/evidence.md").read_text(encoding="utf-8")
    for rule in all_rules():
        known = record.recorded(rule.code)
        assert ("## Evidence" in page(rule)) == (known is not None)
        if known is not None:
            assert known.says in page(rule)
            assert f"../evidence.md#{known.anchor}" in page(rule)
            assert f'<a id="{known.anchor}"></a>' in evidence


def test_the_rule_command_says_it_too(fallline: Callable[..., object]) -> None:
    known = record.recorded("FL104")
    assert known is not None
    ran = fallline("rule", "FL104")
    assert known.says in ran.out and "fallline prove FL104" in ran.out  # type: ignore[attr-defined]


def test_a_finding_on_the_page_of_a_run_has_its_evidence() -> None:
    from fallline.report.html_findings import _experiment

    known = record.recorded("FL104")
    assert known is not None
    assert known.says[:30] in _experiment("FL104") and "fallline prove FL104" in _experiment(
        "FL104"
    )
    assert _experiment("FL000") == ""


def test_an_answer_shows_what_was_measured() -> None:
    from fallline.report.answer import markdown, text

    reply = answer("do I have to divide the loss when I accumulate gradients over micro-batches?")
    cited = reply.measured()
    assert cited and all(fact.says for fact in cited)
    assert cited[0].says in markdown(reply, more=True)
    assert "\nMeasured\n" in text(reply, more=True)
    assert reply.as_dict()["measured"][0]["name"] == cited[0].name


def test_the_page_has_every_specialist_and_every_figure() -> None:
    made = evidence_documents(all_recorded().values())
    text = made["evidence.md"]
    for specialist in SPECIALISTS:
        assert f"## {specialist.name}" in text
    for outcome in all_recorded().values():
        assert f"images/evidence/{outcome.of}.svg" in made
        assert outcome.claim in text and outcome.says in text
        assert not outcome.taught or f"**Often taught:** {outcome.taught}" in text
    assert sorted(re.findall(r'<a id="([^"]+)">', text)) == sorted(
        o.anchor for o in all_recorded().values()
    )


def test_the_record_is_measured_on_known_machines() -> None:
    for outcome in all_recorded().values():
        assert outcome.machine and outcome.torch and outcome.room in {s.room for s in SPECIALISTS}
        assert (rule_by_code(outcome.of) is not None) or not outcome.is_rule
        assert outcome.of in where()


def test_what_was_measured_again_is_taken_over_by_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Outcome("FL104", "accumulation-unscaled", "gradients", "A claim.", verdict="proved",
                  conclusion="it is 4 times", sides={"wrong": {"x": 4}}, holds={"so": True})  # fmt: skip
    (tmp_path / "docs").mkdir()
    (tmp_path / "src/fallline/proof").mkdir(parents=True)
    home = tmp_path / "src/fallline/proof/evidence.json"
    (tmp_path / "docs/evidence.json").write_text(record.written([one]))
    home.write_text(record.written([]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["docs", "--check"])
    monkeypatch.setattr(documents, "documents", lambda root: {})
    assert documents.main() == 1
    assert "src/fallline/proof/evidence.json is stale" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["docs"])
    assert documents.main() == 0
    assert [o.of for o in record.read(home)] == ["FL104"]
    assert not (tmp_path / "docs/evidence.json").exists(), "the record is in the tree once"


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """The whole group is interrupted, as a terminal does it; nothing of it is left, and nobody complains."""
    pytest.importorskip("torch")
    code = (
        "from fallline.proof import experiment; from fallline.cli.main import main\n"
        "experiment.where = lambda: dict.fromkeys(['never-ends', 'raises'], 'proof_fixtures.numerics.false_claims')\n"
        "raise SystemExit(main(['prove', '--all', '--jobs', '2']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that started the tests in the background has told them to ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert "raises failed" in process.stderr.readline()  # the other one has begun as well
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in err and "Traceback" not in err + out
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("a process was left behind")
    assert not (tmp_path / "docs").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_does_not_reach_the_server_that_imports_torch() -> None:
    """It would print where it was interrupted."""
    code = (
        "from multiprocessing import forkserver\n"
        "from fallline.proof import processes\n"
        "processes._READY = []\n"
        "processes.with_torch()\n"
        "print(open(f'/proc/{forkserver._forkserver._forkserver_pid}/status').read())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (blocked,) = [line.split()[1] for line in ran.stdout.splitlines() if line[:6] == "SigBlk"]
    assert int(blocked, 16) & 1 << (signal.SIGINT - 1)
