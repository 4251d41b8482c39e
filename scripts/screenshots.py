"""Make the pictures under docs/images: a small training run, watched, and its report in headless Chromium.

python scripts/screenshots.py            # needs Debian's chromium, or CHROMIUM=/path/to/it
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fallline.rules import rule_by_code
from fallline.runs.rank import read_ranks
from fallline.runs.stall import stall_of

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "images"
# name, width, height, dark
SHOTS = (
    ("report-wide-light", 1280, 3590, False),
    ("report-wide-dark", 1280, 3590, True),
    ("report-narrow-light", 400, 5180, False),
    ("report-narrow-dark", 400, 5180, True),
)
DIFF_SHOTS = (("diff-light", 1180, 1150, False), ("diff-dark", 1180, 1150, True))
ADDED = 'print("before training", f"{validate():.3f}")\n'  # what docs/diff.md tells of

SCRIPT = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.critic = nn.Linear(48, 48)
        self.head = nn.Linear(48, 8)

    def forward(self, tokens):
        hidden = self.encoder(self.embedding(tokens)).mean(1)
        return self.head(hidden)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * 600

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 64, (16,), generator=generator)
        return tokens, (tokens < 32).sum() // 2 % 8


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.08, total_steps=600)
loss_function = nn.CrossEntropyLoss()

for update, (tokens, labels) in enumerate(torch.utils.data.DataLoader(Tokens(), batch_size=16)):
    loss = loss_function(model(tokens), labels)
    if update == 410:
        loss = loss * 40  # a broken batch
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    scheduler.step()
"""


def browser() -> str | None:
    """The Chromium to use, where there is one."""
    return (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )


def shoot(chromium: str, page: Path, target: Path, width: int, height: int, dark: bool) -> None:
    """One picture of a page. The window of headless Chromium cannot be narrower than 500 pixels, so a frame is."""
    with tempfile.TemporaryDirectory() as profile:
        frame = Path(profile) / "frame.html"
        frame.write_text(
            f'<body style="margin:0;display:flex;justify-content:center;background:#aeb5c0"><iframe src="{page.as_uri()}" style="border:0;width:{width}px;height:{height}px"></iframe>'
        )
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
        ]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        flags += [
            f"--user-data-dir={profile}/data",
            f"--window-size={max(width, 500)},{height}",
            f"--screenshot={target}",
        ]
        if dark:
            flags += ["--blink-settings=preferredColorScheme=0"]
        subprocess.run(
            [chromium, *flags, frame.as_uri()], check=True, capture_output=True, timeout=120
        )


def make_run(folder: Path) -> Path:
    """Run the script above under `fallline run`; the run folder."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    run = folder / "run"
    command = [sys.executable, "-m", "fallline", "run", "--out", str(run), "train.py"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "fallline", "report", str(run)], cwd=folder, check=True)
    return run


STORY = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
made = torch.Generator().manual_seed(1)
x = torch.randn(2000, 20, generator=made)
y = (x[:, :5].sum(1) > 0).long()
train, valid = TensorDataset(x[:1600], y[:1600]), TensorDataset(x[1600:], y[1600:])
train_loader = DataLoader(train, batch_size=32, shuffle=True)
valid_loader = DataLoader(valid, batch_size=200)

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def validate():
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in valid_loader)
    model.train()
    return right / len(valid)


for epoch in range(4):
    for a, b in train_loader:
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, f"{validate():.3f}")
"""


def make_diff(folder: Path) -> Path:
    """The two runs of docs/diff.md, and their page."""
    runs = ("monday", STORY), ("friday", STORY.replace("for epoch", f"{ADDED}for epoch"))
    for name, text in runs:
        (folder / "train.py").write_text(text)
        command = [sys.executable, "-m", "fallline", "run", "--out", name, "train.py"]
        subprocess.run(command, cwd=folder, check=True)
    compare = ["diff", "monday", "friday", "--html", "diff.html"]
    subprocess.run([sys.executable, "-m", "fallline", *compare], cwd=folder)
    return folder / "diff.html"


def make_data(folder: Path) -> Path:
    """What `fallline measure data` says about a planted script, with three mistakes."""
    tuning = HERE.parent / "tests" / "tuning"
    text = (tuning / "planted" / "plain_bos_twice_by_template.py").read_text()
    masked = 'batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)'
    assert masked in text
    (folder / "train.py").write_text(text.replace(masked, 'batch["input_ids"].clone()'))
    path = os.pathsep.join([str(tuning), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fallline", "measure", "data", "--out", "looked", "train.py"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": path})
    return folder / "looked" / "data.html"


def make_ranks(folder: Path, code: str) -> Path:
    """The page of a rule's own wrong example on eight ranks. Those that hang are ended once everybody could see it."""
    (folder / f"{code}.py").write_text(
        rule_by_code(code).wrong[0].replace("range(60)", "range(120)")
    )
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "8"}
    command = [sys.executable, "-m", "fallline", "run", "--out", f"run-{code}", f"{code}.py"]
    environment = {**os.environ, **shared, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, cwd=folder, env={**environment, "RANK": str(rank)})
        for rank in range(8)
    ]
    run = folder / f"run-{code}"
    try:
        while any(rank.poll() is None for rank in ranks):
            stall = stall_of(read_ranks([run]))
            if stall is not None and stall.waiting and stall.elsewhere:
                break
            time.sleep(1)
    finally:
        for rank in ranks:
            rank.kill()
    command = [sys.executable, "-m", "fallline", "report", run.name, "--html", "page.html"]
    subprocess.run(command, cwd=folder)
    return folder / "page.html"


def main() -> int:
    chromium = browser()
    if chromium is None:
        print("no chromium found: apt-get install chromium, or set CHROMIUM", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        for name, width, height, dark in SHOTS:
            target = IMAGES / f"{name}.png"
            shoot(chromium, run / "report.html", target, width, height, dark)
            print(target.relative_to(HERE.parent))
        page = make_diff(Path(folder))
        for name, width, height, dark in DIFF_SHOTS:
            shoot(chromium, page, IMAGES / f"{name}.png", width, height, dark)
            print((IMAGES / f"{name}.png").relative_to(HERE.parent))
        page = make_data(Path(folder))
        for name, dark in (("data-light", False), ("data-dark", True)):
            shoot(chromium, page, IMAGES / f"{name}.png", 1180, 1500, dark)
            print((IMAGES / f"{name}.png").relative_to(HERE.parent))
        for name, code in (("ranks-straggler", "FL321"), ("ranks-hang", "FL323")):
            page = make_ranks(Path(folder), code)
            for shade, dark in (("light", False), ("dark", True)):
                shoot(chromium, page, IMAGES / f"{name}-{shade}.png", 1180, 2650, dark)
                print((IMAGES / f"{name}-{shade}.png").relative_to(HERE.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
