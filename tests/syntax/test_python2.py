"""Code for Python 2 is read as Python 3, in the same lines and, but for what follows a new bracket, in the same columns."""

from __future__ import annotations

import ast

import pytest

from fallline.syntax.python2 import as_python3
from fallline.syntax.source import Source

PAIRS = {
    'print "a", x  # why': 'print("a", x)  # why',
    "print": None,
    'print("a")': None,
    "print (a), b": None,
    "print = log": None,
    'print >>f, "b" % (1,\n   2)': 'print(  f, "b" % (1,\n   2))',
    "if x: print x,": "if x: print(x,)",
    "print 'a' + \\\n   'b'; print c": "print('a' + \\\n   'b'); print(c)",
    "try:\n  f()\nexcept (A, B), e: print e": "try:\n  f()\nexcept (A, B) as e: print(e)",
    'raise E, "why"': 'raise E( "why")',
    "y = 0777 + 10L": "y =  777 + 10 ",
    "if a <> b: pass": "if a != b: pass",
    "x.cuda(async=True)": "x.cuda(asynk=True)",
    's = """print x\nprint y"""': None,
    'exec "x = 1"': 'exec("x = 1")',
}


@pytest.mark.parametrize("old", PAIRS)
def test_spelled(old: str) -> None:
    assert as_python3(old) == PAIRS[old]
    ast.parse(as_python3(old) or old)


def test_the_note_stays_and_the_rest_is_read() -> None:
    source = Source("a.py", 'x = 1\nprint "x"\nif True:\n    y = 2\n')
    names = [n.id for n in ast.walk(source.parse()) if isinstance(n, ast.Name)]
    assert sorted(names) == ["print", "x", "y"]
    assert source.old and source.unread[0].line == 2
