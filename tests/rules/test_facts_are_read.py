"""A fact that nothing reads costs whoever makes it, and helps nobody: every field of an event or object has its reader."""

from __future__ import annotations

import ast
from pathlib import Path

import fallline.events

HOME = Path(fallline.events.__file__).parent
SOURCES = HOME.parent
# Read by the watcher, before a rule sees the trace.
ITS_OWN = {
    "parameter_set": "becomes `parameters` when a trace is built",
    "followed": "decides `used` when a trace is built",
    "last": "makes the last update of an epoch look new, so that it is recorded",
    "length": "says which batch is the last",
}


def fields(path: Path) -> set[str]:
    """The fields of the classes in a file."""
    classes = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef))
    return {
        n.target.id
        for c in classes
        for n in c.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id != "_"
    }


def read_in(*folders: Path) -> set[str]:
    """Every name that is read as an attribute, or asked for in a pattern."""
    trees = [ast.parse(p.read_text()) for folder in folders for p in folder.rglob("*.py")]
    nodes = [n for tree in trees for n in ast.walk(tree)]
    plain = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    return plain | {k for n in nodes if isinstance(n, ast.MatchClass) for k in n.kwd_attrs}


def test_every_fact_has_a_reader() -> None:
    facts = fields(HOME / "kinds.py") | fields(HOME / "objects.py")
    assert len(facts) > 50
    read = read_in(HOME, SOURCES / "rules", SOURCES / "verdict")
    assert facts - read - ITS_OWN.keys() == set()
    assert ITS_OWN.keys() <= read_in(SOURCES / "watcher")
