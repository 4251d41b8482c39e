import torch


class Model:
    def __init__(self, network, loader, rate):
        self.network, self.loader = network, loader
        self.optimizer = torch.optim.Adam(network.parameters(), lr=rate)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)

    def save_best(self, metric, folder):
        torch.save(
            {
                "model": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "best": metric,
            },
            f"{folder}/{metric}.pt",
        )

    def load(self, path):
        checkpoint = torch.load(path)
        self.network.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])

    def train_batch(self):
        for x in self.loader:
            self.optimizer.zero_grad()
            self.network(x).mean().backward()
            self.optimizer.step()
        self.scheduler.step()
