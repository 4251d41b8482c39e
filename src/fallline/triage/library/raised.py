"""Which function of an installed library raises or prints a pasted message, and under which condition."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fallline.triage.library.installed import File, at_path, holding, named_in, version_of
from fallline.triage.library.said import in_words

__all__ = ["Site", "advice_in", "raised_by"]

_WORD = re.compile(r"[A-Za-z][A-Za-z'_-]*[,.;:]?")
_CLASS = re.compile(r"^(?:\S*:\d+: )?(?:[\w.]+(?:Error|Exception|Warning|Interrupt): ?)+")
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b")
_LONG = 3  # words of a piece that is looked for
_PIECES = 4
_OWN = (
    18  # the characters of a message that are its own, not values: with fewer it could be anything
)
# how much of a message's words must be in the paste, where its longest part begins there, and else: versions differ
_BEGUN, _MOST_OF_IT, _NEARLY_ALL, _FEWEST = 60, 0.6, 0.95, 3
_BEST = 3  # files that are parsed
_WARNS = re.compile(r"warn|deprecat", re.I)
_LOGS = re.compile(r"(?:log|info|print|debug|error|exception)", re.I)
_ADVICE = re.compile(
    r"(?i)\b(please|consider|you (?:can|should|may|need|must|have to)|should|use|set|pass|call|try|make sure|instead|lower|increase|install|remove|provide|specify|ensure|enable|disable|switch)\b"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


@dataclass(slots=True)
class Site:
    """A place in a library that produces a message."""

    library: str
    module: str
    function: str
    kind: str  # raises ValueError, warns, logs
    template: list[ast.expr | str]
    tests: list[str]  # the conditions around it, in words, outermost first
    own: int = 0
    values: dict[str, str] = field(default_factory=dict)
    shared: bool = (
        False  # another function has the same message: the conditions of this one need not hold
    )

    @property
    def literals(self) -> list[str]:
        return [p for p in self.template if isinstance(p, str)]

    @property
    def rank(self) -> tuple[int, bool]:
        """The longest message is the most particular; of two the same, a public function's."""
        return self.own, "._" not in f".{self.where}"

    @property
    def where(self) -> str:
        return f"{self.module}.{self.function}" if self.function else self.module

    @property
    def version(self) -> str:
        return version_of(self.library)

    @property
    def recommends(self) -> str:
        """What the message itself tells people to do."""
        text = "".join(p if isinstance(p, str) else self._value(p) for p in self.template)
        return advice_in(text)

    def _value(self, part: ast.expr) -> str:
        code = ast.unparse(part)
        return self.values.get(code, f"`{code}`")


def advice_in(message: str) -> str:
    """The first sentences of a message that tell people what to do."""
    sentences = _SENTENCE.split(" ".join(message.split()))
    return " ".join([s for s in sentences if _ADVICE.search(s)][:2])


def raised_by(message: str, around: str) -> Site | None:
    """The place in the installed libraries that produces this message; `around` is all that was pasted, whose paths and names say where to look first."""
    flat = _CLASS.sub("", " ".join(message.split()))
    pieces = _pieces(flat)
    if not pieces:
        return None
    told = at_path(around)
    error = _ERROR.match(message) is not None
    site = _best(told, flat, error)
    if site is not None:
        return site
    libraries = named_in(around)
    for some in ([*libraries] if libraries else None, None):
        found = sorted(
            holding(pieces, some or (), min(2, len(pieces))),
            key=lambda row: (-row[0], row[1].depth),
        )
        most = found[0][0] if found else 0
        site = _best([file for held, file in found if held == most][:_BEST], flat, error)
        if site is not None or some is None:
            return site
    return None


def _pieces(flat: str) -> list[str]:
    """Runs of words in a message that are probably not values, the longest first: they are looked for as written."""
    runs: list[list[str]] = [[]]
    for word in flat.split(" "):
        if _WORD.fullmatch(word):
            runs[-1].append(word)
        elif runs[-1]:
            runs.append([])
    cut = [" ".join(run[n : n + _LONG]) for run in runs for n in range(len(run) - _LONG + 1)]
    return sorted(dict.fromkeys(cut), key=lambda piece: -len(piece))[:_PIECES]


def _best(files: Sequence[File], flat: str, error: bool) -> Site | None:
    found: Site | None = None
    for file in files:
        for site in _sites(file):
            if (error and site.kind in ("warns", "logs")) or not _matches(site, flat):
                continue  # what was raised as an error is not a warning
            shared = found is not None and found.own == site.own
            if found is None or site.rank > found.rank:
                found = site
            found.shared = shared
    return found


