# Something unseen is cleared before each backward, and a line that keeps features for a backward is called for a test too.
import torch


def fit(val_fn, samples, loss_fn=torch.nn.MSELoss()):
    print(val_fn.name)
    val_fn = val_fn.pop("class")(8, **val_fn)
    optimizer = torch.optim.Adam(val_fn)
    for obs, rets in samples:
        for _ in range(20):
            val_fn.zero_grad()
            values = val_fn(obs)
            loss_fn(values, rets).backward()
            optimizer.step()


class Client:
    def __init__(self):
        self.encoder = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.Adam(self.encoder.parameters())

    def features(self, data):
        found = []
        for x in data:
            found.append(self.encoder(x))
        return found


def main(data, test, labels, epochs):
    client = Client()
    for epoch in range(epochs):
        loss = torch.cat(client.features(data)).square().mean()
        client.optimizer.zero_grad()
        loss.backward()
        client.optimizer.step()
        found = client.features(test)
        print(torch.cat(found).detach().mean())


def guarded(model, optimizer, loader):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        for p in model.parameters():
            if p.grad is not None:
                torch.nan_to_num_(p.grad, nan=0.0, posinf=1e5, neginf=-1e5)
        optimizer.step()
