"""Written for torch 0.3, where `volatile=True` stops autograd."""

from torch.autograd import Variable


def train(net, loader, criterion, optimizer):
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(net(Variable(x)), Variable(y))
        loss.backward()
        optimizer.step()
        print(loss.data[0])


def validate(net, loader, criterion):
    net.eval()
    total = 0
    for x, y in loader:
        x = Variable(x, volatile=True)
        total += criterion(net(x), Variable(y, volatile=True)).data[0]
    return total
