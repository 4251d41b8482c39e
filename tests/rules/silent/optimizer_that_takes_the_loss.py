import higher
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
model.eval()
optimizer_diff = higher.get_diff_optim(optimizer, model.parameters())
for x in loader:
    batch_loss = model(x).square().mean()
    params = optimizer_diff.step(batch_loss, list(model.parameters()))
