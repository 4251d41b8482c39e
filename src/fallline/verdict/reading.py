"""One file to its findings: the syntax rules, the traces, the event rules, the fixes."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fallline.finding import Finding, Severity
from fallline.flow.turned_off import behind_a_switch_that_is_off
from fallline.flow.unreached import published, unreached
from fallline.flow.unused import in_an_arm_for_nobody
from fallline.location import Location
from fallline.matters import nothing_to_find, of_another_framework
from fallline.reader.execute import traces_of
from fallline.reader.relevance import TOKENS
from fallline.reader.roots import Root
from fallline.rule import Rule, defining
from fallline.rules import reader_rules
from fallline.settle import settle
from fallline.syntax import Module, Project, Source, UnreadableError
from fallline.syntax.age import needs_old_torch
from fallline.syntax.nodes import is_name
from fallline.syntax.project import Question
from fallline.syntax.tokens import Tokens
from fallline.syntax.uncalled import never_runs
from fallline.syntax.unit_tests import made_up
from fallline.verdict import examine, refuted, together

__all__ = ["Reading", "Rest", "read_data", "read_text", "unreadable"]

_TRIES = re.compile(r"_*((test|try|check)_\w+|(demo|example|smoke|sanity)(_\w*)?)$")
SECONDS_PER_FILE = (
    9.0  # of processor time: what is found must not depend on how busy the machine is
)


@dataclass
class Reading:
    """What was read in one file. `touched` are the other files that had a part in it."""

    path: str
    found: list[Finding]  # with those that yield to others: a selection may want them
    touched: frozenset[str] = field(default=frozenset())
    seconds: float = 0.0
    reached: frozenset[tuple[str, str]] = field(
        default=frozenset()
    )  # functions that ran, by path and name
    deferred: frozenset[str] = field(default=frozenset())  # roots left to the files that call them
    # of the names of its roots, whether other files call them
    called: dict[str, bool] = field(default_factory=dict)
    # what files asked of the project for the first time (`Project.take_asked`)
    asked: dict[str, set[Question]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()  # what went wrong in fallline itself
    first: list[Finding] = field(default_factory=list)  # the findings without those of `rest`
    rest: Rest | None = None

    @property
    def findings(self) -> list[Finding]:
        """What is reported where everything is selected."""
        return settle(self.found)


@dataclass
class Trouble:
    """What went wrong while a file was read: mistakes of our own, and code nested deeper than it can be followed."""

    path: str
    failures: list[str] = field(default_factory=list)
    deep: bool = False

    def note(self, what: str, error: Exception) -> None:
        if isinstance(error, RecursionError):
            self.deep = True
            return
        words = failure(what, self.path, error)
        if words not in self.failures:
            self.failures.append(words)

    def findings(self) -> list[Finding]:
        if not self.deep:
            return []
        deep = UnreadableError("parts of the code are nested too deeply to be followed")
        finding = unreadable(self.path, deep)
        finding.severity = Severity.INFO  # the rest was read
        return [finding]


@dataclass
class Rest:
    """What was left to other files and none of them reached, begun on its own."""

    names: tuple[str, ...]
    reached: frozenset[str]  # functions of the file that had run by then
    reading: Reading


def read_text(
    text: str | bytes, path: str = "<text>", rules: Iterable[Rule] | None = None
) -> list[Finding]:
    """The findings of one file given as text."""
    data = text.encode() if isinstance(text, str) else text
    return read_data(
        path, data, Project(), tuple(rules) if rules is not None else reader_rules()
    ).findings


def read_data(
    path: str,
    data: bytes,
    project: Project,
    rules: Sequence[Rule],
    seconds: float = SECONDS_PER_FILE,
    defers: Callable[[str], bool] = lambda name: False,
) -> Reading:
    """The findings of one file of a project. `defers` says which names other files may call: those are left to them."""
    started = time.thread_time()
    if nothing_to_find(path, data):
        return Reading(path, [])
    project.trim()
    try:
        module = project.add(Source.from_bytes(path, data))
    except UnreadableError as error:
        finding = unreadable(path, error)
        if of_another_framework(data):
            finding.severity = Severity.INFO  # it cannot be read, and there was nothing to find
        return Reading(path, [finding])
    reading = read_module(module, rules, started + seconds, defers)
    reading.found[:0] = _unread_cells(module.source)
    reading.seconds = time.thread_time() - started
    return reading


def read_module(
    module: Module,
    rules: Sequence[Rule],
    deadline: float,
    defers: Callable[[str], bool] = lambda name: False,
) -> Reading:
    """The findings of one parsed file, with fixes."""
    held = module.source.held(_tokens_of(tuple(rules)))
    found: list[Finding] = []
    trouble = Trouble(module.path)
    for rule in defining(tuple(rules), "check_syntax"):
        if not rule.tokens or not held.isdisjoint(rule.tokens):
            try:
                found += rule.check_syntax(module)
            except Exception as error:  # one rule's mistake must not cost the others' findings
                trouble.note(rule.code, error)
    reached: set[tuple[str, str]] = set()
    touched: set[str] = set()
    deferred: set[str] = set()

    def wanted(root: Root) -> bool:
        if root.name and (defers(root.last) or not root.callers.isdisjoint(deferred)):
            deferred.add(root.name)
            return False
        return True

    collected = {"reached": reached, "touched": touched, "wanted": wanted}
    makes_traces = not held.isdisjoint(TOKENS)
    traced = _judged(module, rules, deadline, trouble, **collected) if makes_traces else []
    # an execution on paper knows more of a place than what is written around it
    places = {(f.code, f.at.path, f.at.line) for f in traced}
    found = [f for f in found if (f.code, f.at.path, f.at.line) not in places] + traced
    found = together(found, one_trace=False)
    if module.is_unit_test:
        found = _noted(found)
        # with the arguments of a test a function has not been seen at work: it is begun on its own as well
        reached = {(path, name) for path, name in reached if path == module.path}
    else:
        found = _of_use(found, module)
    _add_fixes(found, module, rules, trouble, deadline)
    found += trouble.findings()
    return Reading(
        module.path,
        found,
        frozenset(touched - {module.path}),
        reached=frozenset(reached),
        deferred=frozenset(deferred),
        failures=tuple(trouble.failures),
    )


@lru_cache(maxsize=4)
def _tokens_of(rules: tuple[Rule, ...]) -> Tokens:
    looking = defining(rules, "check_syntax")
    return Tokens(frozenset(token for rule in looking for token in rule.tokens).union(TOKENS))


def _noted(findings: Iterable[Finding]) -> list[Finding]:
    """What a unit test does wrong trains nothing that anybody keeps: a note, and nothing where it is one elsewhere."""
    return [replace(f, severity=Severity.INFO) for f in findings if f.severity != Severity.INFO]


def _of_use(findings: Iterable[Finding], module: Module) -> list[Finding]:
    """In a benchmark only its own times are worth more than a note: nothing that it trains is kept. Nor in what never runs, or only with a torch of long ago."""
    return [
        replace(f, severity=Severity.INFO)
        if f.severity is not Severity.INFO
        and f.at.path == module.path
        and f.code != "FL000"
        and (
            _only_timed(f, module)
            or _idle(module, f.at.line)
            or needs_old_torch(module)
            or module.source.old
            or _precision_is_off(f, module)
            or _tried_out(module, f.at.line)
        )
        else f
        for f in findings
    ]


def _idle(module: Module, line: int) -> bool:
    """Nobody gets there."""
    if never_runs(module, line) or unreached(module, line):
        return True
    return in_an_arm_for_nobody(module, line) and not published(module)


def _precision_is_off(finding: Finding, module: Module) -> bool:
    """A mistake of mixed precision where nobody turns it on."""
    return finding.code.startswith("FL2") and behind_a_switch_that_is_off(module, finding.at.line)


def _tried_out(module: Module, line: int) -> bool:
    """A file that others import shows that it works, where it is the program: with `def test_model()`, without arguments, or on numbers made up there."""
    for node in module.tree.body:
        if not node.lineno <= line <= (node.end_lineno or 0):
            continue
        match node:
            case ast.FunctionDef(name, args):
                own = _TRIES.match(name) is not None and not ast.unparse(args)
            case ast.If():
                own = is_name(getattr(node.test, "left", node.test), "__name__") and made_up(
                    module.segment(node)
                )
            case _:
                return False
        return own and module.project is not None and module.project.imports(module)
    return False


def _only_timed(finding: Finding, module: Module) -> bool:
    timed = module.is_benchmark or module.only_times(finding.at.line)
    return timed and not finding.code.startswith("FL5")


def read_deferred(
    module: Module,
    rules: Sequence[Rule],
    deadline: float,
    names: Iterable[str],
    reached: set[tuple[str, str]],
) -> Reading:
    """The findings of roots that were left to other files and that none of them reached."""
    started = time.thread_time()
    trouble = Trouble(module.path)
    touched: set[str] = set()
    left = frozenset(names)
    found = _judged(
        module,
        rules,
        deadline,
        trouble,
        reached=reached,
        touched=touched,
        wanted=lambda root: root.name in left,
    )
    _add_fixes(found, module, rules, trouble, deadline)
    found = together(found, one_trace=False)
    return Reading(
        module.path,
        _noted(found) if module.is_unit_test else _of_use(found, module),
        frozenset(touched - {module.path}),
        time.thread_time() - started,
        failures=tuple(trouble.failures),
    )


def _judged(
    module: Module, rules: Sequence[Rule], deadline: float, trouble: Trouble, **options: object
) -> list[Finding]:
    found: list[Finding] = []
    dropped: set[tuple[str, str, int]] = set()

    try:
        for trace in traces_of(module, deadline, **options):  # type: ignore[arg-type]
            here = examine(trace, rules, lambda rule, error: trouble.note(rule.code, error))
            found += _if_edited(here, trace.edited)
            if not trace.edited:
                dropped |= refuted(trace, rules)
    except Exception as error:  # as above
        trouble.note("the reader", error)
    return [f for f in found if f.key not in dropped]


def _if_edited(findings: list[Finding], edited: tuple[str, ...]) -> list[Finding]:
    """What happens only with a constant of the script changed by hand, or with an option that nobody sets, is a note."""
    for finding in findings if edited else ():
        finding.severity = Severity.INFO
        finding.message += f" It happens once {' and '.join(edited)}."
    return findings


def _add_fixes(
    findings: list[Finding],
    module: Module,
    rules: Sequence[Rule],
    trouble: Trouble,
    deadline: float,
) -> None:
    """Fixes, until the time for the file is up: a finding is worth telling without one."""
    by_code = {rule.code: rule for rule in rules} if findings else {}
    for finding in findings:
        if time.thread_time() > deadline:
            return
        rule = by_code.get(finding.code)
        if finding.fix is not None or rule is None or not rule.fixable:
            continue
        home = (
            module
            if finding.at.path == module.path
            else module.project.module_at(finding.at.path)
            if module.project
            else None
        )
        if home is not None:
            try:
                finding.fix = rule.fix(finding, home)
            except Exception as error:  # as above
                trouble.note(finding.code, error)


def failure(what: str, path: str, error: Exception) -> str:
    """A mistake of our own, in words that a report to us needs."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = (
        f"{frame.tb_frame.f_code.co_filename.rpartition('fallline/')[2]}:{frame.tb_lineno}"
        if frame is not None
        else ""
    )
    return f"{path}: {what} failed ({type(error).__name__}: {error} at {where})"


def unreadable(path: str, error: UnreadableError) -> Finding:
    """FL000: the file, or a cell of it, cannot be read or parsed. A note where it was left open for others, or is for an older Python."""
    why = ", at a blank to fill in" if error.blank else "; it is written for an older Python"
    known = error.blank or error.old
    return Finding(
        "FL000",
        "unreadable",
        Severity.INFO if known else Severity.ERROR,
        f"{error.message}{why if known else ''}",
        Location(path, error.line, error.column),
    )


def _unread_cells(source: Source) -> list[Finding]:
    """One finding for all cells that are not Python: the first that nobody left open on purpose, else the first.

    A note where others could be read: course notebooks leave blanks in endless forms, and a cell that is wrong says so
    the first time it is run.
    """
    if not source.unread:
        return []
    first = min(source.unread, key=lambda error: error.blank)
    finding = unreadable(source.path, first)
    if len(source.unread) < len(source.cells):
        finding.severity = Severity.INFO
    elif not source.cells and not source.old:
        finding.message += "; it is read as it seems to be meant"
    others = len(source.unread) - 1
    if others:
        finding.message += f"; {others} more cell{'s'[: others > 1]} could not be read either"
    return [finding]
