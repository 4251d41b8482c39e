import argparse

import torch
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step, (x,) in enumerate(loader):
            optimizer.zero_grad()  # FL105
            loss = model(x).mean()
            if args.accumulate > 1:
                loss = loss / args.accumulate
                if (step + 1) % args.accumulate == 0:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                else:
                    with model.no_sync():
                        loss.backward()  # FL302
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
