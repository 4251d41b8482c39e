"""Code that was pasted into a question: lines without fences, and fragments of a loop whose head or end was not pasted."""

from __future__ import annotations

import ast
import re
import textwrap

from fallline.syntax.nodes import below, methods_called

__all__ = [
    "as_far_as",
    "cut_off",
    "end_of_update",
    "in_a_loop",
    "in_words",
    "one_step_of_two",
    "parsed",
    "pieces",
    "statements",
]

_WORDS = r"(?:import|from|def|class|return|with|for|while|if|elif|else|try|except|@\w)\b[^\n]*[:\w)]\s*(?:#.*)?$"
_STATEMENT = re.compile(
    rf"\s*(?:{_WORDS}|[A-Za-z_][\w.\[\], ]*\s*[-+*/]?=[^=]|[A-Za-z_][\w.]*\(|\(\w)"
)
_QUOTED = re.compile(r"(?<!`)`([^`\n]*[(=][^`\n]*)`(?!`)")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)
_CALLS = re.compile(r"(?:[A-Za-z_][\w.\[\], ]*\s*[-+*/]?=[^=].*[(./*]|[A-Za-z_]\w*\.[\w.]+\()")
_COMMENT = re.compile(r"^[ \t]*#[^\n]*", re.M)
_MOSTLY = 0.8  # of the lines of a run that must parse
_SENTENCES = 4  # lines of prose that may begin like a statement
_CUT = 12  # lines at the end of a piece that may be left out so that the rest parses
_FEWEST = 3  # fewer lines may be prose, or one line of a traceback
_LOOKED_AT = 20_000
# what a whole script has in view: a step, a trainer that steps, or the optimizer that somebody steps
# two networks that play against each other
_RIVALS = re.compile(r"(?i)\b(?:critic|disc(?:riminator)?|net_?d|d)(?:_\w+)?\(")
_STEPS = re.compile(r"(?i)step|^fit$|trainer|^(adam|adamw|sgd|rmsprop|adagrad|lbfgs)$")


def statements(lines: list[str]) -> list[int]:
    """Which of some lines without fences are code: all of them, or each run of lines that look like statements and parse as Python."""
    if _only_code("\n".join(lines)):
        return list(range(len(lines)))
    runs: list[range] = [range(0)]
    for n, line in enumerate(lines):
        inside = bool(runs[-1]) and runs[-1].stop == n
        if inside and (_STATEMENT.match(line) or _goes_on(line)):
            runs[-1] = range(runs[-1].start, n + 1)
        elif _STATEMENT.match(line):
            runs.append(range(n, n + 1))
    return [n for run in runs for n in _without_words(run, lines)]


def _without_words(run: range, lines: list[str]) -> range:
    """A run of code without the sentences that it begins with (`if I use ...`); nothing of one that is no code."""
    for begin in range(run.start, min(run.start + _SENTENCES, run.stop)):
        rest = range(begin, run.stop)
        if _is_code([lines[n] for n in rest]):
            return rest
    return range(0)


def _is_code(run: list[str]) -> bool:
    filled = sum(bool(line.strip()) for line in run)
    tree = as_far_as("\n".join(run)) if filled >= _FEWEST else None
    if tree is None:
        return False
    read = {n for s in tree.body for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}
    return len(read) >= _MOSTLY * filled


def _goes_on(line: str) -> bool:
    """Whether a line that begins no statement of ours belongs to the code before it: indented, empty, a comment, or an expression that calls something."""
    if line[:1].isspace() or not line.strip() or (line[0] == "#" and line[1:2] != "#"):
        return True
    return "(" in line and "_" in line and parsed(line) is not None


def pieces(text: str, read: str) -> ast.Module:
    """All Python in a question, statement by statement: the code that was read, or those of its lines that parse; what is quoted in backticks; and single lines in prose that can be nothing but code."""
    body: list[ast.stmt] = []
    for source in (read, *_QUOTED.findall(text), *_lines_of_code(text)):
        if (tree := parsed(source)) is not None:
            body += tree.body
        elif "\n" in source:
            lines = (parsed(line.strip().removesuffix(":")) for line in source.splitlines())
            body += [statement for tree in lines if tree is not None for statement in tree.body]
    return ast.Module(body, [])


def in_words(prose: str) -> str:
    """Prose without its lines of code: they name much that is not asked about. All of it where nothing else is there."""
    lines = prose.splitlines()
    kept = [line for line in lines if not _CALLS.match(line.strip()) or parsed(line) is None]
    return "\n".join(kept) if any(line.strip() for line in kept) else prose


def _lines_of_code(text: str) -> list[str]:
    """Lines outside fences that assign what a call returns, or call a method."""
    prose = _FENCED.sub("", text[:_LOOKED_AT])
    return [line.strip() for line in prose.splitlines() if _CALLS.match(line.strip())]


def parsed(text: str) -> ast.Module | None:
    for spelling in (text, _COMMENT.sub("", text)):  # a comment may stand further to the left
        try:
            return ast.parse(textwrap.dedent(spelling))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if "#" not in text:
                return None
    return None


