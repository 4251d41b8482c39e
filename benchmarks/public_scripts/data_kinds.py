"""Made-up data for one script of each kind."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

__all__ = ["KINDS"]


def _picture(random: np.random.Generator, side: int, kind: int) -> np.ndarray:
    """Noise with one bright quarter in one colour: both say its kind."""
    image = random.integers(0, 60, (side, side, 3), dtype=np.uint8)
    half = side // 2
    top, left = half * (kind // 2 % 2), half * (kind % 2)
    image[top : top + half, left : left + half, kind % 3] += 180
    return image


def _save(path: Path, image: np.ndarray) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def _mini_imagenet(folder: Path) -> None:
    random = np.random.default_rng(0)
    base = folder / "mini"
    for split, first in (("train", 0), ("val", 8)):
        lines = ["filename,label"]
        for kind in range(first, first + 8):
            label = f"n{kind:08d}"
            for n in range(8):
                name = f"{label}{n:08d}.jpg"
                _save(base / "images" / label / name, _picture(random, 84, kind))
                lines.append(f"{name},{label}")
        (base / f"{split}.csv").write_text("\n".join(lines) + "\n")
    (folder / "results").mkdir(exist_ok=True)


def _two_styles(folder: Path) -> None:
    random = np.random.default_rng(0)
    for split, count in (("train", 14), ("test", 6)):
        for style in "AB":
            for n in range(count):
                image = _picture(random, 36, "AB".index(style))
                _save(folder / "data" / "facades" / split / style / f"{n}.png", image)


def _graphs(folder: Path) -> None:
    """Rings with chords; what is asked for is the mean of a feature."""
    random = np.random.default_rng(0)
    lines = []
    for _ in range(96):
        size = int(random.integers(6, 12))
        features = random.normal(size=(size, 5)).round(4)
        edges = [[n, (n + 1) % size] for n in range(size)]
        edges += [[b, a] for a, b in edges]
        graph = {
            "node_features": features.tolist(),
            "edge_index": list(map(list, zip(*edges, strict=True))),
        }
        lines.append(json.dumps(graph | {"y": [float(features[:, 0].mean())]}))
    (folder / "graphs.jsonl").write_text("\n".join(lines) + "\n")


def _letters(folder: Path) -> None:
    random = np.random.default_rng(0)
    words = ["lorem", "ipsum", "dolor", "sit", "amet"]
    place = folder.parent / "data"
    place.mkdir(parents=True, exist_ok=True)
    (place / "input.txt").write_text(" ".join(random.choice(words, 4000)))


def _voc(folder: Path) -> None:
    random = np.random.default_rng(0)
    base = folder / "VOCdevkit" / "VOC2007"
    names = [f"thing{n}" for n in range(20)]
    for place in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (base / place).mkdir(parents=True, exist_ok=True)
    (base.parent / "VOC_CLASSES.txt").write_text("\n".join(names) + "\n")
    for split, first, count in (("trainval", 0, 6), ("test", 8, 2)):
        for n in range(first, first + count):
            image = random.integers(0, 60, (120, 160, 3), dtype=np.uint8)
            x, y, side = (int(v) for v in random.integers((5, 5, 30), (90, 60, 55)))
            image[y : y + side, x : x + side, n % 3] += 180
            _save(base / "JPEGImages" / f"{n:06}.jpg", image)
            box = f"<xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + side}</xmax><ymax>{y + side}</ymax>"
            (base / "Annotations" / f"{n:06}.xml").write_text(
                "<annotation><size><width>160</width><height>120</height></size><object>"
                f"<name>thing{n % 3}</name><difficult>0</difficult><bndbox>{box}</bndbox></object></annotation>"
            )
        lines = [f"{n:06}" for n in range(first, first + count)]
        (base / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(lines) + "\n")


def _plain_images(folder: Path) -> None:
    random = np.random.default_rng(0)
    for n in range(48):
        _save(folder / "images" / f"{n:03}.png", _picture(random, 32, n))


def _pickled_images(folder: Path) -> None:
    random = np.random.default_rng(0)
    held = {
        name: np.stack([_picture(random, 32, n) for n in range(count)])
        for name, count in (("train", 400), ("test", 60))
    }
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "cifar10.pkl").write_bytes(pickle.dumps(held))


def _cats_and_dogs(folder: Path) -> None:
    random = np.random.default_rng(0)
    base = (folder / ".." / "data" / "cats_and_dogs_filtered").resolve()
    for split, count in (("train", 48), ("validation", 8)):
        for kind, name in enumerate(("cats", "dogs")):
            for n in range(count):
                _save(base / split / name / f"{n}.png", _picture(random, 32, kind))


def _meshes(folder: Path) -> None:
    """Boxes of ten shapes, as OFF files."""
    random = np.random.default_rng(0)
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
    faces = [
        (0, 1, 3),
        (0, 3, 2),
        (4, 5, 7),
        (4, 7, 6),
        (0, 1, 5),
        (0, 5, 4),
        (2, 3, 7),
        (2, 7, 6),
        (0, 2, 6),
        (0, 6, 4),
        (1, 3, 7),
        (1, 7, 5),
    ]
    for kind in range(10):
        for split, count in (("train", 6), ("test", 2)):
            place = folder / "off" / f"kind{kind}" / split
            place.mkdir(parents=True, exist_ok=True)
            for n in range(count):
                points = corners * (1 + kind % 3, 1 + kind // 3, 1) + random.normal(0, 0.05, (8, 3))
                lines = ["OFF", f"8 {len(faces)} 0"]
                lines += [" ".join(f"{v:.4f}" for v in point) for point in points]
                lines += ["3 " + " ".join(map(str, face)) for face in faces]
                (place / f"{n}.off").write_text("\n".join(lines) + "\n")


def _omniglot_splits(folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    base = (folder / ".." / ".." / ".." / "data" / "omniglot").resolve()
    names = []
    for letter in range(12):
        strokes = random.random((7, 7)) < 0.4
        for n in range(6):
            image = np.where(np.kron(strokes, np.ones((15, 15), bool)), 0, 255).astype(np.uint8)
            noise = random.random((105, 105)) < 0.02
            image[noise] = 255 - image[noise]
            path = base / "data" / "alphabet" / f"character{letter:02}" / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        names.append(f"alphabet/character{letter:02}/rot000")
    place = base / "splits" / "vinyals"
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.txt").write_text("\n".join(names[:8]) + "\n")
    (place / "val.txt").write_text("\n".join(names[8:]) + "\n")


def _cat_and_stars(folder: Path) -> None:
    random = np.random.default_rng(0)
    _save(folder / "cat_sm.png", _picture(random, 48, 1))
    _save(folder / "s10_starryNight_big.jpg", _picture(random, 64, 2))
    (folder / "vgg").mkdir(exist_ok=True)


def _turns(folder: Path) -> None:
    """Token numbers whose second one says the class."""
    random = np.random.default_rng(0)
    base = folder / "data" / "turns"
    base.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 480), ("valid", 24), ("test", 24)):
        labels = random.integers(0, 3, count)
        rows = [
            [1, 10 + int(label), *random.integers(20, 60, int(random.integers(4, 12))).tolist(), 2]
            for label in labels
        ]
        (base / f"x{split}.pkl").write_bytes(pickle.dumps(rows))
        (base / f"y{split}.pkl").write_bytes(pickle.dumps(labels.tolist()))


def _segmented_points(folder: Path) -> None:
    random = np.random.default_rng(0)
    for place in ("sources", "targets"):
        (folder / "datasets" / "torch_datasets" / place).mkdir(parents=True, exist_ok=True)
    for n in range(48):
        points = random.normal(size=(160, 3))
        parts = 1 + (points[:, 1] > 0).astype(int) + (points[:, 1] > 0.8)
        base = folder / "datasets" / "torch_datasets"
        np.savetxt(base / "sources" / f"{n}.pts", points, fmt="%.5f")
        np.savetxt(base / "targets" / f"{n}.seg", parts, fmt="%d")


KINDS: dict[str, Callable[[Path], None]] = {
    "mini imagenet": _mini_imagenet,
    "two styles": _two_styles,
    "graphs": _graphs,
    "letters": _letters,
    "voc": _voc,
    "plain images": _plain_images,
    "pickled images": _pickled_images,
    "cats and dogs": _cats_and_dogs,
    "meshes": _meshes,
    "omniglot splits": _omniglot_splits,
    "cat and stars": _cat_and_stars,
    "turns": _turns,
    "segmented points": _segmented_points,
}
