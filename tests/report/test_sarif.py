"""SARIF 2.1.0: its shape, what code scanning asks for, and fingerprints that survive moved lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fallline.rules import all_rules

WRONG = """\
import torch

model = torch.nn.Linear(1, 1)


def train(x):
    return model.forward(x)
"""


def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others, as SARIF's own schema closes every object."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def many(item: dict[str, Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": item, **bounds}


STRING: dict[str, Any] = {"type": "string"}
BAG = {"type": "object"}
COUNT = {"type": "integer", "minimum": 1}
MESSAGE = closed("text", text=STRING, markdown=STRING)
ARTIFACT = closed("uri", uri={"type": "string", "pattern": r"^[^\\ ]+$"}, uriBaseId=STRING)
REGION = closed("startLine", startLine=COUNT, startColumn=COUNT, endLine=COUNT, endColumn=COUNT)
LEVEL = {"enum": ["error", "warning", "note"]}
RULE = closed(
    "id name shortDescription fullDescription help",
    id={"type": "string", "pattern": r"^FL\d{3}$"},
    name={"type": "string", "maxLength": 255},
    shortDescription=closed("text", text={"type": "string", "minLength": 1, "maxLength": 1024}),
    fullDescription=closed("text", text={"type": "string", "minLength": 1, "maxLength": 1024}),
    help=MESSAGE,
    defaultConfiguration=closed(level=LEVEL),
    properties=BAG,
)
REPLACEMENT = closed("deletedRegion", deletedRegion=REGION, insertedContent=closed(text=STRING))
CHANGE = closed(
    "artifactLocation replacements",
    artifactLocation=ARTIFACT,
    replacements=many(REPLACEMENT, minItems=1),
)
RESULT = closed(
    "ruleId message locations partialFingerprints",
    ruleId=STRING,
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    message=MESSAGE,
    locations=many(
        closed(
            "physicalLocation",
            physicalLocation=closed(
                "artifactLocation region", artifactLocation=ARTIFACT, region=REGION
            ),
            logicalLocations=many(closed(fullyQualifiedName=STRING, kind=STRING)),
        ),
        minItems=1,
    ),
    partialFingerprints=closed("primaryLocationLineHash", primaryLocationLineHash=STRING),
    fixes=many(
        closed("artifactChanges", description=MESSAGE, artifactChanges=many(CHANGE, minItems=1))
    ),
    properties=BAG,
)
DRIVER = closed("name rules", name=STRING, version=STRING, semanticVersion=STRING, rules=many(RULE))
RUN = closed(
    "tool results originalUriBaseIds",
    tool=closed("driver", driver=DRIVER),
    automationDetails=closed(id=STRING),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    originalUriBaseIds={"type": "object", "additionalProperties": closed("uri", uri=STRING)},
    invocations=many(closed("executionSuccessful", executionSuccessful={"type": "boolean"})),
    results=many(RESULT),
)
# The part of SARIF 2.1.0 that we write, as strictly as its schema, plus what GitHub requires on top.
SCHEMA = closed(
    "$schema version runs", **{"$schema": STRING, "version": {"const": "2.1.0"}, "runs": many(RUN)}
)


@pytest.fixture
def sarif(project: Path, fallline: Callable) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        log = json.loads(fallline("check", ".", "--output-format", "sarif").out)
        jsonschema.validate(log, SCHEMA)
        found: dict[str, Any] = log["runs"][0]
        return found

    return run


def test_every_rule_is_described(sarif: Callable) -> None:
    run = sarif()
    assert run["results"] == []
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [
        rule.code for rule in all_rules()
    ]


def test_a_result(project: Path, sarif: Callable) -> None:
    folder = project / "my code"
    folder.mkdir()
    (folder / "a.py").write_text(WRONG)
    run = sarif()
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "FL803"
    place = result["locations"][0]
    assert place["physicalLocation"]["artifactLocation"] == {
        "uri": "my%20code/a.py",
        "uriBaseId": "%SRCROOT%",
    }
    assert place["physicalLocation"]["region"]["startLine"] == 7
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "train"
    base = run["originalUriBaseIds"]["%SRCROOT%"]["uri"]
    assert base.startswith("file:///") and base.endswith("/")
    assert result["fixes"][0]["artifactChanges"][0]["replacements"]


def test_fingerprints_survive_moved_lines_and_tell_twins_apart(
    project: Path, sarif: Callable
) -> None:
    def fingerprints() -> list[str]:
        return [r["partialFingerprints"]["primaryLocationLineHash"] for r in sarif()["results"]]

    (project / "a.py").write_text(WRONG)
    before = fingerprints()
    (project / "a.py").write_text(WRONG.replace("def train", "A = 1\n\n\ndef train"))
    assert fingerprints() == before
    (project / "a.py").write_text(
        WRONG.replace("    return", "    model.forward(x)\n    model.forward(x)\n    return")
    )
    twins = fingerprints()
    assert len(set(twins)) == 3 and before[0] in twins


def test_unreadable_files_and_notebooks_are_valid_too(project: Path, sarif: Callable) -> None:
    (project / "bad.py").write_text("def f(:\n")
    cell = {
        "cell_type": "code",
        "metadata": {},
        "source": WRONG,
        "outputs": [],
        "execution_count": None,
    }
    (project / "nb.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    results = sarif()["results"]
    assert [r["ruleId"] for r in results] == ["FL000", "FL803"]
    assert results[1]["message"]["text"].startswith("cell 1, line 7: ")