def _matches(site: Site, flat: str) -> bool:
    """Whether a paste holds a message; notes the values in it."""
    literals = [" ".join(part.split()) for part in site.literals]
    own = sum(map(len, literals))
    if own < _OWN:
        return False
    low = flat.lower()
    pairs = [" ".join(two).lower() for part in literals for two in pairwise(part.split())]
    held = sum(pair in low for pair in pairs) / max(1, len(pairs))
    begun = max(literals, key=len)[:_BEGUN].lower() in low
    if held < (_MOST_OF_IT if begun else _NEARLY_ALL) or (not begun and len(pairs) < _FEWEST):
        return False
    site.own = own
    _note_values(site, flat)
    return True


def _note_values(site: Site, flat: str) -> None:
    pattern, names = "", []
    for part in site.template:
        if isinstance(part, str):
            pattern += r"\s*".join(re.escape(w) for w in part.split())
            pattern = f"{pattern}\\s*" if part[-1:].isspace() else pattern
        else:
            names.append(ast.unparse(part))
            pattern += r"\s*(.{0,200}?)\s*" if part is not site.template[-1] else r"\s*(\S{0,80})"
    match = re.search(pattern, flat, re.S)
    if match is not None:
        site.values = {
            n: v for n, v in zip(names, match.groups(), strict=True) if v and len(v) < 80
        }


def _sites(file: File) -> Iterator[Site]:
    """All texts in a file that a statement raises, warns of, logs or keeps for later."""
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from _in_block(tree.body, file, "", [])


def _in_block(body: list[ast.stmt], file: File, name: str, tests: list[str]) -> Iterator[Site]:
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                inner = f"{name}.{statement.name}" if name else statement.name
                yield from _in_block(statement.body, file, inner, [])
            case ast.If():
                yield from _in_block(statement.body, file, name, [*tests, in_words(statement.test)])
                other = [*tests, in_words(statement.test, False)]
                yield from _in_block(statement.orelse, file, name, other)
            case ast.Try():
                for block in (statement.body, statement.orelse, statement.finalbody):
                    yield from _in_block(block, file, name, tests)
                for handler in statement.handlers:
                    caught = ast.unparse(handler.type) if handler.type else "an exception"
                    yield from _in_block(
                        handler.body, file, name, [*tests, f"`{caught}` was raised inside"]
                    )
            case ast.For() | ast.While() | ast.With() | ast.AsyncFor() | ast.AsyncWith():
                yield from _in_block(statement.body, file, name, tests)
            case ast.Assert() if statement.msg is not None:
                asserted = [*tests, in_words(statement.test, False)]
                yield from _texts(statement.msg, statement, file, name, asserted)
            case _:
                yield from _texts(statement, statement, file, name, tests)


def _texts(
    node: ast.AST, statement: ast.stmt, file: File, name: str, tests: list[str]
) -> Iterator[Site]:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring
    template = _template(node) if isinstance(node, ast.expr) else None
    if template is not None:
        if sum(len(p) for p in template if isinstance(p, str)) >= _OWN:
            yield Site(file.library, file.module, name, _kind(statement), template, tests)
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child, statement, file, name, tests)


def _kind(statement: ast.stmt) -> str:
    match statement:
        case ast.Raise(exc=ast.Call(func=made)):
            return f"raises {ast.unparse(made).rpartition('.')[2]}"
        case ast.Raise():
            return "raises"
        case ast.Assert():
            return "raises AssertionError"
        case ast.Expr(value=ast.Call(func=called)):
            by = ast.unparse(called)
            return "warns" if _WARNS.search(by) else "logs" if _LOGS.search(by) else "uses"
    return "uses"


def _template(node: ast.expr) -> list[ast.expr | str] | None:
    """The literal parts of a text and the expressions between them; None for what is not text."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr():
            return [p for part in node.values for p in _template(part) or [part]]
        case ast.FormattedValue(value=value):
            return [value]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            one, two = _template(left), _template(right)
            if one is None and two is None:
                return None
            return [*(one or [left]), *(two or [right])]
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str(text)), right=right):
            values = right.elts if isinstance(right, ast.Tuple) else [right]
            return _woven(re.split(r"%(?:\.\d+)?[sdrfx]", text), values)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return _woven(re.split(r"\{[^{}]*\}", text), node.args)
    return None


def _woven(literals: list[str], values: list[ast.expr]) -> list[ast.expr | str]:
    woven: list[ast.expr | str] = []
    for n, literal in enumerate(literals):
        woven.append(literal)
        if n < len(literals) - 1:
            woven.append(values[n] if n < len(values) else ast.Name("value"))
    return woven
