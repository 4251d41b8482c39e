"""Made-up data for the scripts that were drawn by lot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

__all__ = ["DRAWN"]


def _picture(random: np.random.Generator, side: int, bright: int) -> np.ndarray:
    image = random.integers(0, 60, (side, side, 3), dtype=np.uint8)
    part = side // 2
    top, left = part * (bright // 2 % 2), part * (bright % 2)
    image[top : top + part, left : left + part, bright % 3] += 180
    return image


def _blender(folder: Path) -> None:
    """Views of a disc from around it, as NeRF's synthetic scenes are stored."""
    from PIL import Image

    base = folder / "data" / "nerf_synthetic" / "lego"
    for split, count in (("train", 12), ("val", 8), ("test", 8)):
        (base / split).mkdir(parents=True, exist_ok=True)
        frames = []
        for n in range(count):
            angle = 2 * math.pi * n / count
            sine, cosine = math.sin(angle), math.cos(angle)
            matrix = [
                [cosine, 0.0, sine, 4 * sine],
                [0.0, 1.0, 0.0, 0.0],
                [-sine, 0.0, cosine, 4 * cosine],
                [0.0, 0.0, 0.0, 1.0],
            ]
            rows, columns = np.mgrid[:32, :32]
            inside = (rows - 16) ** 2 + (columns - 16) ** 2 < 80
            image = np.zeros((32, 32, 4), np.uint8)
            image[inside] = (200, int(100 + 80 * sine), 60, 255)
            Image.fromarray(image).save(base / split / f"r_{n}.png")
            frames.append({"file_path": f"./{split}/r_{n}", "transform_matrix": matrix})
        meta = {"camera_angle_x": 0.69, "frames": frames}
        (base / f"transforms_{split}.json").write_text(json.dumps(meta))


def _masks(folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for name in ("imgs", "masks"):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    for n in range(100):
        mask = np.zeros((32, 32), np.uint8)
        row, column = random.integers(0, 20, 2)
        mask[row : row + 12, column : column + 12] = 1
        noise = random.integers(0, 60, (32, 32, 3), dtype=np.uint8)
        image = np.where(mask[..., None], noise + 150, noise).astype(np.uint8)
        Image.fromarray(image).save(folder / "data" / "imgs" / f"{n:03}.png")
        Image.fromarray(mask * 255).save(folder / "data" / "masks" / f"{n:03}.png")


def _speakers(folder: Path) -> None:
    """Two tones, and their sum."""
    random = np.random.default_rng(0)
    time = np.arange(2000) / 8000
    for split, count in (("tr", 48), ("cv", 6)):
        listed: dict[str, list[tuple[str, int]]] = {"mix": [], "s1": [], "s2": []}
        for n in range(count):
            low, high = random.uniform(100, 300), random.uniform(900, 1500)
            first = 0.3 * np.sin(2 * np.pi * low * time + random.uniform(0, 6))
            second = 0.3 * np.sin(2 * np.pi * high * time + random.uniform(0, 6))
            for name, wave in (("mix", first + second), ("s1", first), ("s2", second)):
                path = folder / "wav" / split / name / f"{n}.npy"
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, wave.astype(np.float32))
                listed[name].append((f"wav/{split}/{name}/{n}.npy", len(time)))
        for name, rows in listed.items():
            (folder / "wav" / split / f"{name}.json").write_text(json.dumps(rows))


def _criteo(folder: Path) -> None:
    random = np.random.default_rng(0)
    head = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    lines = [",".join(head)]
    for _ in range(400):
        numbers, kinds = random.integers(0, 50, 13), random.integers(0, 8, 26)
        label = int(numbers[0] + 5 * kinds[0] + random.normal(0, 5) > 42)
        lines.append(",".join([str(label), *map(str, numbers), *(f"k{k}" for k in kinds)]))
    (folder / "criteo_sample.txt").write_text("\n".join(lines) + "\n")


