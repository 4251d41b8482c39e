"""The script trains; its old evaluation, without no_grad, is no longer called by anything."""

import torch


def train(model, loader, optimizer):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def old_test(model, loader):
    model.eval()
    right = 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum().item()
    return right


def main():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(load("train"), batch_size=8, shuffle=True)
    for epoch in range(9):
        train(model, loader, optimizer)
        # old_test(model, loader)


if __name__ == "__main__":
    main()
