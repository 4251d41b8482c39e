"""Real training code, broken in one way at a time: is the mistake found, and is the original silent?

    python benchmarks/mutations.py FOLDER ... [--each 6] [--seed 0] [--only FL1 FL303] [--jobs 16] [--keep OUT.jsonl] [--write [--title TEXT]]

Each folder is a checkout of a public repository; nothing in it is run, and nothing is written there. A mutation is an edit that turns right code into one
mistake of the catalogue: a `zero_grad` is removed, a clip moves behind its step, an `unscale_` disappears. Line numbers stay
as they are. The mutated file is read with the files that import it, as a check of the repository would read it. A mutant counts as found
when its code is reported where the original had no such finding; a note counts, since Adam divides most of FL104 out again. An edit has to make a mistake: a sum that keeps its graph counts where each round of
the loop makes an update, a plain list where it is an attribute of the module and not of pooling or activations (they have nothing to
register), a `set_epoch` where a loop hands its epoch to a sampler (not the sampler's own method, not a constant), a `train()` where it
is called again (in a loop, or in a function that is given the model: a new model is in train mode), a clip before its backward where the function also
steps (with no step, nothing is clipped too early), a recorded evaluation where a loop under the no_grad calls the model (one
pass keeps one graph, for as long as its output is needed).
Sites whose original is already reported for that code are left out, and counted. At most `--each` mutants of one kind are
taken from all folders together, drawn with `--seed`, at most two from one folder. `--write` puts the table into
RESULTS.md, under `--title`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from history import near_to
from mutation_kinds import MUTATIONS, File, Kinds

from fallline.rules import rule_by_code
from fallline.verdict.project import read_paths

TITLE = "Mutations of real training code, newest set"  # the summary of all sets is written by hand
# They train nothing that anybody keeps: every finding there is a note.
_TESTS = re.compile(r"(^|_)tests?(_|\.)|conftest")
_TESTS_FOLDER = {"test", "tests", "testing"}
WORDS = (
    "backward(",
    "set_epoch(",
    "load_state_dict(",
    "ModuleList(",
    "dropout(",
    "eval()",
    "cross_entropy(",
    "save(",
)


@dataclass(frozen=True)
class Mutant:
    """One edit of one file."""

    code: str
    what: str
    folder: str
    file: str
    line: int
    text: str


def sites(folders: list[Path], each: int, seed: int, kinds: Kinds) -> Iterator[tuple[Mutant, str]]:
    """The mutants, with the text of the file that each makes. Each kind is drawn for itself: others do not change it."""
    found: dict[str, list[tuple[Mutant, str]]] = defaultdict(list)
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*.py") if not _TESTS.search(p.name)):
            if _TESTS_FOLDER & set(path.relative_to(folder).parts):
                continue
            for mutant, text in _mutants(folder, path, kinds):
                found[f"{mutant.code} {mutant.what}"].append((mutant, text))
    for kind in sorted(found):
        taken: Counter[str] = Counter()
        chosen = 0
        draw = random.Random(f"{seed} {kind}")
        for mutant, text in draw.sample(found[kind], len(found[kind])):
            if chosen < each and taken[mutant.folder] < 2:
                taken[mutant.folder] += 1
                chosen += 1
                yield mutant, text


def _mutants(folder: Path, path: Path, kinds: Kinds) -> Iterator[tuple[Mutant, str]]:
    try:
        text = path.read_text(encoding="utf-8")
        if "torch" not in text or not any(word in text for word in WORDS):
            return
        file = File(text)
    except (OSError, SyntaxError, ValueError):  # OSError: a link that leads nowhere
        return
    for code, what, mutation in kinds:
        for line, edits in mutation(file):
            name = str(path.relative_to(folder))
            original = file.lines[line - 1].strip()
            yield Mutant(code, what, str(folder), name, line, original), file.apply(edits)


def reported(mutant: Mutant, text: str | None = None) -> set[tuple[str, int]]:
    """Where the mutant's code is reported, with the file as it is or with this text in its place."""
    rule = rule_by_code(mutant.code)
    assert rule is not None
    path = str(Path(mutant.folder) / mutant.file)
    given = {path: text.encode()} if text is not None else None
    near = [str(Path(mutant.folder) / p) for p in near_to(Path(mutant.folder), mutant.file)]
    readings = read_paths(
        list(dict.fromkeys([path, *near])), rules=[rule], roots=[mutant.folder], given=given
    )
    if readings[0].failures:
        raise SystemExit(f"{path}: {readings[0].failures}")
    found = [f for reading in readings for f in reading.findings if f.code == mutant.code]
    return {(f.at.path, f.at.line) for f in found}


def judge(mutant: Mutant, text: str) -> str:
    """ "found", "missed", or "reported before": then the original says nothing about recall."""
    before = reported(mutant)
    if any(path.endswith(mutant.file) for path, _ in before):
        return "reported before"
    return "found" if reported(mutant, text) - before else "missed"


def _judged(drawn: tuple[Mutant, str]) -> tuple[Mutant, str]:
    return drawn[0], judge(*drawn)


def main(kinds: Kinds = MUTATIONS) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--each", type=int, default=6, help="mutants of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="codes, or their beginnings")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, help="write every mutant and its result here")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    parser.add_argument("--title", default=TITLE, help="the section of RESULTS.md")
    args = parser.parse_args()
    folders = [folder.resolve() for folder in args.folders]
    kinds = tuple(kind for kind in kinds if kind[0].startswith(tuple(args.only) or ("",)))
    drawn = sites(folders, args.each, args.seed, kinds)
    with ProcessPoolExecutor(args.jobs) as pool:
        results = [(m, _told(m, r)) for m, r in pool.map(_judged, drawn)]
    if args.keep is not None:
        args.keep.write_text(
            "".join(json.dumps({**asdict(m), "result": r}) + "\n" for m, r in results)
        )
    print("\n" + table(results, kinds))
    if args.write:
        from results import machine, write_section

        command = f"`python benchmarks/{Path(sys.argv[0]).name} FOLDER ... --each {args.each} --seed {args.seed}`"
        body = f"{command}, {machine()}, {len(folders)} public repositories\n\n"
        write_section(args.title, body + table(results, kinds))
    return 0


def _told(mutant: Mutant, result: str) -> str:
    place = f"{mutant.folder.rpartition('/')[2]} {mutant.file}:{mutant.line}"
    print(f"{result:15} {mutant.code} {place} {mutant.text[:70]}", flush=True)
    return result


def table(results: list[tuple[Mutant, str]], kinds: Kinds) -> str:
    counted = [(m, r) for m, r in results if r != "reported before"]
    found = sum(r == "found" for _, r in counted)
    lines = [
        f"**{found} of {len(counted)}** mutants are found ({100 * found / max(1, len(counted)):.0f} %). "
        f"{len(results) - len(counted)} sites were reported before the mutation and are left out.",
        "",
        "| rule | mutation | mutants | found |",
        "|---|---|---|---|",
    ]
    for code, what, _ in kinds:
        mine = [r for m, r in counted if (m.code, m.what) == (code, what)]
        lines.append(f"| {code} | {what} | {len(mine)} | {mine.count('found')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