def as_far_as(text: str) -> ast.Module | None:
    """Pasted code, or as much of it as parses: pieces that lost their indentation are read one by one, each at its own lines."""
    if (whole := parsed(text)) is not None:
        return whole
    body: list[ast.stmt] = []
    for begin, piece in _by_margin(text.splitlines()):
        body += _at_its_lines(piece, begin)
    return ast.Module(body, []) if body else None


def _by_margin(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Pieces that begin where a line stands further to the left than the piece before it, each with the number of its first line."""
    found: list[tuple[int, list[str]]] = []
    margin = 0
    for n, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip())
        if line.strip() and (not found or indent < margin):
            found.append((n, []))
            margin = indent
        if found:
            found[-1][1].append(line)
    return found


def _at_its_lines(piece: list[str], begin: int) -> list[ast.stmt]:
    for cut in range(len(piece), 0, -1):  # what follows an unfinished line goes
        if len(piece) - cut > _CUT:
            break
        if (tree := parsed("\n".join(piece[:cut]))) is not None:
            return list(ast.increment_lineno(tree, begin - 1).body)
    return []


def _only_code(question: str) -> bool:
    """Whether a question is nothing but Python, of however few lines. `loss = nan` also parses: only a method called or an attribute set is code."""
    if "." not in question or (tree := parsed(question)) is None:
        return False
    if any(
        isinstance(op, ast.Is) for n in ast.walk(tree) if isinstance(n, ast.Compare) for op in n.ops
    ):
        return False  # "optimizer.step() is slow" is a sentence
    return any(
        (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
        for node in ast.walk(tree)
    )


def in_a_loop(code: str) -> str:
    """The head of the loop that a fragment is the inside of: it calls `backward` or a `step`, and neither loops nor defines anything. Nothing for other code."""
    tree = parsed(code)
    if tree is None or below(tree, ast.For, ast.While, ast.FunctionDef, ast.ClassDef):
        return ""
    if not methods_called(tree) & {"backward", "step"}:
        return ""
    counted = next((left for left in _counted(tree)), "_")
    return f"for {counted}, batch in enumerate(loader):"


def cut_off(code: str) -> bool:
    """Whether an excerpt shows no whole update: nothing in it steps, or `...` stands for what was left out."""
    tree = parsed(code)
    if tree is None:
        return False
    left_out = any(
        isinstance(node.value, ast.Constant) and node.value.value is ...
        for node in below(tree, ast.Expr)
    )
    return left_out or not any(_STEPS.search(name) for name, _ in _called(tree))


def one_step_of_two(code: str) -> bool:
    """Whether an excerpt trains only one of two networks that play against each other: the other's step, which may use the same graph, is not in it."""
    tree = parsed(code)
    return tree is not None and _RIVALS.search(code) is not None and sum(_STEPS.search(name) is not None for name, _ in _called(tree)) < 2  # fmt: skip


def end_of_update(code: str) -> str:
    """The usual end of an update, for an excerpt that stops between its backward and its step; nothing for other code. A mistake that is gone with it was only the cut."""
    tree = parsed(code)
    if tree is None or any(_STEPS.search(name) for name, _ in _called(tree)):
        return ""
    block = _block_of_backward(tree.body)
    if not block or isinstance(block[-1], ast.Return):
        return ""
    owners = {name: owner for name, owner in _called(tree) if owner}
    optimizer = next((ast.unparse(c.args[0]) for c in below(tree, ast.Call) if _name(c) == "unscale_" and c.args), "optimizer")  # fmt: skip
    scaler = owners.get("scale")
    steps = [f"{scaler}.step({optimizer})", f"{scaler}.update()"] if scaler else [f"{optimizer}.step()"]  # fmt: skip
    clears = [] if "zero_grad" in owners else [f"{optimizer}.zero_grad()"]
    margin = " " * block[-1].col_offset
    return "".join(f"\n{margin}{line}" for line in [*steps, *clears])


def _block_of_backward(body: list[ast.stmt]) -> list[ast.stmt]:
    """The innermost body of a loop or function that ends the excerpt and holds its backward."""
    if not any(_name(c) == "backward" for statement in body for c in below(statement, ast.Call)):
        return []
    last = body[-1]
    if isinstance(last, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
        return _block_of_backward(last.body)
    return [] if any(isinstance(s, ast.For | ast.While) and _block_of_backward(s.body) for s in body) else body  # fmt: skip


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _called(tree: ast.AST) -> list[tuple[str, str]]:
    """Each function or method that is called, with what it is a method of."""
    return [
        (_name(call), ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else "")
        for call in below(tree, ast.Call)
    ]


def _counted(tree: ast.AST) -> list[str]:
    """The names that a remainder is taken of: `i` in `(i + 1) % k`."""
    return [
        name.id
        for node in below(tree, ast.BinOp)
        if isinstance(node.op, ast.Mod)
        for name in below(node.left, ast.Name)
    ]
