"""Each tool: what it returns, and what it says when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from fallline.cli.main import main
from fallline.location import Location
from fallline.mcp import work
from fallline.mcp.server import make_server
from fallline.rules import all_rules
from fallline.runs.update import UpdateRow
from fallline.specialists import SPECIALISTS
from fallline.watcher.recorder import Recorder
from mcp import Client

from .conftest import CLIPS_LATE, Call

pytestmark = pytest.mark.anyio

TOOLS = {
    "check_code",
    "check_path",
    "fix_code",
    "ask",
    "check_advice",
    "read_run",
    "diff_runs",
    "propose_clip",
    "explain_rule",
    "list_specialists",
}


def codes(result: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in result["findings"]]


async def test_every_tool_says_what_it_is(root: Path) -> None:
    async with Client(make_server(root)) as client:
        tools = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        assert tool.description and tool.output_schema is not None, tool.name
        assert tool.annotations is not None and tool.annotations.read_only_hint
        described = tool.input_schema.get("properties", {}).values()
        assert all("description" in argument for argument in described), tool.name


async def test_the_schemas_are_short(root: Path) -> None:
    """An agent reads all of them before its first question."""
    async with Client(make_server(root)) as client:
        tools = (await client.list_tools()).tools
    size = sum(len(json.dumps([tool.input_schema, tool.output_schema])) for tool in tools)
    assert size <= 10_240, size


async def test_code_is_checked(root: Path) -> None:
    async with Client(make_server(root)) as client:
        result = await client.call_tool("check_code", {"code": CLIPS_LATE})
    found = result.structured_content
    assert found is not None and codes(found) == ["FL101"]
    assert found["findings"][0]["line"] == 9 and found["findings"][0]["fix"]["safe"]
    assert found["verdict"] == "1 error"
    assert json.loads(result.content[0].text) == found


async def test_a_silenced_finding_is_counted(call: Call) -> None:
    quiet = CLIPS_LATE.replace("1.0)", "1.0)  # noqa: FL101")
    found = await call("check_code", code=quiet)
    assert found["findings"] == [] and found["silenced"] == 1


async def test_a_path_is_checked_as_the_command_does(
    call: Call, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    main(["check", "train.py", "--output-format", "json", "--no-cache"])
    printed = json.loads(capsys.readouterr().out)
    found = await call("check_path", path="train.py")
    assert [f["code"] for f in printed] == ["FL101"]
    # places inside the evidence are relative to the working directory, which the server's root need not be
    same = (
        "code",
        "name",
        "severity",
        "message",
        "path",
        "line",
        "column",
        "end_line",
        "specialist",
    )
    for ours, theirs in zip(found["findings"], printed, strict=True):
        assert {k: ours[k] for k in same} == {k: theirs[k] for k in same}


async def test_a_folder_is_checked_without_the_links_that_lead_out(call: Call) -> None:
    found = await call("check_path", path=".")
    assert [f["path"] for f in found["findings"]] == ["train.py"]
    assert len(found["left_out"]) == 1 and "link.py" in found["left_out"][0]


async def test_settings_below_the_root_count(call: Call, root: Path) -> None:
    (root / "pyproject.toml").write_text('[tool.fallline]\nignore = ["FL101"]\n')
    assert (await call("check_path", path="."))["findings"] == []


async def test_settings_above_the_root_do_not(call: Call, root: Path) -> None:
    (root.parent / "pyproject.toml").write_text('[tool.fallline]\nignore = ["FL101"]\n')
    assert codes(await call("check_path", path=".")) == ["FL101"]


async def test_fixed_code_is_right(call: Call) -> None:
    fixed = await call("fix_code", code=CLIPS_LATE)
    assert fixed["changed"] and [f["code"] for f in fixed["made"]] == ["FL101"]
    assert fixed["remaining"] == [] and fixed["diff"].startswith("---")
    assert (await call("check_code", code=fixed["code"]))["findings"] == []


async def test_code_that_is_right_is_left_alone(call: Call) -> None:
    right = (await call("fix_code", code=CLIPS_LATE))["code"]
    again = await call("fix_code", code=right)
    assert again["code"] == right and not again["changed"] and again["diff"] == ""


async def test_a_question_with_code_is_answered_from_the_code(call: Call) -> None:
    answer = await call("ask", question="my gradients look odd, is this right?", code=CLIPS_LATE)
    assert codes(answer) == ["FL101"] and answer["about_training"]
    assert answer["routes"][0]["specialist"] == "gradient-management"
    assert (await call("check_code", code=answer["corrected"]))["findings"] == []
    by_path = await call("ask", question="my gradients look odd, is this right?", path="train.py")
    assert by_path["corrected"] == answer["corrected"]
    assert by_path["findings"][0]["path"] == "train.py"


async def test_fixes_carry_their_condition(call: Call) -> None:
    answer = await call("ask", question="how do I clip with a GradScaler?", more=True)
    assert answer["answer"] and answer["actions"]
    fixes = answer["more"].partition("## Fixes")[2].partition("\n## ")[0]
    assert fixes.count("### ") == fixes.count("\nIf ") > 0


async def test_an_answer_is_short_unless_more_is_asked_for(call: Call) -> None:
    for question in ("my loss is nan", "CUDA out of memory", "how do I set up DDP on 8 GPUs?"):
        short = await call("ask", question=question)
        assert len(json.dumps(short)) <= 3000 and short["more"] == ""
        assert len(json.dumps(await call("ask", question=question, more=True))) > 3000
    long = await call("ask", question="is this right?", code=CLIPS_LATE + "\n# filler" * 500)
    assert len(json.dumps(long)) <= 3000


async def test_what_is_not_about_training_has_no_answer(call: Call) -> None:
    answer = await call("ask", question="what is the best pizza topping")
    assert not answer["about_training"] and answer["actions"] == [] == answer["routes"]
    assert answer["answer"].count(".") == 1


async def test_a_rule_is_explained_by_code_and_by_name(call: Call) -> None:
    by_code = await call("explain_rule", code="FL101")
    assert by_code == await call("explain_rule", code="clip-after-step")
    assert by_code["wrong"] and by_code["right"] and by_code["why"]
    own = by_code["evidence"][0]
    assert own["name"] == "FL101" and own["measured"] and own["numbers"]


async def test_an_answer_shows_what_was_measured(call: Call) -> None:
    found = await call("ask", question="how do I clip with a GradScaler?", more=True)
    assert "## Measured" in found["more"] and "`unscale-twice-raises`" in found["more"]


async def test_advice_is_checked(call: Call) -> None:
    bad = "Gradient clipping fixes NaN.\n\n```python\n" + CLIPS_LATE + "```\n"
    found = (await call("check_advice", text=bad))["result"]
    assert [c["backs"] for c in found] == ["fact clipping-spreads-nan", "FL101"]
    assert (await call("check_advice", text="Use cross_entropy on the logits."))["result"] == []
    assert "there is no advice" in await call("check_advice", text="  ")


async def test_the_specialists_are_ten(call: Call) -> None:
    found = (await call("list_specialists"))["result"]
    assert [s["name"] for s in found] == [s.name for s in SPECIALISTS]
    assert sum(len(s["rules"]) for s in found) == len(all_rules())


async def test_a_run_is_read_and_left_as_it_is(call: Call, root: Path) -> None:
    recorder = Recorder(root / "run", 0, 1, {"script": "train.py", "cwd": str(root)})
    for index in range(60):
        lost = float("nan") if index == 40 else 1.0 / (1 + index)
        recorder.update(UpdateRow(index, at=Location("train.py", 8), loss=lost, lr=0.1))
    recorder.close("finished")
    before = {p: p.read_bytes() for p in (root / "run").iterdir()}
    found = await call("read_run", folder="run")
    assert found["updates"] == 60 and found["status"] == "finished"
    assert found["numbers"]["learning_rate"] == 0.1
    after = {
        p: p.read_bytes() for p in (root / "run").iterdir() if p.name in {q.name for q in before}
    }
    assert (await call("diff_runs", a="run", b="run"))["same"]
    assert after == before and not (root / "run" / "findings.json").exists()
    assert (await call("ask", question="why did my loss diverge?", run="run"))["about_training"]


async def test_a_threshold_comes_from_a_runs_norms(call: Call, root: Path) -> None:
    recorder = Recorder(root / "run", 0, 1, {"script": "train.py", "cwd": str(root)})
    for index in range(400):
        norm = 50.0 if index % 40 == 0 else 1.0
        recorder.update(
            UpdateRow(index, at=Location("train.py", 8), clip_norm=norm, clip_threshold=9.0)
        )
    recorder.close("finished")
    before = {p: p.read_bytes() for p in (root / "run").iterdir()}
    (clip,) = (await call("propose_clip", folder="run"))["result"]
    assert (clip["max_norm"], clip["clipped"], clip["now"]) == (1.0, 0.025, 9.0)
    assert {p: p.read_bytes() for p in (root / "run").iterdir()} == before
    assert "would clip 90%" in await call("propose_clip", folder="run", quantile=0.1)
    assert "leads out" in await call("propose_clip", folder="away")


async def test_resources_hold_the_rules_and_the_playbooks(root: Path) -> None:
    async with Client(make_server(root)) as client:
        templates = (await client.list_resource_templates()).resource_templates
        assert {t.uri_template for t in templates} == {
            "fallline://rules/{code}",
            "fallline://playbooks/{specialist}",
        }
        rule = await client.read_resource("fallline://rules/FL201")
        assert rule.contents[0].text.startswith("# FL201")
        for specialist in SPECIALISTS:
            book = await client.read_resource(f"fallline://playbooks/{specialist.name}")
            assert "## Measure first" in book.contents[0].text
        for uri in ("fallline://rules/FL999", "fallline://playbooks/cooking"):
            with pytest.raises(MCPError, match="there is no"):
                await client.read_resource(uri)


async def test_a_call_that_takes_too_long_is_given_up(call: Call, root: Path) -> None:
    """Its process is killed, and the next call gets another."""
    slow = CLIPS_LATE + CLIPS_LATE.partition("* 3:\n")[2] * 4000
    async with Client(make_server(root, seconds=4.0)) as client:
        result = await client.call_tool("check_code", {"code": slow})
    assert result.is_error and "not finished within" in result.content[0].text
    assert codes(await call("check_code", code=CLIPS_LATE)) == ["FL101"]


async def test_many_findings_are_cut_short(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_FINDINGS", 1)
    found = work.check_code(CLIPS_LATE + CLIPS_LATE)
    assert len(found.findings) == 1 and found.not_shown == 1 and found.verdict == "2 errors"


def test_torch_is_never_imported(root: Path) -> None:
    script = """
import sys
from pathlib import Path
from fallline.errors import FalllineError
from fallline.mcp import server, work
from fallline.mcp.confine import Root

code, root = Path("train.py").read_text(), Root(Path("."))
server.make_server(Path("."))
work.check_code(code), work.check_path(".", root), work.fix_code(code), work.explain_rule("FL201"), work.list_specialists(), work.check_advice("clip")
work.ask("loss is nan", code, "", "", False, root)
try:
    work.read_run(".", root)
except FalllineError:
    pass
assert "torch" not in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
