"""Where `fallline ask` sends questions: the share that reaches its specialist, the share of other questions refused, what a score means.

    python benchmarks/ask.py [--write]

`phrasings.toml` and `phrasings_last.toml` were held out while recognition was made, `phrasings_tired_fresh.toml` was written after it had been tuned on
`phrasings_dev.toml` and `phrasings_tired.toml`. The first two night sets and the short ones were measured untouched, then tuned on; `phrasings_last_night.toml` came last, and nothing
was changed for it.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from results import machine, write_section

from fallline.triage import answer
from fallline.triage.answer import SURE

EVALS = Path(__file__).parent.parent / "evals"
HELD = (
    "phrasings_last_night.toml",
    "phrasings.toml",
    "phrasings_last.toml",
    "phrasings_tired_fresh.toml",
)
TUNED = (
    "phrasings_night.toml",
    "phrasings_night_fresh.toml",
    "phrasings_short.toml",
    "phrasings_short_fresh.toml",
    "phrasings_tired.toml",
    "phrasings_dev.toml",
)
SETS = (*HELD, *TUNED)
BANDS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.01))


def questions(name: str) -> tuple[list[tuple[str, list[str]]], list[str]]:
    raw = tomllib.loads((EVALS / name).read_text(encoding="utf-8"))
    ours = [(text, [who]) for who, texts in raw["first"].items() for text in texts]
    ours += [(row["text"], row["first"]) for row in raw.get("crossing", [])]
    return ours, raw["none"]["phrases"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="put the result into benchmarks/RESULTS.md"
    )
    args = parser.parse_args()
    rows = ["| set | first route right | not ours, and refused |", "|---|---|---|"]
    scores: list[tuple[float, bool]] = []
    for name in SETS:
        ours, others = questions(name)
        asked = [(answer(text).routes, wanted) for text, wanted in ours]
        refused = [answer(text).routes for text in others]
        right = sum(bool(r) and r[0][1] >= SURE and r[0][0] in wanted for r, wanted in asked)
        quiet = sum(not r or r[0][1] < SURE for r in refused)
        rows.append(f"| `{name}` | {share(right, len(ours))} | {share(quiet, len(others))} |")
        if name in HELD:
            scores += [(r[0][1], r[0][0] in wanted) for r, wanted in asked if r]
            scores += [(r[0][1], False) for r in refused if r]
    rows += ["", "Scores of the first route, over the first four sets:", ""]
    rows += ["| score | questions | mean score | right |", "|---|---|---|---|"]
    for low, high in BANDS:
        here = [(score, hit) for score, hit in scores if low <= score < high]
        if here:
            mean = sum(score for score, _ in here) / len(here)
            hits = sum(hit for _, hit in here) / len(here)
            shown = f"{low:.1f} to {high:.1f}" if high <= 1 else f"{low:.1f} and more"
            rows.append(f"| {shown} | {len(here)} | {mean:.2f} | {hits:.2f} |")
    text = "\n".join(rows)
    print(text)
    if args.write:
        write_section("ask", f"`python benchmarks/ask.py`, {machine()}\n\n{text}")
    return 0


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)"


if __name__ == "__main__":
    raise SystemExit(main())
