"""Gradients that are scaled by what the outputs of this batch say: each is replaced, and cleared before the next (FL401)."""

import torch
import torch.nn as nn


def train(args, epoch, model, device, dataloader, optimizer):
    criterion = nn.CrossEntropyLoss()
    tanh = nn.Tanh()
    relu = nn.ReLU()
    model.train()
    for step, (spec, image, label) in enumerate(dataloader):
        optimizer.zero_grad()
        a, v, out = model(spec, image)
        loss = criterion(out, label)
        loss.backward()
        ratio = a.sum() / v.sum()
        coeff_v = 1 - tanh(args.alpha * relu(ratio))
        for name, parms in model.named_parameters():
            if args.modulation == "OGM_GE":
                parms.grad = parms.grad * coeff_v + torch.zeros_like(parms.grad).normal_(0, 1)
        optimizer.step()
