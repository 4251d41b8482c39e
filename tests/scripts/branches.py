"""Exclusive branches: the clip is right with amp and wrong without."""
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--clip", type=float, default=1.0)
args = parser.parse_args()
model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=args.amp):
        loss = model(x).square().mean()
    if args.amp:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # FL101
