"""Fine-tuning: planted mistakes and right set-ups over plain loops, Trainer, TRL and PEFT; and what the installed packages ship.

    python benchmarks/fine_tuning.py [--set NAME] [--only NAME] [--watched] [--kept FILE] [--write]

The scripts are in tests/tuning (planted and right: what the checks were written with) and benchmarks/fine_tuning_fresh (after the
scripts of public projects, written before the checks had met them). Each runs in a process of its own, under `measure data` or, with
--watched, under `run` to its own end. A planted mistake counts as reported when its code is reported at the line that the script marks;
a right set-up counts as silent when nothing is. Then every chat template that TRL ships renders a conversation, and every stock collator
makes a batch: which of them produce these mistakes? --kept: what is known of a script is kept in this file, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "tuning"), str(ROOT / "benchmarks")]

from judging import HERE, Judged, expected, judge, warm  # noqa: E402 - beside the tests
from results import machine, write_section  # noqa: E402 - as above

KINDS = {
    "plain": "plain loops",
    "trainer": "Trainer",
    "sft": "TRL, SFT",
    "dpo": "DPO",
    "grpo": "GRPO",
    "rl": "actor and critic",
    "peft": "PEFT",
}
CHAT = [
    {"role": "user", "content": "what does the cat do?"},
    {"role": "assistant", "content": "it sleeps in the sun"},
    {"role": "user", "content": "and the dog?"},
    {"role": "assistant", "content": "it runs over the hill"},
]


SETS = {"development": HERE, "fresh": ROOT / "benchmarks" / "fine_tuning_fresh"}
NOT_WATCHED = (
    "FL026",
    "FL028",
)  # other datasets, and inputs that are not tokens: `measure data` only


def known(script: Path, watched: bool, kept: Path | None) -> Judged:
    """From the file, or measured now."""
    held = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    key = f"{'run' if watched else 'measure'} {script.parent.name}/{script.stem}"
    if key not in held:
        found = judge(script, watched=watched)
        held[key] = {**vars(found), "text": ""}
        if kept is not None:
            kept.write_text(json.dumps(held))
    return Judged(**held[key])


def scripts(home: Path, only: str, watched: bool, kept: Path | None) -> list[str]:
    """The table of planted mistakes and right set-ups."""
    told: Counter[str] = Counter()
    total: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    right: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    seconds, missed = [], []
    for kind, counts, good in (("planted", total, told), ("right", right, silent)):
        for script in sorted(s for s in (home / kind).glob("*.py") if only in s.stem):
            if watched and kind == "planted" and expected(script)[0] in NOT_WATCHED:
                continue
            judged = known(script, watched, kept)
            group = script.stem.partition("_")[0]
            counts[group] += 1
            seconds.append(judged.seconds)
            if kind == "planted":
                code, lines = expected(script)
                fine = bool(judged.places & {(code, n) for n in lines})
                codes[code] += fine
            else:
                ours = [f for f in judged.findings if f["code"].startswith("FL0")]
                fine = not ours and not judged.error
            good[group] += fine
            if not fine:
                missed.append(
                    f"{kind} `{script.stem}`: {sorted(judged.places) or judged.error[:80] or 'nothing'}"
                )
            print("ok " if fine else "NO ", script.stem, f"{judged.seconds:.1f} s", flush=True)
    rows = [
        f"| {name} | {told[k]} of {total[k]} | {silent[k]} of {right[k]} |"
        for k, name in KINDS.items()
        if total[k] + right[k]
    ]
    return [
        f"**{told.total()} of {total.total()}** planted mistakes are reported with the right code at the right line; **{silent.total()} of {right.total()}** right set-ups are silent. "
        + (
            ""
            if watched
            else f"The slowest script took {max(seconds):.0f} s for its first four batches (imports not counted)."
        ),
        "",
        "| where | planted mistakes reported | right set-ups silent |",
        "|---|---|---|",
        *rows,
        "",
        "By code: " + ", ".join(f"{code} {n}" for code, n in sorted(codes.items())) + ".",
        *(["", "Not as expected:", "", *(f"- {m}" for m in missed)] if missed else []),
    ]


def templates() -> list[str]:
    """What the chat templates of TRL write, and what they mark as the assistant's."""
    import trl

    files = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    alike: dict[tuple[str, str, str], list[str]] = {}
    for path in files:
        if (seen := _template(path)) is not None:
            alike.setdefault(seen, []).append(path.stem)
    usable = sum(map(len, alike.values()))
    return [
        f"TRL ships {len(files)} chat templates; {usable} of them render a plain conversation of two turns with a tokenizer that has their special tokens.",
        "",
        "| writes a begin token: doubled if tokenized again (FL014) | assistant mask (FL011 if empty) | the mask covers the end of the turn (else FL010) | templates |",
        "|---|---|---|---|",
        *(
            f"| {' | '.join(seen)} | {len(names)}: {', '.join(names)} |"
            for seen, names in sorted(alike.items(), reverse=True)
        ),
    ]


