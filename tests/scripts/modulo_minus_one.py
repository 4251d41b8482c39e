"""i % k == k - 1, loss undivided, with SGD."""
import torch

model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
K = 4
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=2)
for epoch in range(3):
    for i, x in enumerate(loader):
        loss = model(x).pow(2).mean()
        loss.backward()  # FL104
        if i % K == K - 1:
            opt.step()
            opt.zero_grad()
