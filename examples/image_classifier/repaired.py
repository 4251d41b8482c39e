"""An image classifier with validation, on drawings made here. Repaired.

    python examples/image_classifier/repaired.py
"""

import argparse

import torch
from torch import nn

SIZE = 16
CLASSES = ("line", "column", "cross", "frame")


def drawings(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """Lines, columns, crosses and frames in noise."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.6 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
    labels = torch.randint(len(CLASSES), (count,), generator=generator)
    places = torch.randint(2, SIZE - 6, (count, 2), generator=generator)
    for image, label, (row, column) in zip(images[:, 0], labels.tolist(), places.tolist(), strict=True):
        box = image[row : row + 5, column : column + 5]
        if CLASSES[label] in ("line", "cross"):
            box[2] += 1.5
        if CLASSES[label] in ("column", "cross"):
            box[:, 2] += 1.5
        if CLASSES[label] == "frame":
            box[[0, -1]] += 1.5
            box[1:-1, [0, -1]] += 1.5
    return torch.utils.data.TensorDataset(images, labels)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        )
        self.out = nn.Linear(32, len(CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(self.features(images).flatten(1))


def evaluate(model: nn.Module, loader: torch.utils.data.DataLoader) -> float:
    """The share of right answers."""
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    train = torch.utils.data.DataLoader(drawings(1024, seed=0), batch_size=32, shuffle=True)
    valid = torch.utils.data.DataLoader(drawings(256, seed=1), batch_size=128)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in train:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(train):.3f}, accuracy {evaluate(model, valid):.3f}")


if __name__ == "__main__":
    main()
