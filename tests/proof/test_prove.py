"""`fallline prove`: what it prints, what it writes, and what it ends with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fallline.proof import experiment, record  # noqa: E402
from fallline.proof.record import Outcome  # noqa: E402

Fallline = Callable[..., object]


def test_a_rule_is_proved_in_sixty_columns(
    fallline: Fallline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ran = fallline("prove", "fl104")
    assert ran.status == 0
    assert max(map(len, ran.out.splitlines())) <= 60
    for part in ("FL104 accumulation-unscaled", "Claim", "Taught", "wrong", "right", "●", "✓"):
        assert part in ran.out
    assert "PROVED" in ran.out and "✗" not in ran.out and "\x1b" not in ran.out


def test_a_name_is_as_good_as_a_code(fallline: Fallline) -> None:
    ran = fallline("prove", "accumulation-unscaled", "--output-format", "json")
    (found,) = json.loads(ran.out)
    assert (found["of"], found["verdict"]) == ("FL104", "proved")
    assert found["torch"] == torch.__version__ and found["machine"] and found["seconds"] >= 0


@pytest.mark.usefixtures("false_claims")
def test_a_false_claim_is_caught(fallline: Fallline) -> None:
    ran = fallline("prove", "sum-is-exact")
    assert ran.status == 1
    assert "✗ the sum is 4000" in ran.out and "✓ there is a sum" in ran.out
    assert "REFUTED" in ran.out


@pytest.mark.usefixtures("false_claims")
def test_an_experiment_that_fails_is_our_failure(fallline: Fallline) -> None:
    ran = fallline("prove", "raises")
    assert ran.status == 2
    assert "FAILED" in ran.out and "nothing was measured" in ran.out


@pytest.mark.usefixtures("false_claims")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_what_needs_a_device_says_so_and_shows_the_record(
    fallline: Fallline, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = fallline("prove", "needs-a-device")
    assert ran.status == 2 and "needs a CUDA device" in ran.out
    before = Outcome(
        "needs-a-device", "needs-a-device", "numerics", "It needs a device.", needs="cuda",
        verdict="proved", conclusion="there is 1 device", machine="NVIDIA H200", torch="2.11",
        sides={"one": {"devices": 1}}, holds={"there is one": True},
    )  # fmt: skip
    monkeypatch.setattr(record, "all_recorded", lambda: {before.of: before})
    ran = fallline("prove", "needs-a-device")
    assert ran.status == 0
    assert "NVIDIA H200" in ran.out and "There is 1 device." in ran.out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("accumulation-unscald",), "Did you mean accumulation-unscaled"),
        (("FL10",), "Did you mean FL101 or FL102 or FL103"),
        (("batchnorm-alone",), "Did you mean batchnorm-alone-explodes"),
        (("--list", "no-such-thing"), "no-such-thing"),
        (("FL104", "--merge", "nothing.json"), "alone"),
        (("FL999",), "no rule or fact is called 'FL999'"),
        ((), "name a rule or a fact"),
        (("FL104", "--all"), "not both"),
        (("FL104", "--jobs", "0"), "1 or more"),
        (("--merge", "nothing.json", "--out", "docs"), "not a file"),
        (("FL104", "--needs", "cuda"), "with --all"),
        (("FL104", "--seed", "-1"), "0 or more"),
        (("FL104", "--seed", "1", "--out", "docs"), "leave out --seed or --out"),
        (("FL104", "--continue"), "with --all"),
        (("--all", "--continue", "--out", "nowhere"), "there is no stopped run in nowhere"),
    ],
)
def test_wrong_usage_is_told(fallline: Fallline, given: tuple[str, ...], told: str) -> None:
    ran = fallline("prove", *given)
    assert ran.status == 2
    assert told in ran.err and not ran.out


def test_a_rule_without_an_experiment_says_so(
    fallline: Fallline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "where", lambda: {"FL101": ""})
    ran = fallline("prove", "FL104")
    assert ran.status == 2 and "FL104 accumulation-unscaled has no experiment" in ran.err


def test_without_torch_it_says_so_in_one_sentence(
    fallline: Fallline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    ran = fallline("prove", "FL104")
    assert ran.status == 2
    assert "install torch" in ran.err and ran.err.count("\n") == 1


def test_listing_needs_no_torch() -> None:
    code = (
        "import sys; from fallline.cli.main import main; status = main(['prove', '--list']);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    listed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "FL104" in listed and "batchnorm-alone-explodes" in listed


def test_all_is_written_and_told(
    fallline: Fallline, project: Path, monkeypatch: pytest.MonkeyPatch, false_claims: list[str]
) -> None:
    there = {n: m for n, m in experiment.where().items() if n != "never-ends"}
    monkeypatch.setattr(experiment, "where", lambda: there)
    ran = fallline("prove", "--all", "--jobs", "2", "--out", "docs")
    assert ran.status == 1
    assert "sum-is-exact refuted: the sum is 4000" in ran.out
    assert "5/5" in ran.err
    written = json.loads((project / "docs/evidence.json").read_text())
    assert [e["of"] for e in written["experiments"]] == ["sum-is-exact"]
    page = (project / "docs/evidence.md").read_text()
    assert "**Often taught:** Rounding never matters." in page
    assert "**Refuted:** not so: the sum is 4000." in page
    assert (project / "docs/images/evidence/sum-is-exact.svg").exists()


def test_what_another_machine_measured_is_taken_over(fallline: Fallline, project: Path) -> None:
    one, other = (
        Outcome(
            of, of, "numerics", "A claim.", verdict="proved", conclusion=f"{n} is measured",
            sides={"a": {"x": n}}, holds={"so": True}, machine=machine, torch="2", needs=needs,
        )
        for of, n, machine, needs in (("first", 1, "CPU", ""), ("second", 2, "NVIDIA H200", "cuda"))
    )  # fmt: skip
    (project / "docs").mkdir()
    (project / "docs/evidence.json").write_text(record.written([one]))
    (project / "gpu.json").write_text(record.written([other]))
    assert fallline("prove", "--merge", "gpu.json", "--out", "docs").status == 0
    there = record.read(project / "docs/evidence.json")
    assert [o.of for o in there] == ["first", "second"]
    page = (project / "docs/evidence.md").read_text()
    assert page.count("NVIDIA H200") == 1 and "Measured on CPU" in page


@pytest.mark.parametrize("given", [("--all",), ("FL104",), ("--merge", "gpu.json")])
def test_where_nothing_can_be_written_nothing_is_measured(
    fallline: Fallline, project: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it measured")

    monkeypatch.setattr("fallline.proof.measure.measure", never)
    (project / "gpu.json").write_text(record.written([]))
    (project / "taken").write_text("a file")
    ran = fallline("prove", *given, "--out", "taken")
    assert ran.status == 2 and "taken is not a folder" in ran.err and not ran.out


def test_a_part_of_the_list(fallline: Fallline) -> None:
    ran = fallline("prove", "--list", "batchnorm-alone", "FL104")
    assert ran.status == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == [
        "FL104",
        "batchnorm-alone-explodes",
    ]


def test_a_damaged_record_is_told(fallline: Fallline, project: Path) -> None:
    (project / "gpu.json").write_text("{}")
    ran = fallline("prove", "--merge", "gpu.json", "--out", "docs")
    assert ran.status == 2 and "not a record of experiments" in ran.err


def test_without_out_nothing_is_written_and_nothing_of_the_users_is_touched(
    fallline: Fallline, project: Path, monkeypatch: pytest.MonkeyPatch, false_claims: list[str]
) -> None:
    monkeypatch.setattr(
        experiment, "where", lambda: {"sum-is-exact": "proof_fixtures.numerics.false_claims"}
    )
    (project / "docs").mkdir()
    (project / "docs/evidence.md").write_text("mine")
    assert "sum-is-exact refuted" in fallline("prove", "--all", "--jobs", "1").out
    assert [p.name for p in project.rglob("*") if p.is_file()] == ["evidence.md"]
    ran = fallline("prove", "--all", "--jobs", "1", "--out", "docs")
    assert ran.status == 2 and "docs/evidence.md was not written by fallline" in ran.err
    assert (project / "docs/evidence.md").read_text() == "mine"
    for given in (("--merge", "gpu.json"), ("--all", "--continue")):
        assert "--out" in fallline("prove", *given).err
