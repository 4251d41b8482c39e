"""What only looks like a tensor: counts that a graph is asked for, and a device that is no model."""

import torch
import torch.nn.functional as F


def train(model, optimizer, loader, device, category):
    total, nodes, sizes = 0, 0, []
    for blocks in loader:
        blocks = [block.to(device) for block in blocks]
        seeds = blocks[-1].num_dst_nodes(category)
        sampled = model(blocks)
        loss = F.cross_entropy(sampled, blocks[-1].labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * seeds
        nodes += sampled.num_nodes()
        sizes.append(sampled.get_size())
    return total, nodes, sizes


def main(loader):
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        print(train(model, optimizer, loader, "cpu", "paper"))