def _mnist_m(folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    base = (folder / ".." / "dataset" / "mnist_m").resolve()
    for split, count in (("train", 320), ("test", 64)):
        (base / f"mnist_m_{split}").mkdir(parents=True, exist_ok=True)
        lines = []
        for n in range(count):
            label = int(random.integers(10))
            Image.fromarray(_picture(random, 28, label)).save(
                base / f"mnist_m_{split}" / f"{n:08}.png"
            )
            lines.append(f"{n:08}.png {label}\n")
        (base / f"mnist_m_{split}_labels.txt").write_text("".join(lines))


def _folders(folder: Path) -> None:
    """Images in one folder for each class."""
    from PIL import Image

    random = np.random.default_rng(0)
    for kind in range(4):
        base = folder / "images" / "train" / f"kind{kind}"
        base.mkdir(parents=True, exist_ok=True)
        for n in range(16):
            Image.fromarray(_picture(random, 64, kind)).save(base / f"{n}.png")


_TINY_CFG = """[net]
batch=8
subdivisions=2
width=96
height=96
channels=3
momentum=0.9
decay=0.0005
learning_rate=0.001
burn_in=10
max_batches=1000
policy=steps
steps=400,450
scales=.1,.1
{layers}
[convolutional]
batch_normalize=0
filters=24
size=1
stride=1
pad=1
activation=linear

[yolo]
mask=0,1,2
anchors=10,14, 23,27, 37,58
classes=3
num=3
"""
_TINY_LAYER = "\n[convolutional]\nbatch_normalize=1\nfilters={filters}\nsize=3\nstride=2\npad=1\nactivation=leaky\n"


def _boxes(folder: Path) -> None:
    """Bright boxes with their places, and a network small enough for them."""
    from PIL import Image

    random = np.random.default_rng(0)
    base = folder / "data" / "custom"
    for name in ("images", "labels"):
        (base / name).mkdir(parents=True, exist_ok=True)
    lists: dict[str, list[str]] = {"train": [], "valid": []}
    for n in range(56):
        kind = int(random.integers(3))
        image = random.integers(0, 60, (96, 96, 3), dtype=np.uint8)
        x, y, side = random.integers(0, 60), random.integers(0, 60), random.integers(16, 36)
        image[y : y + side, x : x + side, kind] += 180
        place = (base / "images" / f"{n}.png").resolve()
        Image.fromarray(image).save(place)
        box = ((x + side / 2) / 96, (y + side / 2) / 96, side / 96, side / 96)
        line = f"{kind} " + " ".join(f"{v:.4f}" for v in box)
        (base / "labels" / f"{n}.txt").write_text(line + "\n")
        lists["train" if n < 48 else "valid"].append(f"data/custom/images/{n}.png")
    for name, paths in lists.items():
        (base / f"{name}.txt").write_text("\n".join(paths) + "\n")
    (base / "classes.names").write_text("red\ngreen\nblue\n")
    (folder / "tiny.data").write_text(
        "classes=3\ntrain=data/custom/train.txt\nvalid=data/custom/valid.txt\nnames=data/custom/classes.names\n"
    )
    layers = "".join(_TINY_LAYER.format(filters=f) for f in (8, 16, 24, 32))
    (folder / "tiny.cfg").write_text(_TINY_CFG.format(layers=layers))


def _verdict(folder: Path) -> None:
    words = "the and of he had it his to with that for was".split()
    dice = np.random.default_rng(0)
    (folder / "the-verdict.txt").write_text(" ".join(dice.choice(words, 3000)))


def _shards(folder: Path) -> None:
    """Tokens behind the head that llm.c gives its files."""
    random = np.random.default_rng(0)
    for name, count in (("train", 20000), ("val", 4000)):
        head = np.zeros(256, np.int32)
        head[:3] = 20240520, 1, count
        tokens = np.cumsum(random.integers(1, 4, count)) % 250
        (folder / f"tokens_{name}.bin").write_bytes(
            head.tobytes() + tokens.astype(np.uint16).tobytes()
        )


DRAWN: dict[str, Callable[[Path], None]] = {
    "blender": _blender,
    "masks": _masks,
    "speakers": _speakers,
    "criteo": _criteo,
    "mnist_m": _mnist_m,
    "folders": _folders,
    "boxes": _boxes,
    "verdict": _verdict,
    "shards": _shards,
}
