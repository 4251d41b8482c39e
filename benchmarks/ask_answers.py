"""How many questions the default text of `fallline ask` answers right, by the rubric of each (tests/triage/questions).

    python benchmarks/ask_answers.py learn_a.toml learn_b.toml [--wrong] [--only KIND] [--write]

sealed.toml was written together with the others, before anything was tuned, and is read once, at the end.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from results import machine, write_section

from judged import ask, misses, questions


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--wrong", action="store_true", help="show the answers that are not right")
    parser.add_argument("--only", metavar="KIND", help="only questions of this kind")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args()
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for question in questions(*args.files):
        if args.only not in (None, question.kind):
            continue
        text = ask(question)
        wrong = list(misses(question, text))
        asked[question.kind] += 1
        right[question.kind] += not wrong
        if wrong and args.wrong:
            print(f"=== {question.name}\n{question.ask}\n---\n{text}\n--- {wrong}\n")
    rows = ["| kind | right |", "|---|---|"]
    rows += [f"| {kind} | {right[kind]} of {n} |" for kind, n in asked.items()]
    rows.append(
        f"| all | {right.total()} of {asked.total()} ({100 * right.total() / asked.total():.0f} %) |"
    )
    print("\n".join(rows))
    if args.write:
        title = f"ask, answers ({', '.join(args.files)})"
        write_section(
            title,
            f"`python benchmarks/ask_answers.py {' '.join(args.files)}`, {machine()}\n\n"
            + "\n".join(rows),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
