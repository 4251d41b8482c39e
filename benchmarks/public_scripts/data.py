"""Made-up data in the formats that public scripts read: there is something to learn in each of it."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from public_scripts.data_drawn import DRAWN
from public_scripts.data_kinds import KINDS
from public_scripts.data_small import SMALL

__all__ = ["WRITERS"]

_LABELS = ("airplane automobile bird cat deer dog frog horse ship truck").split()


def _digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with a bright square whose place is the class."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count, dtype=np.uint8)
    images = random.integers(0, 40, (count, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = 2 + 6 * (int(label) // 4), 2 + 6 * (int(label) % 4)
        image[row : row + 6, column : column + 6] += 180
    return images, labels


def _idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.tobytes())


def _mnist(count: int, *places: str, name: str = "MNIST") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for place in places:
            raw = (folder / place / name / "raw").resolve()
            raw.mkdir(parents=True, exist_ok=True)
            for split, size in (("train", count), ("t10k", 100)):
                images, labels = _digits(size, seed=len(split))
                _idx(raw / f"{split}-images-idx3-ubyte", images)
                _idx(raw / f"{split}-labels-idx1-ubyte", labels)

    return write


def _cifar(place: str, count: int = 200) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        base = (folder / place / "cifar-10-batches-py").resolve()
        base.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
            labels = random.integers(0, 10, count)
            data = random.integers(0, 60, (count, 3, 32, 32), dtype=np.uint8)
            for image, label in zip(data, labels, strict=True):
                image[label % 3, 3 * label : 3 * label + 3] += 150
            held = {"data": data.reshape(count, -1), "labels": labels.tolist()}
            (base / name).write_bytes(pickle.dumps(held))
        (base / "batches.meta").write_bytes(pickle.dumps({"label_names": _LABELS}))

    return write


def _cora(folder: Path, place: str = ".") -> None:
    """Papers that share words and citations with those of their own kind."""
    random = np.random.default_rng(0)
    base = (folder / place / "cora").resolve()
    base.mkdir(parents=True, exist_ok=True)
    kinds = random.integers(0, 7, 2000)
    words = random.random((2000, 70)) < 0.05
    words |= (np.arange(70) // 10 == kinds[:, None]) & (random.random((2000, 70)) < 0.3)
    lines = (
        f"{n}\t" + "\t".join("1" if w else "0" for w in row) + f"\tkind{kind}"
        for n, (row, kind) in enumerate(zip(words, kinds, strict=True))
    )
    (base / "cora.content").write_text("\n".join(lines) + "\n")
    pairs = random.integers(0, 2000, (12000, 2))
    near = pairs[(kinds[pairs[:, 0]] == kinds[pairs[:, 1]]) | (random.random(12000) < 0.1)]
    (base / "cora.cites").write_text("\n".join(f"{a}\t{b}" for a, b in near) + "\n")


def _sentences(count: int, seed: int = 0, vocabulary: int = 60) -> list[str]:
    """Each word is most likely followed by one of three others."""
    random = np.random.default_rng(seed)
    names = [f"w{chr(97 + k % 26)}{chr(97 + k // 26)}" for k in range(vocabulary)]
    lines = []
    for _ in range(count):
        word, line = int(random.integers(vocabulary)), []
        for _ in range(int(random.integers(8, 24))):
            line.append(names[word])
            word = (3 * word + int(random.integers(3))) % vocabulary
        lines.append(" ".join(line))
    return lines


def _wikitext(folder: Path) -> None:
    base = folder / "data" / "wikitext-2"
    base.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate((("train", 900), ("valid", 60), ("test", 60))):
        (base / f"{name}.txt").write_text("\n".join(_sentences(count, seed)) + "\n")


def _wikitext_file(folder: Path) -> None:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "wikitext-2.txt").write_text("\n".join(_sentences(700)) + "\n")


def _penn(folder: Path) -> None:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "train.txt").write_text("\n".join(_sentences(1200)) + "\n")


def _shakespeare(folder: Path) -> None:
    """Characters as numbers, as prepare.py of nanoGPT leaves them."""
    text = "\n".join(_sentences(4000))
    chars = sorted(set(text))
    number = {c: n for n, c in enumerate(chars)}
    codes = np.array([number[c] for c in text], dtype=np.uint16)
    base = folder / "data" / "shakespeare_char"
    base.mkdir(parents=True, exist_ok=True)
    codes[: 9 * len(codes) // 10].tofile(base / "train.bin")
    codes[9 * len(codes) // 10 :].tofile(base / "val.bin")
    meta = {"vocab_size": len(chars), "itos": dict(enumerate(chars)), "stoi": number}
    (base / "meta.pkl").write_bytes(pickle.dumps(meta))


def _text(folder: Path) -> None:
    """One text file, for scripts that open input.txt or take a file."""
    (folder / "input.txt").write_text("\n".join(_sentences(4000)))
    (folder / "train.txt").write_text("\n".join(_sentences(1500)))
    (folder / "valid.txt").write_text("\n".join(_sentences(100, 1)))


def _names(folder: Path) -> None:
    random = np.random.default_rng(0)
    parts = "an be cor da el fi go ha is jo ka li mo na or pe ra sa ti un".split()
    lines = {"".join(random.choice(parts, int(random.integers(1, 4)))) for _ in range(4000)}
    (folder / "names.txt").write_text("\n".join(sorted(lines)))


def _digits_1989(folder: Path) -> None:
    import torch

    for name, count in (("train", 300), ("test", 100)):
        images, labels = _digits(count, len(name))
        small = torch.from_numpy(images[:, ::2, ::2].astype(np.float32))[:, None] / 127.5 - 1
        small = torch.nn.functional.pad(small, (1, 1, 1, 1), value=-1.0)
        targets = torch.full((count, 10), -1.0)
        targets[torch.arange(count), torch.from_numpy(labels.astype(np.int64))] = 1.0
        torch.save((small, targets), folder / f"{name}1989.pt")


def _binarized(folder: Path) -> None:
    train, _ = _digits(2000, 0)
    valid, _ = _digits(300, 1)
    np.savez(
        folder / "binarized_mnist.npz",
        train_data=(train.reshape(2000, -1) > 60).astype(np.float32),
        valid_data=(valid.reshape(300, -1) > 60).astype(np.float32),
    )


def _bsd300(folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", 64), ("test", 4)):
        base = folder / "dataset" / "BSDS300" / "images" / split
        base.mkdir(parents=True, exist_ok=True)
        for n in range(count):
            coarse = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((96, 96), Image.Resampling.BICUBIC).save(base / f"{n}.jpg")  # fmt: skip


def _sines(folder: Path) -> None:
    import torch

    random = np.random.default_rng(2)
    phase = random.integers(-80, 80, 12)[:, None]
    data = np.sin((np.arange(60) + phase) / 20.0)
    with open(folder / "traindata.pt", "wb") as file:
        torch.save(data, file)


def _hub(folder: Path) -> None:
    """Tiny models and tokenizers under the names that examples ask the hub for, and GLUE's MRPC."""
    _tokenizer(folder / "bert-base-cased")
    _tokenizer(folder / "tiny-gpt2")
    small = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = small | {"model_type": "bert", "intermediate_size": 64, "max_position_embeddings": 128}
    (folder / "bert-base-cased" / "config.json").write_text(json.dumps(bert))
    gpt2 = {"model_type": "gpt2", "vocab_size": 200, "n_embd": 32, "n_layer": 2, "n_head": 2}
    gpt2 |= {"n_positions": 128, "bos_token_id": 1, "eos_token_id": 1}
    (folder / "tiny-gpt2" / "config.json").write_text(json.dumps(gpt2))
    _tokenizer(folder / "tiny-llama")
    llama = small | {"model_type": "llama", "intermediate_size": 64, "max_position_embeddings": 128}
    (folder / "tiny-llama" / "config.json").write_text(json.dumps(llama))
    _weights(folder / "tiny-llama", "AutoModelForCausalLM")
    _weights(folder / "bert-base-cased", "AutoModelForSequenceClassification")
    _weights(folder / "tiny-gpt2", "AutoModelForCausalLM")
    base = folder / "nyu-mll" / "glue" / "mrpc"
    base.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 480), ("validation", 32)):
        first, second = _sentences(count, 5), _sentences(count, 6)
        rows = [
            {"sentence1": a, "sentence2": a if n % 2 else b, "label": n % 2, "idx": n}
            for n, (a, b) in enumerate(zip(first, second, strict=True))
        ]
        (base / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = "".join(f"  - split: {s}\n    path: mrpc/{s}.jsonl\n" for s in ("train", "validation"))
    (base.parent / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    )


def _rows(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))