def _template(path: Path) -> tuple[str, str, str] | None:
    """Does it write a begin token, does it mark the answers, and with the end of the turn? None where it cannot render."""
    from tiny import tokenizer

    text = path.read_text(encoding="utf-8")
    words = tokenizer(chat=text)
    marks = sorted(set(re.findall(r"<[|｜]?[A-Za-z_/▁]+[|｜]?>|\\[/?INST\\]", text)))
    words.add_special_tokens({"additional_special_tokens": marks})
    try:
        rendered = words.apply_chat_template(CHAT, tokenize=False)
        found = words.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    except Exception:
        return None
    mask = found["assistant_masks"]
    begins = "yes" if rendered.startswith(words.bos_token) else "no"
    if not any(mask):
        return begins, "empty", "–"
    ids = found["input_ids"]
    last = max(i for i, m in enumerate(mask) if m)
    first = words.decode(ids[last : last + 1]).strip()
    after = words.decode(ids[last + 1 :]).strip()
    covered = (
        "yes"
        if first in words.all_special_tokens or first in marks or not after
        else f"no: `{after[:20]}` comes after"
    )
    return begins, "marks the answers", covered


def collators() -> list[str]:
    """What the stock collators make of texts that end with the end token."""
    import transformers
    from tiny import pairs, texts, tokenizer
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as Sft

    rows = []
    for pad, said in (("<pad>", "its own"), ("</s>", "the end token")):
        words = tokenizer(pad=pad)
        plain = [dict(words(t + "</s>")) for t in texts(8)]
        answers = []
        for question, answer in pairs(8):
            q, a = (
                words(question)["input_ids"],
                words(answer + "</s>", add_special_tokens=False)["input_ids"],
            )
            answers.append(
                {
                    "input_ids": q + a,
                    "attention_mask": [1] * len(q + a),
                    "labels": [-100] * len(q) + a,
                }
            )
        padded = [dict(words(t + "</s>", padding="max_length", max_length=40)) for t in texts(8)]
        for sample in padded:
            sample["labels"] = list(sample["input_ids"])
        ids = [{"input_ids": s["input_ids"]} for s in plain]
        made: dict[str, Any] = {
            "transformers DataCollatorForLanguageModeling(mlm=False)": lambda w=words, p=plain: (
                transformers.DataCollatorForLanguageModeling(w, mlm=False)(p)
            ),
            "transformers DataCollatorForSeq2Seq, labels given": lambda w=words, a=answers: (
                transformers.DataCollatorForSeq2Seq(w)(a)
            ),
            "transformers DataCollatorWithFlattening": lambda i=ids: (
                transformers.DataCollatorWithFlattening()(i)
            ),
            "transformers default_data_collator, padded, labels copied": lambda p=padded: (
                transformers.default_data_collator(p)
            ),
            "trl DataCollatorForLanguageModeling (SFT)": lambda w=words, i=ids: Sft(
                pad_token_id=w.pad_token_id
            )(i),
        }
        rows += [f"| {name} | {said} | {_judged(make, words)} |" for name, make in made.items()]
    return ["| collator | padding token | finding |", "|---|---|---|", *rows]


def _judged(make: Any, words: Any) -> str:
    import fallline

    found = fallline.measure_data([make()] * 2, tokenizer=words).findings
    return ", ".join(sorted({f"{f.code} {f.name}" for f in found if f.code != "FL028"})) or "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    parser.add_argument("--set", choices=SETS, default="development")
    parser.add_argument("--watched", action="store_true", help="under `run`, not `measure data`")
    parser.add_argument("--kept", type=Path, help="a file for what is known of each script")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    args = parser.parse_args()
    warm()
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "peft", "trl"))
    lines = scripts(SETS[args.set], args.only, args.watched, args.kept)
    if args.set == "development" and not args.watched:
        lines += stock()
    how = " --watched" * args.watched + f" --set {args.set}" * (args.set != "development")
    text = "\n".join(
        [f"`python benchmarks/fine_tuning.py{how}`, {machine()}, {packages}", "", *lines]
    )
    print(text)
    if args.write:
        title = "fine-tuning" + ", fresh" * (args.set == "fresh") + ", watched" * args.watched
        write_section(title, text)


def stock() -> list[str]:
    """What the installed packages ship."""
    return [
        "",
        "### Stock chat templates",
        "",
        *templates(),
        "",
        "### Stock collators",
        "",
        *collators(),
    ]


if __name__ == "__main__":
    main()
