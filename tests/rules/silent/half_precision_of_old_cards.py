import torch
from torch import nn

device = "cuda"
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for x in torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=dtype):
        loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
