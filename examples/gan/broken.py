"""A generative adversarial network that learns a ring of points. One mistake is in it, twice.

    python examples/gan/broken.py
    fallline run examples/gan/broken.py
"""

import argparse
import math

import torch
from torch import nn

NOISE = 8


def ring(count: int) -> torch.Tensor:
    """Points on a circle of radius 2, with a little noise."""
    angle = 2 * math.pi * torch.rand(count)
    points = 2 * torch.stack([angle.cos(), angle.sin()], dim=1)
    return points + 0.05 * torch.randn(count, 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=800)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    generator = nn.Sequential(
        nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    discriminator = nn.Sequential(
        nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid()
    )
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=5e-2, betas=(0.5, 0.999))

    for update in range(args.updates):
        real = ring(64)
        fake = generator(torch.randn(64, NOISE))

        optimizer_d.zero_grad()
        loss_d = -(torch.log(discriminator(real)) + torch.log(1 - discriminator(fake.detach()))).mean()
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = -torch.log(discriminator(fake)).mean()
        loss_g.backward()
        optimizer_g.step()

        if update % 100 == 0 or update == args.updates - 1:
            with torch.no_grad():
                away = (generator(torch.randn(512, NOISE)).norm(dim=1) - 2).abs().mean()
            print(f"update {update}: distance from the ring {away:.3f}")


if __name__ == "__main__":
    main()