def _corpus(folder: Path) -> None:
    _rows(folder, "corpus", [{"text": line} for line in _sentences(400)])


def _alpaca(folder: Path) -> None:
    lines = zip(_sentences(300, 1), _sentences(300, 2), strict=True)
    rows = [{"instruction": a, "input": "", "output": b} for a, b in lines]
    _rows(folder, "alpaca", rows)


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = sorted({w for line in _sentences(300) for w in line.split()})
    vocabulary = {w: n for n, w in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    config = {f"{k}_token": v for k, v in names.items()} | {"eos_token": "[SEP]"}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _weights(folder: Path, kind: str) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(str(folder))
    getattr(transformers, kind).from_config(config).save_pretrained(str(folder))


WRITERS: dict[str, Callable[[Path], None]] = {
    "mnist ../data": _mnist(960, "../data"),
    "mnist ./data": _mnist(960, "./data"),
    "mnist ../../data": _mnist(1000, "../../data"),
    "mnist ../../data/mnist": _mnist(960, "../../data/mnist"),
    "mnist ../../../Datasets": _mnist(960, "../../../Datasets"),
    "cifar ./data": _cifar("./data"),
    "cifar ../../data": _cifar("../../data"),
    "mnist ../../Datasets": _mnist(960, "../../Datasets"),
    "mnist ../dataset": _mnist(320, "../dataset"),
    "cached mnist": _mnist(960, "utils/.data", name="MNISTCached"),
    "cifar ./cifar": _cifar("./cifar"),
    "cora": _cora,
    "cora ../data": partial(_cora, place="../data"),
    "wikitext": _wikitext,
    "wikitext file": _wikitext_file,
    "penn": _penn,
    "shakespeare": _shakespeare,
    "text": _text,
    "names": _names,
    "digits 1989": _digits_1989,
    "binarized": _binarized,
    "bsd300": _bsd300,
    "sines": _sines,
    "hub": _hub,
    "results": lambda folder: (folder / "results").mkdir(exist_ok=True),
    "corpus": _corpus,
    "alpaca": _alpaca,
    "cifar ./cifar10": _cifar("./cifar10", 100),
    "small mnist ./data": _mnist(320, "./data"),
    "mnist as MNISTDataset": _mnist(160, "./data", name="MNISTDataset"),
    "fashion": _mnist(1920, "./data", name="FashionMNIST"),
    **DRAWN,
    **SMALL,
    **KINDS,
}
