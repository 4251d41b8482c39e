import torch
import torch.nn.functional as F
from torchvision.models import resnet18


def test_target(loader, model):
    right = 0
    with torch.no_grad():
        for data, label in loader["test"]:
            right += (model(data).argmax(1) == label).sum().item()
    return right


base_network = resnet18()
optimizer = torch.optim.SGD(base_network.parameters(), lr=0.1)
for step in range(1000):
    base_network.train(True)
    data, label = next(batches)
    optimizer.zero_grad()
    F.cross_entropy(base_network(data), label).backward()
    optimizer.step()
    if step % 100 == 0:
        base_network.eval()
        print(test_target(loaders, base_network))
