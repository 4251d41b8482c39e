"""The discriminator is in eval mode while the generator learns; who holds which parameters is not in view."""

import torch

from models import build


def train(loader, labels, criterion):
    gen, dis, gen_optim, dis_optim = build()
    for low, high in loader:
        gen.eval()
        dis.train()
        dis_optim.zero_grad()
        loss = criterion(dis(gen(low)), labels)
        loss.backward()
        dis_optim.step()
        gen.train()
        dis.eval()
        gen_optim.zero_grad()
        made = gen(low)
        loss = (made - high).abs().mean() + criterion(dis(made), torch.ones_like(labels))
        loss.backward()
        gen_optim.step()
