"""Made-up data for the scripts of small repositories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

__all__ = ["SMALL"]


def _face(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A bright disc on a dark ground."""
    rows, columns = np.mgrid[:height, :width]
    middle = random.uniform(0.35, 0.65, 2) * (height, width)
    near = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 < (0.3 * width) ** 2
    image = random.integers(0, 60, (height, width, 3), dtype=np.uint8)
    image[near] += 150
    return image


def _faces(folder: Path, place: str, count: int, height: int, width: int) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    base = (folder / place).resolve()
    base.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        Image.fromarray(_face(random, height, width)).save(base / f"{n:03}.png")


def _faces_of_both(folder: Path) -> None:
    _faces(folder, "face_data/train", 96, 64, 64)
    _faces(folder, "face_data/test", 16, 64, 64)
    for name in ("weights", "logs", "generations"):
        (folder / name).resolve().mkdir(parents=True, exist_ok=True)


def _textures(folder: Path) -> None:
    """Digits as bright squares in one of ten places, and grounds to lay them on."""
    from PIL import Image

    random = np.random.default_rng(0)
    base = folder / "data"
    base.mkdir(parents=True, exist_ok=True)
    for n in range(10):
        digit = np.zeros((28, 28, 3), np.uint8)
        digit[4 + 10 * (n // 5) : 12 + 10 * (n // 5), 5 * (n % 5) : 5 * (n % 5) + 5] = 255
        Image.fromarray(digit).save(base / f"digit{n}.png")
        Image.fromarray(random.integers(0, 90, (64, 64, 3), dtype=np.uint8)).save(
            base / f"ground{n}.png"
        )
    rows = []
    for _ in range(320):
        digit, ground = random.integers(0, 10, 2)
        colors = dict(zip(("color_r", "color_g", "color_b"), random.random(3), strict=True))
        rows.append(
            {
                "digit_name": int(digit),
                "digit_image": f"digit{digit}.png",
                "texture_image": f"ground{ground}.png",
                "texture_name": f"t{ground}",
                **{k: float(v) for k, v in colors.items()},
            }
        )
    held = {"train_data": rows, "texture_classes_index": {f"t{n}": n for n in range(10)}}
    (base / "imdb.json").write_text(json.dumps(held))


def _reviews(folder: Path) -> None:
    random = np.random.default_rng(0)
    base = folder / "imdb"
    base.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 600), ("test", 64)):
        rows = []
        for n in range(count):
            words = random.choice(("wba", "wca", "wda", "wea", "wfa"), 12).tolist()
            words[3] = "wga" if n % 2 else "wha"
            rows.append({"text": " ".join(words), "label": n % 2})
        (base / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def _articles(folder: Path) -> None:
    random = np.random.default_rng(0)
    for place, heads, count in (
        ("train/pick_train_all.csv", "title,body,pick", 240),
        ("test/test.csv", "title_original,body_original,pick", 24),
    ):
        lines = [heads]
        for n in range(count):
            words = random.choice(("wba", "wca", "wda", "wea"), 10).tolist()
            words[2] = "wga" if n % 2 else "wha"
            lines.append(f"wia,{' '.join(words)},{'Pick' if n % 2 else 'Decline'}")
        path = folder / "data" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def _zhihu(folder: Path) -> None:
    random = np.random.default_rng(0)
    names = [f"w{n}" for n in range(60)]
    lines = []
    for _ in range(120):
        start = int(random.integers(60))
        lines.append(" ".join(names[(start + k) % 60] for k in range(20)))
    (folder / "zhihu.txt").write_text("\n".join(lines) + "\n")


def _omniglot(folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for letter in range(8):
        base = folder / "omniglot" / "alphabet" / f"character{letter}"
        base.mkdir(parents=True, exist_ok=True)
        strokes = random.random((7, 7)) < 0.4
        for n in range(6):
            image = np.full((105, 105), 255, np.uint8)
            image[:] = np.where(np.kron(strokes, np.ones((15, 15), bool)), 0, 255)
            noise = random.random((105, 105)) < 0.02
            image[noise] = 255 - image[noise]
            Image.fromarray(image).save(base / f"{n}.png")


SMALL: dict[str, Callable[[Path], None]] = {
    "saved models": lambda folder: (folder / "saved_models").mkdir(exist_ok=True),
    "faces in a folder": lambda folder: _faces(folder, "data/celeba/all", 160, 218, 178),
    "faces": _faces_of_both,
    "textures": _textures,
    "reviews": _reviews,
    "articles": _articles,
    "zhihu": _zhihu,
    "omniglot": _omniglot,
}
