"""The loop is here, the helpers are next door."""
import torch
from engine import backward_and_step

model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).square().mean()
    backward_and_step(loss, optimizer, scaler, model)
