# A model that rests while something else learns through it, and one that turns recording off by itself.
import torch
from torch import nn


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))

    def forward(self, x):
        return self.body(x)

    @torch.inference_mode()
    def upscale(self, x):
        return self.forward(x)


def train(upscaler: Upscaler, loader, held_out, epochs):
    upscaler = Upscaler()
    optimizer = torch.optim.Adam(upscaler.parameters())
    for epoch in range(epochs):
        upscaler.train()
        for x, y in loader:
            optimizer.zero_grad()
            (upscaler(x) - y).square().mean().backward()
            optimizer.step()
        upscaler.eval()
        for x, y in held_out:
            print((upscaler.upscale(x) - y).square().mean())


def train_enhancer(hide, reveal, enhancer, optimizer, loader):
    for p in hide.parameters():
        p.requires_grad = False
    for p in reveal.parameters():
        p.requires_grad = False
    enhancer.train()
    for cover, secret in loader:
        optimizer.zero_grad()
        found = reveal(enhancer(hide(cover, secret)))
        (found - secret).square().mean().backward()
        optimizer.step()


def test_enhancer(hide, reveal, enhancer, loader):
    hide.eval()
    reveal.eval()
    enhancer.eval()
    with torch.no_grad():
        for cover, secret in loader:
            print((reveal(enhancer(hide(cover, secret))) - secret).abs().mean())


def main(hide, reveal, make, loader, held_out):
    enhancer = make()
    optimizer = torch.optim.Adam([p for p in enhancer.parameters() if p.requires_grad])
    for epoch in range(10):
        train_enhancer(hide, reveal, enhancer, optimizer, loader)
        test_enhancer(hide, reveal, enhancer, held_out)
