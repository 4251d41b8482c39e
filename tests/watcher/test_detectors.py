"""Numeric rules: every specimen, run for real, is told or left alone at its line; and the thresholds mean what they say."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules import all_rules, rule_by_code
from fallline.runs.samples import COLUMNS, Layout, ParameterInfo, Sample
from fallline.runs.series import Series
from fallline.runs.update import UpdateRow
from gloo import ATTEMPTS, aborted

sys.path.insert(0, str(Path(__file__).parent))
from specimens import run_once

NUMERIC = [
    r for r in all_rules() if r._defines("check_series") and r.wrong and not r._defines("check")
]


def alone(text: str) -> bool:
    """Whether one process shows it, with torch alone: no other ranks (test_ranks_that_drift_apart, test_named_ranks.py), no model to download."""
    lines = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
    here = sys.stdlib_module_names | {"torch", "numpy"}
    return here.issuperset(lines) and "init_process_group" not in text


def specimens(kind: str) -> dict[str, tuple[Rule, int]]:
    """Where the reader sees the mistake too, the wrong scripts are for the reader: test_seen_in_runs.py and tests/tuning show what a run says."""
    return {
        f"{rule.code}-{number}": (rule, number)
        for rule in NUMERIC
        for number, text in enumerate(getattr(rule, kind))
        if alone(text) and (kind == "right" or rule.seen_by == "watcher")
    }


SPECIMENS = {kind: specimens(kind) for kind in ("wrong", "right")}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Finding]]:
    """The findings of every specimen, by its name; all are run once, from one process."""
    pytest.importorskip("torch")
    scripts = {
        f"{rule.code}_{kind}_{number}": getattr(rule, kind)[number]
        for kind, found in SPECIMENS.items()
        for rule, number in found.values()
    }
    folder = run_once(tmp_path_factory, "numeric", scripts)

    def of(name: str) -> list[Finding]:
        found = folder / f"{name}.run" / "findings.json"
        assert found.exists(), (folder / f"{name}.watched").read_text()
        return [Finding.from_dict(f) for f in json.loads(found.read_text())]

    return of


def cases(kind: str) -> list[object]:
    return [pytest.param(*found, id=name) for name, found in SPECIMENS[kind].items()]


@pytest.mark.parametrize(("rule", "number"), cases("wrong"))
def test_a_wrong_specimen_is_told_at_its_line(
    rule: Rule, number: int, findings: Callable[[str], list[Finding]]
) -> None:
    text = rule.wrong[number]
    expected = [
        n for n, line in enumerate(text.split("\n"), 1) if re.search(rf"# {rule.code}\b", line)
    ]
    found = [f for f in findings(f"{rule.code}_wrong_{number}") if f.code == rule.code]
    assert [f.at.line for f in found] == expected
    assert found[0].severity is rule.severity and "threshold" in found[0].evidence


@pytest.mark.parametrize(("rule", "number"), cases("right"))
def test_a_right_specimen_is_left_alone(
    rule: Rule, number: int, findings: Callable[[str], list[Finding]]
) -> None:
    found = findings(f"{rule.code}_right_{number}")
    assert [f for f in found if f.code == rule.code or f.severity is not Severity.INFO] == []


def _port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wrong", "right"])
def test_ranks_that_drift_apart(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rule = rule_by_code("FL320")
    assert rule is not None
    (tmp_path / "train.py").write_text(getattr(rule, kind)[0])
    for _ in range(ATTEMPTS):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        with_port = {
            **os.environ,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": _port(),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"]
        ranks = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**with_port, "RANK": str(r), "LOCAL_RANK": str(r)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(2)
        ]
        told = [r.communicate(timeout=120)[1] for r in ranks]
        if not any(map(aborted, told)):
            break
    assert [r.returncode for r in ranks] == [0, 0], told
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    expected = [
        n for n, line in enumerate(getattr(rule, kind)[0].split("\n"), 1) if "# FL320" in line
    ]
    assert [f["line"] for f in found if f["code"] == "FL320"] == expected, told
    # FL321: on a busy machine one of two processes may really be slower
    assert kind == "wrong" or {f["code"] for f in found} <= {"FL321"}


# -- thresholds, on made-up series -------------------------------------------------------------------------------

AT = Location("train.py", 9)


def run_of(losses: list[float], norms: list[float] | None = None, **facts: object) -> Series:
    run = Series()
    for index, loss in enumerate(losses):
        row = UpdateRow(index, at=AT, loss_at=AT, time=float(index), loss=loss, lr=0.1)
        row.grad_norm = norms[index] if norms else None
        for name, value in facts.items():
            setattr(row, name, value[index] if isinstance(value, list) else value)
        run.append(row)
    return run


def add_sample(run: Series, index: int, signal: float = 0.0, **columns: list[float]) -> None:
    count = len(next(iter(columns.values())))
    layout = Layout(
        0, [ParameterInfo(f"layer{i}.weight", "Linear", i, (8, 8)) for i in range(count)]
    )
    filled = {
        "norm": [1.0] * count,
        "largest": [1.0] * count,
        "zeros": [0.0] * count,
        "weight": [1.0] * count,
        "ratio": [1e-3] * count,
        "state": [1.0] * count,
    }
    filled |= columns
    values = [filled.get(c, [math.nan] * count)[i] for i in range(count) for c in COLUMNS]
    sample = Sample(layout, lambda: (values, signal), index=index)
    sample.resolve()
    run.tracks[0].samples.append(sample)


def codes(run: Series, code: str) -> list[Finding]:
    rule = rule_by_code(code)
    assert rule is not None
    return list(rule.check_series(run))


def falling(count: int, noise: float = 0.05) -> list[float]:
    chance = random.Random(0)
    return [2.0 * math.exp(-i / count) + noise * chance.gauss(0, 1) for i in range(count)]


@pytest.mark.parametrize(
    ("factor", "worse", "told"), [(300, True, True), (300, False, False), (30, True, False)]
)
def test_an_explosion_needs_both_the_norm_and_the_loss(
    factor: float, worse: bool, told: bool
) -> None:
    losses, norms = falling(200), [1.0] * 200
    norms[150:] = [float(factor)] * 50
    if worse:
        losses[150:] = [9.0 + i for i in range(50)]
    assert bool(codes(run_of(losses, norms), "FL120")) is told


def test_an_explosion_into_nan_is_told() -> None:
    losses, norms = falling(100), [1.0] * 100
    norms[60], losses[61:] = 1e6, [math.nan] * 39
    (found,) = codes(run_of(losses, norms), "FL120")
    assert found.evidence["step"] == 60 and found.evidence["loss_after"] == "not finite"


def test_a_phase_whose_loss_falls_again_is_no_explosion() -> None:
    losses, norms = (
        falling(100) + [50 * math.exp(-i / 30) for i in range(100)],
        [1.0] * 100 + [200.0] * 100,
    )
    assert codes(run_of(losses, norms), "FL120") == []


@pytest.mark.parametrize(("jump", "told"), [(3.0, False), (30.0, True)])
def test_a_spike_is_far_out(jump: float, told: bool) -> None:
    losses = falling(200)
    losses[150] *= jump
    assert bool(codes(run_of(losses), "FL624")) is told


def test_a_level_that_stays_is_no_spike() -> None:
    losses = falling(150) + [30.0 + random.Random(1).gauss(0, 1) for _ in range(100)]
    assert codes(run_of(losses), "FL624") == []


@pytest.mark.parametrize(
    ("kind", "severity"), [("SGD", Severity.WARNING), ("AdamW", Severity.INFO)]
)
def test_clipping_always_is_worse_without_adam(kind: str, severity: Severity) -> None:
    run = run_of(falling(60), clip_norm=5.0, clip_threshold=1.0)
    run.tracks[0].facts["type"] = kind
    (found,) = codes(run, "FL124")
    assert found.severity is severity and found.evidence["clipped"] == 1.0
    assert codes(run_of(falling(49), clip_norm=5.0, clip_threshold=1.0), "FL124") == [], (
        "fifty updates at least"
    )
    assert (
        codes(run_of(falling(60), clip_norm=[5.0, 5.0, 0.5] * 20, clip_threshold=1.0), "FL124")
        == []
    )


@pytest.mark.parametrize(("losses", "told"), [([2.0] * 100, True), (falling(100, 0.0), False)])
def test_vanishing_needs_a_loss_that_does_not_fall(losses: list[float], told: bool) -> None:
    run = run_of(losses)
    for index in range(0, 100, 5):
        add_sample(run, index, norm=[1e-6, 1e-6, 1e-4, 1e-3, 1.0, 1.0])
    assert bool(codes(run, "FL121")) is told


def test_dead_parameters_are_named_and_others_are_not() -> None:
    run = run_of(falling(100))
    for index in range(0, 100, 5):
        chosen = float(index % 20 == 0)  # now and then, as an expert is
        add_sample(
            run, index, largest=[1.0, 0.0, 1.0], state=[1.0, 1.0, 1.0], zeros=[0.0, 1.0, chosen]
        )
    (found,) = codes(run, "FL122")
    assert found.evidence["parameters"] == ["layer1.weight"]
    frozen = run_of(falling(100))
    for index in range(0, 100, 5):
        add_sample(frozen, index, largest=[1.0, math.nan], state=[1.0, 2.0])
    assert codes(frozen, "FL122") == []


def test_a_flat_loss_needs_gradients_that_agree() -> None:
    for signal, told in ((0.9, True), (0.02, False)):
        run = run_of([2.0] * 200)
        for index in range(0, 200, 10):
            add_sample(run, index, signal=signal, norm=[1.0] * 3)
        assert bool(codes(run, "FL625")) is told


def test_a_run_that_fell_at_once_and_is_at_its_floor_is_not_flat() -> None:
    chance = random.Random(0)
    for start, told in ((5.0, False), (0.0, True)):
        run = run_of(
            [0.5 + start * math.exp(-i / 20) + 0.01 * chance.gauss(0, 1) for i in range(2000)]
        )
        for index in range(0, 2000, 50):
            add_sample(run, index, signal=0.9, norm=[1.0] * 3)
        assert bool(codes(run, "FL625")) is told


def test_the_share_that_waits_for_data_is_the_quotient_of_the_times_beside_it() -> None:
    slow = [{"data": 0.02 if i % 10 else 0.2, "forward": 0.01} for i in range(80)]
    (found,) = codes(run_of(falling(80), seconds=slow), "FL520")
    wait, total = found.evidence["data_ms"], found.evidence["update_ms"]
    assert found.evidence["share"] == pytest.approx(wait / total)
    assert f"{wait / total:.0%} of the time" in found.message


def test_a_warm_up_is_no_flat_loss() -> None:
    run = run_of([2.0] * 200, lr=[i * 1e-9 for i in range(200)])
    for index in range(0, 200, 10):
        add_sample(run, index, signal=0.9, ratio=[1e-9] * 3)
    assert codes(run, "FL625") == codes(run, "FL123") == []


def test_skips_that_growth_explains_are_fine() -> None:
    scale, skipped = [1024.0], [False]
    for index in range(1, 200):
        grow = index % 10 == 0
        scale.append(2048.0 if grow else 1024.0)
        skipped.append(grow)
    assert codes(run_of(falling(200), scale=scale, skipped=skipped), "FL220") == []
    assert codes(run_of(falling(200), scale=1024.0, skipped=skipped), "FL220") != []


def test_a_scale_that_finds_its_level_has_not_collapsed() -> None:
    scale = [65536.0 / 2**i for i in range(6)] + [1024.0] * 94
    skipped = [True] * 6 + [False] * 94
    assert codes(run_of(falling(100), scale=scale, skipped=skipped), "FL221") == []
    gone = [65536.0 / 2**i for i in range(40)]
    assert codes(run_of([math.nan] * 40, scale=gone, skipped=True), "FL221") != []


def test_graphs_that_are_released_again_are_no_leak() -> None:
    window = [i % 60 for i in range(240)]
    assert codes(run_of(falling(240), graphs=window), "FL420") == []
    assert codes(run_of(falling(240), graphs=list(range(240))), "FL420") != []


def test_waiting_for_data_must_matter() -> None:
    fast = {"data": 0.0006, "forward": 0.0002, "backward": 0.0002}
    slow = {"data": 0.06, "forward": 0.02, "backward": 0.02}
    assert codes(run_of(falling(80), seconds=fast), "FL520") == []
    assert codes(run_of(falling(80), seconds=slow), "FL520") != []


def test_sharded_parameters_may_differ_between_ranks() -> None:
    def two(wrapper: str | None, equal_at_start: bool) -> Series:
        run = Series()
        for rank in range(2):
            track = run.track(rank, "optimizer#1")
            track.rows.append(UpdateRow(0, at=AT))
            track.facts["wrapper"] = wrapper
            track.fingerprints = {
                i: [1.0 + (0 if equal_at_start and i == 0 else rank), 2.0] for i in (0, 1, 2, 4)
            }
        return run

    assert codes(two("ddp", True), "FL320") and codes(two("ddp", False), "FL320")
    assert codes(two(None, True), "FL320")
    assert codes(two(None, False), "FL320") == codes(two("fsdp2", True), "FL320") == []


def test_rules_hold_on_runs_with_nothing_in_them() -> None:
    empty = Series()
    started = run_of([1.0])
    broken = run_of(
        [math.nan] * 300,
        [math.inf] * 300,
        scale=math.nan,
        clip_norm=math.nan,
        clip_threshold=math.inf,
    )
    for run in (empty, started, broken):
        for rule in NUMERIC:
            assert all(f.at is AT for f in rule.check_series(run))
