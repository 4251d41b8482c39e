"""Code for a newer Python than the one that runs is read, with every name where it is written."""

from __future__ import annotations

import ast

import pytest

from fallline.syntax import Source, UnreadableError
from fallline.syntax.newer import older
from fallline.verdict.reading import read_text

NEWER = (
    'x = f"{a["b"]} and {c}"\n',
    "x = f'{a['b']:>{w}} {{}}'\n",
    "x = f\"{[f'{t.id}({t.type['name']})' for t in tasks]}\"\n",
    'x = f"{"\\n".join(lines)}"\n',
    'x = f"{\n    a  # why\n}"\ny = 1\n',
    'x = f"{f"{a}"}"\n',
    'x = f"{f"{a["k"]}"}" "b"\n',
    'print(f"{d["k"]:.2f}", f"{x!r:>10}", rf"\\d{a["k"]}")\n',
    'x = 1  # it\'s fine\ny = f"{a["b"]}"\n',
    "s = '''f\"{a}\" '''\nx = f\"{a[\"b\"]}\"\n",
    'f"{x:#x} {1 if x != 2 else "q"} {a:{b["x"]}}"\n',
    "type Pair = tuple[int, int]\ntype Many[T] = list[T]\n",
    "def f[T: (int, str)](x: T) -> T:\n    return x\n\n\nclass A[T](B):\n    pass\n",
    "try:\n    pass\nexcept A, B:\n    pass\n",
    'x = t"{a}"\n',
)


@pytest.mark.parametrize("code", NEWER)
def test_the_shape_stays(code: str) -> None:
    spelled = older(code) or code  # the Python that runs this may know it
    ast.parse(spelled)
    assert [len(line) for line in spelled.split("\n")] == [len(line) for line in code.split("\n")]


def test_names_stay_in_their_place() -> None:
    tree = Source("a.py", 'x = f"{a["b"]}"; y = 1\n').parse()
    assert [(n.id, n.col_offset) for n in ast.walk(tree) if isinstance(n, ast.Name)][1] == ("y", 17)


@pytest.mark.parametrize("code", ["print `x`\n", "def f(:\n", 'f"{x y}"\n', "x = 'never closed\n"])
def test_what_no_python_reads_is_unreadable(code: str) -> None:
    with pytest.raises(UnreadableError):
        Source("a.py", code).parse()


def test_a_finding_behind_newer_grammar() -> None:
    code = (
        "import torch\n\n\ndef distance_loss[T](a: T, b: T, d):\n"
        '    print(f"{d["k"]}")\n    return torch.sqrt((a - b) ** 2).mean()\n'
    )
    assert [(f.code, f.at.line) for f in read_text(code, "a.py")] == [("FL603", 6)]


def test_a_notebook_saved_as_one_file() -> None:
    code = "%%writefile a.py\nimport torch\n!pip install x\n\n\ndef f_loss(a, b):\n    return torch.sqrt((a - b) ** 2).mean()\n"
    assert [(f.code, f.at.line) for f in read_text(code, "a.py")] == [("FL603", 7)]
