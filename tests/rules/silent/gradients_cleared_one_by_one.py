import torch
import torch.nn.functional as F

trunk = torch.nn.Linear(4, 4)
heads = torch.nn.Linear(4, 4)
parameters = [*trunk.parameters(), *heads.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.1)
for x, y in torch.utils.data.DataLoader(dataset, batch_size=4):
    for parameter in parameters:
        parameter.grad = None
    F.cross_entropy(heads(trunk(x)), y).backward()
    optimizer.step()
