import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader


class Scaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, update_grad=True):
        self._scaler.scale(loss).backward()
        if update_grad:
            self._scaler.step(optimizer)
            self._scaler.update()


def train_one_epoch(model, loader, optimizer, loss_scaler, args):
    accum_iter = args.accum_iter
    optimizer.zero_grad()
    for step, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean()
        loss = loss / accum_iter
        loss_scaler(loss, optimizer, update_grad=(step + 1) % accum_iter == 0)
        if (step + 1) % accum_iter == 0:
            optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum_iter", default=1, type=int)
    args = parser.parse_args()
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(torch.randn(64, 4), batch_size=4)
    loss_scaler = Scaler()
    for epoch in range(3):
        train_one_epoch(model, loader, optimizer, loss_scaler, args)


main()
