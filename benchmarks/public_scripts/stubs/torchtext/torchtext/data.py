"""Examples with `src` and `trg`, and batches of them by length."""

import random
import types

import torch


class Field:
    def __init__(self, words):
        marks = ["<blank>", "<unk>", "<s>", "</s>"]
        stoi = {word: n for n, word in enumerate([*marks, *words])}
        self.vocab = types.SimpleNamespace(stoi=stoi, __len__=lambda: len(stoi))
        self.vocab = _Vocab(stoi)


class _Vocab:
    def __init__(self, stoi):
        self.stoi = stoi

    def __len__(self):
        return len(self.stoi)


class Dataset:
    def __init__(self, examples, fields):
        self.examples, self.fields = examples, fields


class BucketIterator:
    def __init__(self, dataset, batch_size, device, train=False):
        self.dataset, self.batch_size, self.device, self.train = dataset, batch_size, device, train

    def _padded(self, rows, field):
        stoi = self.dataset.fields[field].vocab.stoi
        lines = [[stoi["<s>"], *(stoi[w] for w in row), stoi["</s>"]] for row in rows]
        longest = max(map(len, lines))
        full = [line + [stoi["<blank>"]] * (longest - len(line)) for line in lines]
        return torch.tensor(full, device=self.device).T

    def __len__(self):
        return -(-len(self.dataset.examples) // self.batch_size)

    def __iter__(self):
        examples = sorted(self.dataset.examples, key=lambda e: len(e.src))
        size = self.batch_size
        batches = [examples[at : at + size] for at in range(0, len(examples), size)]
        if self.train:
            random.shuffle(batches)
        for batch in batches:
            yield types.SimpleNamespace(
                src=self._padded([e.src for e in batch], "src"),
                trg=self._padded([e.trg for e in batch], "trg"),
            )


def made_up():
    """What preprocess.py would have left: the translation is the sentence with its words in another order."""
    dice = random.Random(0)
    words = [f"w{n}" for n in range(40)]
    lines = [[dice.choice(words) for _ in range(dice.randint(4, 9))] for _ in range(400)]
    examples = [types.SimpleNamespace(src=line, trg=line[::-1]) for line in lines]
    field = Field(words)
    return {
        "settings": types.SimpleNamespace(max_len=12),
        "vocab": {"src": field, "trg": field},
        "train": examples[:320],
        "valid": examples[320:],
    }
