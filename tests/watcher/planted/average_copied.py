# {"code": "FL622", "op": ["copy_average"], "module": ["2"], "step": 4}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def copy_average(model, average):
    for p, a in zip(model.parameters(), average, strict=True):
        p.data.copy_(a)


def train_step(model, opt, x):
    loss = model(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


def main():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    average = [p.detach().clone() for p in model.parameters()]
    for i in range(6):
        train_step(model, opt, torch.randn(3, 4))
        if i == 3:
            average[2] /= 0
            copy_average(model, average)  # HERE


main()
