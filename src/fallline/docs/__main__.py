"""`python -m fallline.docs [--check]`, from the repository's root."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fallline.docs import ask_page, cli_page, comparison_page, specialist_page
from fallline.proof import record
from fallline.report import evidence_page, rule_page
from fallline.report.skills import rendered
from fallline.rules import all_rules

SKILLS = Path("skills")  # the wheel takes a copy: see pyproject.toml
# The record of the experiments, for documents, reports, answers and editors.
RECORD = Path("src/fallline/proof/evidence.json")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fallline.docs",
        description="Write the derived documents: docs/ and the skills.",
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a document is stale"
    )
    check = parser.parse_args().check
    root = Path("docs")
    if not root.is_dir():
        print(
            "python -m fallline.docs: there is no docs/ here; run it from the repository's root",
            file=sys.stderr,
        )
        return 2
    # what `fallline prove --all --out docs` measured becomes the record, and the pages are made from that
    new = root / "evidence.json"
    measured_again = new.exists()
    if measured_again and not check:
        new.replace(RECORD)
    wanted = documents(root)
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    present = {
        *(root / "rules").glob("*.md"),
        *(root / "specialists").glob("*.md"),
        *(root / "images/evidence").glob("*.svg"),
        *SKILLS.rglob("*.md"),
    }
    orphans = sorted(present - wanted.keys())
    if check:
        late = [*([RECORD] if measured_again else []), *stale, *orphans]
        for path in late:
            print(f"{path} is stale: run `make docs`", file=sys.stderr)
        return 1 if late else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    for path in orphans:
        path.unlink()
    print(f"{len(stale)} written, {len(orphans)} removed, {len(wanted) - len(stale)} as they were")
    return 0


def documents(root: Path) -> dict[Path, str]:
    """Every derived document, by path."""
    rules = all_rules()
    pages = {root / "rules" / rule_page.page_name(rule): rule_page.page(rule) for rule in rules}
    ask = root / "ask.md"
    return {
        ask: ask_page.page(ask.read_text(encoding="utf-8")),
        root / "cli.md": cli_page.page(),
        root / "comparison.md": comparison_page.page(Path("benchmarks/RESULTS.md")),
        root / "rules" / "README.md": rule_page.index(rules),
        **pages,
        **{root / "specialists" / name: text for name, text in specialist_page.pages().items()},
        **{root / name: text for name, text in _evidence().items()},
        **{SKILLS / name: text for name, text in rendered().items()},
    }


def _evidence() -> dict[str, str]:
    """The page and its figures from what was recorded; measuring is for `make evidence`."""
    known = record.all_recorded().values()
    return evidence_page.documents(known) if known else {}


if __name__ == "__main__":
    raise SystemExit(main())
