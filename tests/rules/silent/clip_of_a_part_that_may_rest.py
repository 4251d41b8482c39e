import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--freeze-head", action="store_true")
args = parser.parse_args()

body, head = nn.Linear(4, 4), nn.Linear(4, 1)
body_optimizer = torch.optim.AdamW(body.parameters())
head_optimizer = torch.optim.AdamW(head.parameters())
for x in torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8):
    body_optimizer.zero_grad()
    head_optimizer.zero_grad()
    head(body(x)).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(body.parameters(), 0.01)
    nn.utils.clip_grad_norm_(head.parameters(), 0.01)
    body_optimizer.step()
    if not args.freeze_head:
        head_optimizer.step()
